import { expect, it } from 'vitest';
import { stepPath, WINDOW, withSample, type ISample } from '../src/series';
import { applyEvent, INITIAL } from '../src/state';
import { device, event } from './samples';

it('a series is bounded, and keeps the value that holds at its edge', () => {
  let series: readonly ISample[] = [];
  for (let second = 0; second < 600; second++) {
    series = withSample(series, { at: 1000 * second, value: second % 100 });
  }
  expect(series.length).toBeLessThanOrEqual(WINDOW / 1000 + 1);
  expect(series[0].at).toBeLessThanOrEqual(599_000 - WINDOW);
});

it('readings that come in one moment are one', () => {
  const one = withSample([{ at: 1000, value: 5 }], { at: 1200, value: 7 });
  expect(one).toEqual([{ at: 1200, value: 7 }]);
});

it('a path goes in steps, breaks where nothing is known, and ends now', () => {
  const now = WINDOW;
  const { line, area } = stepPath(
    [
      { at: 0, value: 0 },
      { at: WINDOW / 4, value: 100 },
      { at: WINDOW / 2, value: null },
      { at: (3 * WINDOW) / 4, value: 50 }
    ],
    now,
    100,
    10
  );
  expect(line).toBe('M0 10H25V0H50M75 5H100');
  expect(area).toBe('M0 10H25V0H50V10H0ZM75 5H100V10H75Z');
  expect(stepPath([], now, 100, 10)).toEqual({ line: '', area: '' });
});

it('the store keeps readings of the devices that there are', () => {
  const reading = (utilization: number) =>
    event({ devices: [device({ utilization })] });
  const first = applyEvent(INITIAL, reading(10), 1000);
  const second = applyEvent(first, reading(20), 2000);
  expect(second.loads.get('GPU-0')).toEqual([
    { at: 1000, value: 10 },
    { at: 2000, value: 20 }
  ]);
  expect(applyEvent(second, event({ removed: ['GPU-0'] })).loads.size).toBe(0);
});
