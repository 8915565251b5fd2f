import { expect, it, vi } from 'vitest';
import { ApiError } from '../src/api/client';
import type { IEnvironmentHistory, IUsageReport } from '../src/api/types';
import { csvOf } from '../src/history/csv';
import { grid, marksOf, ofDevice, ofMine } from '../src/history/data';
import { HistoryModel } from '../src/history/model';
import { formatValue, stacked } from '../src/history/plot';
import { fetchHistory } from '../src/history/source';
import { device, trans } from './samples';

const GIB = 2 ** 30;
const SINCE = '2026-01-01T12:00:00Z';
const at = (seconds: number) =>
  new Date(Date.parse(SINCE) + 1000 * seconds).toISOString();

function devicePoint(seconds: number, used: number | null) {
  return {
    at: at(seconds),
    seconds: 10,
    memory_used: used,
    memory_peak: used,
    utilization: 50,
    utilization_peak: 80,
    memory_granted: 12 * GIB,
    share: 5000,
    temperature: null,
    temperature_peak: null,
    power: null
  };
}

const PAST = {
  device: 'GPU-0',
  since: SINCE,
  until: at(29),
  step: 10,
  points: [devicePoint(0, 6 * GIB), devicePoint(20, 3 * GIB)],
  events: []
};

function environmentPast(used: number): IEnvironmentHistory {
  const point = {
    at: at(0),
    seconds: 5,
    memory: 12 * GIB,
    share: 5000,
    memory_used: used,
    memory_peak: used,
    idle: 0.5
  };
  return {
    environment: 'kernel-1',
    user: 'user',
    name: 'llm.ipynb',
    since: SINCE,
    until: at(29),
    step: 10,
    devices: [{ device: 'GPU-0', points: [point] }],
    events: []
  };
}

const REPORT: IUsageReport = {
  by: 'environment',
  since: SINCE,
  until: at(29),
  seen_seconds: 20,
  simulated: false,
  lost_samples: 0,
  rows: [
    {
      key: 'kernel-1',
      user: 'user',
      name: 'llm.ipynb',
      gpu_seconds: 1800,
      held_seconds: 3600,
      known_seconds: 0,
      idle_seconds: 0,
      memory_peak: GIB
    }
  ]
};

it('times that nobody has seen are gaps, and no zeros', () => {
  expect(grid(SINCE, at(29), 10)).toHaveLength(3);
  const history = ofDevice(device(), PAST, [environmentPast(4 * GIB)], trans);
  const [memory, busy, ...more] = history.charts;
  expect(memory.lines.map(line => [line.label, line.values])).toEqual([
    ['llm.ipynb', [4 * GIB, null, null]],
    ['Others', [2 * GIB, null, 3 * GIB]],
    ['Granted', [12 * GIB, null, 12 * GIB]],
    ['Can be granted', [24 * GIB, 24 * GIB, 24 * GIB]]
  ]);
  expect(busy.lines[0].values).toEqual([50, null, 50]);
  expect(more, 'what is never told has no chart').toEqual([]);
});

it('areas lie upon each other, and caps upon nothing', () => {
  const [memory] = ofDevice(
    device(),
    PAST,
    [environmentPast(4 * GIB)],
    trans
  ).charts;
  expect(stacked(memory).slice(0, 3)).toEqual([
    [4 * GIB, null, null],
    [6 * GIB, null, 3 * GIB],
    [12 * GIB, null, 12 * GIB]
  ]);
});

it('GPU-hours are share by time, by notebook', () => {
  const mine = ofMine(REPORT, [environmentPast(GIB)], 10, trans);
  expect(mine.charts[0].lines[0].values).toEqual([0.25, null, null]);
  expect(mine.totals).toEqual([
    { id: 'kernel-1', name: 'llm.ipynb', hours: 0.5, idle: null, peak: GIB }
  ]);
});

it('records become marks; those that are about nothing seen do not', () => {
  const event = (name: string, reason: string | null = null) => ({
    at: at(5),
    event: name,
    environment: 'kernel-1',
    device: null,
    user: 'user',
    name: 'llm.ipynb',
    reason
  });
  const marks = marksOf(
    [event('GrantAdded'), event('notice', 'cap: Over.'), event('Other')],
    trans
  );
  expect(marks.map(({ kind, text }) => [kind, text])).toEqual([
    ['attached', 'llm.ipynb attached'],
    ['warned', 'llm.ipynb warned: cap: Over.']
  ]);
});

it('a table has a row for each time, and no formula', () => {
  const history = {
    title: 'x',
    times: [0, 10],
    charts: [
      {
        title: 'Memory',
        unit: 'bytes' as const,
        lines: [{ label: 'a,"b"', look: 'area' as const, values: [1.25, null] }]
      }
    ],
    marks: [{ at: 12, kind: 'warned' as const, text: '=SUM(A1)' }],
    totals: []
  };
  expect(csvOf(history)).toBe(
    'time,"Memory: a,""b"" (bytes)",events\r\n' +
      '1970-01-01T00:00:00.000Z,1.25,\r\n' +
      "1970-01-01T00:00:10.000Z,,'=SUM(A1)\r\n"
  );
});

it('values have their units', () => {
  expect(formatValue(null, 'bytes')).toBe('–');
  expect(formatValue(3 * GIB, 'bytes')).toBe('3 GiB');
  expect(formatValue(41.7, 'celsius')).toBe('42 °C');
  expect(formatValue(0.255, 'gpus')).toBe('0.26');
});

it('an environment that is forgotten meanwhile is left out, and a lost server is told', async () => {
  const client = (status: number) => ({
    report: () => Promise.resolve(REPORT),
    deviceHistory: () => Promise.resolve(PAST),
    environmentHistory: () =>
      Promise.reject(new ApiError(status, 'code', 'message', ''))
  });
  const subject = { kind: 'device', id: 'GPU-0' } as const;
  const found = await fetchHistory(client(404), [], subject, '10m', trans);
  expect(found.charts[0].lines.map(({ label }) => label)).toEqual([
    'Used',
    'Granted'
  ]);
  await expect(
    fetchHistory(client(0), [], subject, '10m', trans)
  ).rejects.toThrow('message');
});

it('a history is kept up to date only while somebody looks', async () => {
  vi.useFakeTimers();
  let asked = 0;
  const model = new HistoryModel(
    { kind: 'mine' },
    () => {
      asked++;
      return Promise.resolve(ofMine(REPORT, [], 10, trans));
    },
    () => 1
  );
  await vi.advanceTimersByTimeAsync(60_000);
  expect(asked).toBe(0);
  model.start();
  await vi.advanceTimersByTimeAsync(25_000);
  expect(asked, 'points are 10 s apart').toBe(3);
  model.stop();
  await vi.advanceTimersByTimeAsync(60_000);
  expect(asked).toBe(3);
  model.dispose();
  vi.useRealTimers();
});
