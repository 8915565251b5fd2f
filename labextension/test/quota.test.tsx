import React from 'react';
import { renderToStaticMarkup } from 'react-dom/server';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { ApiError } from '../src/api/client';
import type { IHealth, IQuota, IQuotaUse } from '../src/api/types';
import { Quota } from '../src/components/Quota';
import { boundedOf, quotaNote, quotaText } from '../src/quota';
import { QuotaWatch } from '../src/quotawatch';
import { GpuStore } from '../src/store';
import { environment, event, grant, trans } from './samples';

// JupyterLab's icons are made of web components, which load in a browser only.
vi.mock('../src/icons', () => {
  const icon = { react: () => null };
  return { gpuIcon: icon, caretDownIcon: icon, caretRightIcon: icon };
});

const GIB = 2 ** 30;
const HOUR = 3_600_000;
const NOW = Date.parse('2026-01-01T12:30:00Z');
const TOMORROW = '2026-01-02T00:00:00Z';

function part(changes: Partial<IQuotaUse> = {}): IQuotaUse {
  return {
    quantity: 'devices',
    used: 0.5,
    limit: 2,
    left: 1.5,
    rule: 'default',
    reset: null,
    ...changes
  };
}

function quota(...quantities: IQuotaUse[]): IQuota {
  return {
    user: 'user',
    groups: [],
    timezone: 'UTC',
    quantities,
    guarantees: []
  };
}

const hours = (changes: Partial<IQuotaUse> = {}) =>
  part({
    quantity: 'hours_day',
    used: 3,
    limit: 4,
    left: 1,
    reset: TOMORROW,
    ...changes
  });

const draw = (...quantities: IQuotaUse[]) =>
  renderToStaticMarkup(
    <Quota
      quota={{ view: quota(...quantities), at: NOW }}
      folds={{ has: () => false, toggle: () => undefined }}
      now={NOW}
      trans={trans}
    />
  );

it('what is kept for the groups of the reader is shown, also where nothing is bounded', () => {
  const view = {
    ...quota(),
    guarantees: [{ group: 'lab', devices: 2, used: 0.5 }]
  };
  const drawn = renderToStaticMarkup(
    <Quota
      quota={{ view, at: NOW }}
      folds={{ has: () => false, toggle: () => undefined }}
      now={NOW}
      trans={trans}
    />
  );
  expect(drawn).toContain('Kept for the group lab: 2 GPUs, 0.5 in use');
  expect(draw()).toBe('');
});

it('what is bounded is shown: used, left, rule and reset', () => {
  const drawn = draw(
    part(),
    part({ quantity: 'memory', limit: null }),
    hours()
  );
  expect(drawn).toContain('aria-label="My quota"');
  expect(drawn).toContain('0.5 of 2');
  expect(drawn).toContain('1.5 left · rule for everybody');
  expect(drawn).toContain('width:25%');
  expect(drawn).toMatch(/GPU-hours today.*3 of 4.*1 left · more from/);
  expect(drawn).not.toContain('Memory');
});

it('there is no section where nothing is bounded', () => {
  expect(draw(part({ limit: null, left: null, rule: null }))).toBe('');
});

it('each quantity is said in its own unit', () => {
  const memory = { used: 3 * GIB, limit: 12 * GIB, left: 9 * GIB };
  expect(quotaText(part({ quantity: 'memory', ...memory }), trans)).toBe(
    '3 of 12 GiB'
  );
  expect(quotaNote(part({ quantity: 'memory', ...memory }), NOW, trans)).toBe(
    '9 GiB left · rule for everybody'
  );
  const lease = part({ quantity: 'lease', used: null, limit: 28_800 });
  expect(quotaText(lease, trans)).toBe('at most 8 h 00 min');
  const most = part({ quantity: 'fraction', used: null, limit: 0.5 });
  expect(quotaText(most, trans)).toBe('at most 0.5');
  const some = hours({ used: 0.004, left: 3.996 });
  expect(quotaText(some, trans)).toBe('0 of 4');
  expect(quotaNote(some, NOW, trans)).toContain('4 left');
  expect(quotaText(hours({ used: null }), trans)).toBe('? of 4');
});

it('whose rule it is, and what is too much, is said', () => {
  const note = (changes: Partial<IQuotaUse>) =>
    quotaNote(part(changes), NOW, trans);
  expect(note({ rule: 'group:a:b' })).toContain('rule for the group a:b');
  expect(note({ rule: 'user:user' })).toContain('rule for you');
  expect(note({ rule: 'quota_for' })).toContain('rule quota_for');
  expect(note({ used: 1.125, left: 0.375 })).toContain('0.37 left');
  expect(note({ used: 2, left: 0 })).toContain('nothing left');
  expect(note({ used: 2.5, left: 0 })).toContain('0.5 too much');
});

it('only hours that run out and what is too much have a colour', () => {
  expect(draw(part({ used: 2, left: 0 }))).toContain('data-level="fine"');
  expect(draw(part({ used: 2.5, left: 0 }))).toContain('data-level="over"');
  expect(draw(hours())).toContain('data-level="fine"');
  expect(draw(hours({ used: 3.7 }))).toContain('data-level="close"');
  expect(draw(hours({ used: null }))).toContain('data-level="unknown"');
});

