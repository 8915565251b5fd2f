import { expect, it } from 'vitest';
import {
  formatAge,
  formatMemory,
  otherUnit,
  parseMemory,
  shortShare
} from '../src/units';
import { freeMemory, inTree, segments, summary } from '../src/view';
import { device, deviceGrant, environment, grant, trans } from './samples';

const GIB = 2 ** 30;
const nobody = { own: null, user: null };

it('memory is written in GiB', () => {
  expect(formatMemory(4e9)).toBe('3.7 GiB');
  expect(formatMemory(24 * GIB)).toBe('24 GiB');
  expect(formatMemory(null)).toBe('?');
});

it('memory is read as the broker reads it', () => {
  expect(parseMemory('4G')).toBe(4e9);
  expect(parseMemory('4GiB')).toBe(4 * GIB);
  expect(parseMemory(' 1.5 gi ')).toBe(1.5 * GIB);
  expect(parseMemory('4X')).toBeNull();
  expect(parseMemory('')).toBeNull();
  expect(otherUnit('4G')).toBe('3.7 GiB');
  expect(otherUnit('4GiB')).toBe('4.3 GB');
  expect(otherUnit('four')).toBe('');
});

it('an age is said as people say it', () => {
  const now = Date.parse('2026-01-01T14:05:30Z');
  expect(formatAge('2026-01-01T14:05:00Z', now, trans)).toBe('just now');
  expect(formatAge('2026-01-01T13:53:00Z', now, trans)).toBe('12 min');
  expect(formatAge('2026-01-01T12:00:00Z', now, trans)).toBe('2 h 05 min');
  expect(formatAge('2025-12-28T12:00:00Z', now, trans)).toBe('4 d');
});

it('a summary is as brief as a button', () => {
  const has = (...grants: ReturnType<typeof grant>[]) =>
    summary(environment({ grants }), trans);
  const whole = grant({ exclusive: true, compute: null });
  const memory = grant({ compute: null, memory: 4e9 });
  expect(summary(undefined, trans)).toBe('none');
  expect(has()).toBe('none');
  expect(has(grant())).toBe('½');
  expect(has(grant({ compute: 3000 }))).toBe('0.3');
  expect(has(whole)).toBe('1');
  expect(has(whole, { ...whole, device: 'GPU-1' })).toBe('2');
  expect(has(memory)).toBe('3.7 GiB');
  expect(has(memory, { ...memory, device: 'GPU-1' })).toBe('2 × 3.7 GiB');
  expect(has(grant({ state: 'draining' }))).toBe('draining');
  expect(has(whole, grant({ state: 'draining' }))).toBe('1');
  expect(shortShare(100)).toBe('0.01');
});

it('a bar shows grants, outsiders and the reserve, and never overflows', () => {
  const full = device({
    memory_usable: 23 * GIB,
    grants: [
      deviceGrant(),
      deviceGrant({ environment: 'kernel-2', state: 'draining' })
    ],
    external_memory: 6 * GIB
  });
  const owners = { own: 'kernel-1', user: 'user' };
  const parts = segments(full, owners, trans);
  expect(parts.map(part => part.kind)).toEqual([
    'mine',
    'draining',
    'external',
    'reserve'
  ]);
  expect(parts.reduce((sum, part) => sum + part.share, 0)).toBeCloseTo(100);
  expect(segments(device(), nobody, trans)).toEqual([]);
});

it('a device whose memory is unknown still shows its holders', () => {
  const odd = device({
    memory_total: null,
    memory_usable: null,
    external_memory: null,
    unattributed_memory: null,
    grants: [deviceGrant({ memory: 0, exclusive: true })]
  });
  expect(segments(odd, nobody, trans)[0].share).toBe(100);
  expect(freeMemory(odd)).toBeNull();
});

it('free is what can still be granted', () => {
  expect(freeMemory(device({ grants: [deviceGrant()] }))).toBe(12 * GIB);
  expect(freeMemory(device({ external_memory: 4 * GIB }))).toBe(20 * GIB);
  expect(
    freeMemory(
      device({ grants: [deviceGrant({ exclusive: true, memory: 1 })] })
    )
  ).toBe(0);
  expect(freeMemory(device({ health: 'lost' }))).toBe(0);
  const maintenance = {
    since: '2026-01-01T14:05:00Z',
    by: 'carol',
    reason: ''
  };
  expect(freeMemory(device({ maintenance }))).toBe(0);
});

it('MIG instances stand below their GPU, whether that is listed or not', () => {
  const part = (index: number, parent: string) =>
    device({ uuid: `MIG-${parent}-${index}`, kind: 'mig', index, parent });
  const rows = inTree([
    part(0, 'GPU-7'),
    device({ uuid: 'GPU-0' }),
    part(1, 'GPU-7'),
    part(0, 'GPU-0')
  ]);
  expect(
    rows.map(row => (row.kind === 'device' ? row.device.uuid : row.uuid))
  ).toEqual(['GPU-7', 'MIG-GPU-7-0', 'MIG-GPU-7-1', 'GPU-0', 'MIG-GPU-0-0']);
  expect(rows.map(row => row.kind)).toEqual([
    'divided',
    'device',
    'device',
    'device',
    'device'
  ]);
  expect(rows.map(row => row.kind === 'device' && row.within)).toEqual([
    false,
    true,
    true,
    false,
    true
  ]);
});

it('the bar tells this notebook from others of the same user', () => {
  const shared = device({
    grants: [
      deviceGrant({ memory: GIB }),
      deviceGrant({ memory: GIB, environment: 'kernel-2' }),
      deviceGrant({ memory: GIB, environment: 'kernel-3', user: 'bob' })
    ]
  });
  const owners = { own: 'kernel-1', user: 'user' };
  expect(segments(shared, owners, trans).map(part => part.kind)).toEqual([
    'mine',
    'ours',
    'other'
  ]);
});
