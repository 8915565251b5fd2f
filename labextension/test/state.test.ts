import { expect, it } from 'vitest';
import type { IHealth, INotice } from '../src/api/types';
import { applyEvent, INITIAL, isMine, noticesOf } from '../src/state';
import { GpuStore } from '../src/store';
import { device, environment, event } from './samples';

const loaded = applyEvent(
  INITIAL,
  event({
    revision: 1,
    snapshot: true,
    devices: [device({ uuid: 'GPU-1', index: 1 }), device()],
    environments: [environment()]
  })
);

it('a snapshot replaces everything and opens the connection', () => {
  expect(loaded.connection.kind).toBe('open');
  expect(loaded.devices.map(one => one.uuid)).toEqual(['GPU-0', 'GPU-1']);
  const again = applyEvent(loaded, event({ revision: 9, snapshot: true }));
  expect(again.devices).toEqual([]);
  expect(again.environments.size).toBe(0);
});

it('a change replaces what it names and leaves the rest as it was', () => {
  const changed = applyEvent(
    loaded,
    event({
      revision: 2,
      devices: [device({ uuid: 'GPU-1', index: 1, utilization: 7 })]
    })
  );
  expect(changed.devices[1].utilization).toBe(7);
  expect(changed.devices[0]).toBe(loaded.devices[0]);
  expect(changed.environments.get('kernel-1')).toBe(
    loaded.environments.get('kernel-1')
  );
});

it('what was removed is gone, with what was said about it', () => {
  const refused = {
    ...loaded,
    refusals: new Map([['kernel-1', { message: 'No', hint: '' }]])
  };
  const changed = applyEvent(
    refused,
    event({ revision: 3, removed: ['kernel-1'] })
  );
  expect(changed.environments.size).toBe(0);
  expect(changed.refusals.size).toBe(0);
});

it('a change does not open a connection that a snapshot has not', () => {
  const down = { ...loaded, connection: { kind: 'disconnected' } as const };
  const changed = applyEvent(down, event({ revision: 4, environments: [] }));
  expect(changed.connection.kind).toBe('disconnected');
});

it('health stays until it is told anew', () => {
  const health = { version: '1', driver: 'No driver.' } as never;
  const sick = applyEvent(loaded, event({ revision: 5, health }));
  expect(applyEvent(sick, event({ revision: 6 })).health).toBe(health);
});

it('a new action takes an older refusal away', () => {
  const store = new GpuStore();
  store.end('kernel-1', { message: 'Nothing is free.', hint: '' });
  expect(store.state.refusals.get('kernel-1')?.message).toBe(
    'Nothing is free.'
  );
  store.begin('kernel-1', 'attach');
  expect(store.state.refusals.size).toBe(0);
  expect(store.state.busy.get('kernel-1')).toBe('attach');
  store.end('kernel-1');
  expect(store.state.busy.size).toBe(0);
});

it('after dispose nothing changes and nobody is told', () => {
  const store = new GpuStore();
  let told = 0;
  store.changed.connect(() => {
    told++;
  });
  store.dispose();
  store.connect({ kind: 'open' });
  expect(store.state.connection.kind).toBe('connecting');
  expect(told).toBe(0);
});

it('to an administrator what is others’ is not theirs', () => {
  const health = { user: 'ann' } as IHealth;
  const mine = environment({ user: 'ann', processes: [] });
  const seen = environment({ id: 'kernel-2', user: 'bob', processes: [] });
  const told = (user: string) => ({ id: user, user }) as INotice;
  const state = applyEvent(
    loaded,
    event({
      snapshot: true,
      health,
      environments: [mine, seen],
      notices: [told('ann'), told('bob')]
    })
  );
  expect(isMine(state, mine)).toBe(true);
  expect(isMine(state, seen)).toBe(false);
  expect(isMine(state, { ...mine, processes: null })).toBe(false);
  expect(isMine(state, undefined)).toBe(false);
  const { mine: own, others } = noticesOf(state);
  expect([own, others].map(list => list.map(one => one.id))).toEqual([
    ['ann'],
    ['bob']
  ]);
  // An older broker does not say who the reader is.
  const old = { ...state, health: { ...health, user: null } };
  expect(isMine(old, seen)).toBe(true);
  expect(noticesOf(old).mine).toHaveLength(2);
});