it('GPU hours run on with what is held', () => {
  const known = { view: quota(part(), hours()), at: NOW };
  const [, later] = boundedOf(known, NOW + HOUR);
  expect([later.used, later.left]).toEqual([3.5, 0.5]);
});

let answer: () => Promise<IQuota>;
let asked: number;
let store: GpuStore;
let watch: QuotaWatch;

const settle = () => vi.advanceTimersByTimeAsync(0);
const look = async (come = false) => {
  watch.look(come);
  await settle();
};
const health = { user: 'user', quotas: 1 } as IHealth;
const holding = (memory: number) =>
  environment({ grants: [grant({ memory })], processes: [] });

beforeEach(() => {
  vi.useFakeTimers();
  vi.setSystemTime(NOW);
  asked = 0;
  answer = async () => quota(part());
  store = new GpuStore();
  watch = new QuotaWatch(
    {
      quota: () => {
        asked++;
        return answer();
      }
    },
    store
  );
  // As the panel does, which looks again whenever the store has changed.
  store.changed.connect(() => watch.look());
});

afterEach(() => {
  watch.dispose();
  vi.useRealTimers();
});

it('it is asked for when what the reader holds has changed, and not else', async () => {
  await look();
  expect(asked, 'there is no broker yet').toBe(0);
  store.apply(event({ health, snapshot: true, environments: [holding(GIB)] }));
  await settle();
  expect(asked).toBe(1);
  expect(store.state.quota?.view.quantities).toHaveLength(1);

  const other = environment({ id: 'k', user: 'bob', grants: [grant()] });
  store.apply(event({ environments: [other, holding(GIB)] }));
  await look();
  await vi.advanceTimersByTimeAsync(HOUR);
  expect(asked, 'nothing of the reader changed').toBe(1);

  store.apply(event({ environments: [holding(2 * GIB)] }));
  await settle();
  expect(asked).toBe(2);
  await look(true);
  expect(asked, 'somebody opened the panel').toBe(3);
});

it('what changes while it is asked for is not missed', async () => {
  let tell: (view: IQuota) => void = () => undefined;
  answer = () => new Promise(resolve => (tell = resolve));
  store.apply(event({ health, snapshot: true }));
  store.apply(event({ environments: [holding(GIB)] }));
  store.apply(event({ environments: [holding(2 * GIB)] }));
  expect(asked).toBe(1);
  answer = async () => quota(part({ used: 1 }));
  tell(quota(part()));
  await settle();
  expect(asked).toBe(2);
  expect(store.state.quota?.view.quantities[0].used).toBe(1);
});

it('a period that is over is asked for once, also where clocks are not in step', async () => {
  answer = async () => quota(hours({ used: 1 }));
  store.apply(event({ health, snapshot: true }));
  await settle();
  vi.setSystemTime(Date.parse(TOMORROW) + 1000);
  await look();
  await look();
  expect(asked).toBe(2);
});

it('hours that are not yet added up are asked for again, a few times', async () => {
  answer = async () => quota(hours({ used: asked < 3 ? null : 1 }));
  store.apply(event({ health, snapshot: true }));
  await vi.advanceTimersByTimeAsync(60_000);
  expect(asked).toBe(3);
  answer = async () => quota(hours({ used: null }));
  await look(true);
  await vi.advanceTimersByTimeAsync(60_000);
  expect(asked).toBe(7);
});

it('a refusal leaves what was known, and is not asked for again and again', async () => {
  store.apply(event({ health, snapshot: true }));
  await settle();
  answer = () => Promise.reject(new ApiError(503, 'unavailable', '', ''));
  store.apply(event({ environments: [holding(GIB)] }));
  await settle();
  await look();
  expect(asked).toBe(2);
  expect(store.state.quota?.view.user).toBe('user');
  answer = async () => quota(part({ used: 1 }));
  store.apply(
    event({ health, snapshot: true, environments: [holding(2 * GIB)] })
  );
  await settle();
  expect(asked).toBe(3);
});

it('where no rule bounds anybody it is never asked for', async () => {
  const free = { user: 'user', quotas: 0 } as IHealth;
  store.apply(event({ snapshot: true, health: free }));
  store.apply(event({ environments: [holding(GIB)] }));
  await look(true);
  expect(asked).toBe(0);

  store.apply(event({ health }));
  await settle();
  expect(asked, 'a rule was set').toBe(1);
  store.apply(event({ health: { ...health, quotas: 2 } }));
  await settle();
  expect(asked, 'and another one').toBe(2);
  expect(store.state.quota).not.toBeNull();
  store.apply(event({ health: free }));
  await settle();
  expect(asked, 'and all were forgotten').toBe(2);
  expect(store.state.quota).toBeNull();
});

it('another broker is asked anew', async () => {
  store.apply(event({ health, snapshot: true }));
  await settle();
  store.connect({ kind: 'disconnected' });
  store.apply(event({ health, snapshot: true }));
  await settle();
  expect(asked).toBe(2);
});
