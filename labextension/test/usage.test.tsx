import React from 'react';
import { renderToStaticMarkup } from 'react-dom/server';
import { expect, it } from 'vitest';
import { strengthText } from '../src/components/Limits';
import { UsageBar } from '../src/components/UsageBar';
import { applyEvent, INITIAL } from '../src/state';
import { formatPart } from '../src/units';
import { peakSince, totalOf, usageText } from '../src/usage';
import { deviceState, where } from '../src/view';
import {
  device,
  deviceGrant,
  environment,
  event,
  grant,
  grantUsage,
  trans,
  usage
} from './samples';

const GIB = 2 ** 30;
const draw = (changes: Parameters<typeof grantUsage>[0] = {}) =>
  renderToStaticMarkup(
    <UsageBar usage={grantUsage(changes)} now={0} trans={trans} />
  );

it('a part has its unit once where that is the same', () => {
  expect(formatPart(3.2 * GIB, 12 * GIB, '/')).toBe('3.2/12 GiB');
  expect(formatPart(512 * 2 ** 20, 12 * GIB, '/')).toBe('512 MiB/12 GiB');
  expect(formatPart(0, 12 * GIB, ' of ')).toBe('0 of 12 GiB');
  expect(formatPart(null, 12 * GIB, '/')).toBe('?/12 GiB');
});

it('use is said against the cap, with the peak', () => {
  expect(usageText(grantUsage(), trans)).toBe('3 of 12 GiB, peak 4 GiB');
  expect(
    usageText(grantUsage({ memory_used: null, memory_peak: null }), trans)
  ).toBe('use unknown, of 12 GiB, peak unknown');
});

it('nearness to the cap is said in words too, from 90 % on', () => {
  expect(draw({ memory_used: 10.7 * GIB })).toContain('data-level="fine"');
  const close = draw({ memory_used: 10.8 * GIB });
  expect(close).toContain('data-level="close"');
  expect(close).toContain('close to the cap');
  const over = draw({ memory_used: 13 * GIB });
  expect(over).toContain('over the cap');
  expect(over).toContain('width:100%');
});

it('a bar shows used and peak, and nothing where nothing is known', () => {
  expect(draw()).toContain('width:25%');
  expect(draw()).toContain('inset-inline-start:33.3');
  const unknown = draw({ memory_used: null, memory_peak: null });
  expect(unknown).toContain('data-level="unknown"');
  expect(unknown).not.toContain('jp-Genv-used"');
  expect(unknown).not.toContain('jp-Genv-peak');
});

it('a peak that is younger than its grant says since when', () => {
  expect(peakSince(grantUsage(), 0, trans)).toBeUndefined();
  const late = grantUsage({ peak_since: '2026-01-01T12:30:00Z' });
  expect(peakSince(late, 0, trans)).toContain('seen since');
});

it('usage comes with events, and goes with its environment', () => {
  const first = applyEvent(INITIAL, event({ usage: [usage()] }));
  expect(first.usage.get('kernel-1')?.advice).toBe('The amount fits.');
  const same = applyEvent(first, event({ revision: 2 }));
  expect(same.usage.get('kernel-1')).toBe(first.usage.get('kernel-1'));
  const gone = applyEvent(same, event({ removed: ['kernel-1'] }));
  expect(gone.usage.size).toBe(0);
  const anew = applyEvent(same, event({ snapshot: true }));
  expect(anew.usage.size).toBe(0);
});

it('the sum is unknown where a part is, and there is none without a grant', () => {
  const other = grant({ device: 'GPU-1' });
  const two = environment({ grants: [grant(), other] });
  const used = grantUsage({ device: 'GPU-1', memory_used: GIB });
  expect(totalOf(two, usage({ grants: [grantUsage(), used] }))).toEqual({
    used: 4 * GIB,
    cap: 24 * GIB
  });
  const unknown = { ...used, memory_used: null };
  expect(totalOf(two, usage({ grants: [grantUsage(), unknown] }))?.used).toBe(
    null
  );
  expect(totalOf(two, usage())).toBeNull();
  expect(totalOf(environment(), usage())).toBeNull();
});

it('a limit is called what it is, and never enforced', () => {
  const said = (verified: boolean | null) =>
    strengthText({ strength: 'driver', verified, reason: '' }, trans);
  expect([said(null), said(true), said(false)]).toEqual([
    'driver',
    'driver, verified',
    'driver, not in force'
  ]);
});

it('a device says how busy it is and who is folded away; its trouble says itself', () => {
  const busy = device({ utilization: 67, grants: [deviceGrant()] });
  expect(deviceState(busy, false, trans)).toBe('67 % busy');
  expect(deviceState(busy, true, trans)).toBe('67 % busy · 1 holder');
  const lost = { ...busy, health: 'lost' } as const;
  expect(deviceState(lost, false, trans)).toBe('');
  expect(deviceState(device(), false, trans)).toBe('');
});

it('where something is held is said by name as long as that is short', () => {
  const on = (...uuids: string[]) =>
    where(
      environment({ grants: uuids.map(uuid => grant({ device: uuid })) }),
      [device()],
      trans
    );
  expect(on('GPU-0')).toBe('GPU 0');
  expect(on('GPU-0', 'GPU-123456789')).toBe('GPU 0, GPU-12345678');
  expect(on('GPU-0', 'GPU-1', 'GPU-2')).toBe('3 GPUs');
});
