import { expect, it } from 'vitest';
import { kernelText } from '../src/components/EnvironmentRow';
import { arrange, labelsOf, nameOf, rowOf, Rows } from '../src/listing';
import type { IListing } from '../src/listing';
import {
  device,
  environment,
  grant,
  grantUsage,
  trans,
  usage
} from './samples';

const GIB = 2 ** 30;
const ALL: IListing = { sort: 'memory', grouped: false, filter: '', all: true };
const labels = labelsOf([device()], trans);

const sample = [
  environment({ id: 'a', name: 'llm.ipynb', grants: [grant()] }),
  environment({
    id: 'b',
    name: 'train.py',
    user: 'bob',
    grants: [grant({ memory: 20 * GIB, since: '2026-01-01T11:00:00Z' })],
    kernel_state: 'busy'
  }),
  environment({
    id: 'c',
    name: 'plot.ipynb',
    idle_since: '2026-01-01T09:00:00Z'
  })
];
const rows = sample.map(one =>
  rowOf(one, one.id === 'a' ? usage() : undefined, labels)
);
const ids = (changes: Partial<IListing>) =>
  arrange(rows, { ...ALL, ...changes }).map(entry => entry.key);

it('a row has what is held, used and where', () => {
  expect(rows[0]).toMatchObject({
    devices: ['GPU 0'],
    cap: 12 * GIB,
    used: 3 * GIB,
    peak: 4 * GIB
  });
  expect(rows[1]).toMatchObject({ used: null, peak: null });
  const two = usage({
    grants: [grantUsage(), grantUsage({ memory_used: null })]
  });
  expect(rowOf(sample[0], two, labels)).toMatchObject({
    used: null,
    peak: 8 * GIB
  });
});

it('rows are sorted by what was chosen', () => {
  expect(ids({})).toEqual(['b', 'a', 'c']);
  expect(ids({ sort: 'used' })).toEqual(['a', 'c', 'b']);
  expect(ids({ sort: 'name' })).toEqual(['a', 'c', 'b']);
  expect(ids({ sort: 'user' })).toEqual(['b', 'a', 'c']);
  expect(ids({ sort: 'since' })).toEqual(['b', 'a', 'c']);
  expect(ids({ sort: 'idle' })).toEqual(['c', 'a', 'b']);
});

it('every word of a filter must be found, in whatever is known', () => {
  expect(ids({ filter: 'BOB train' })).toEqual(['b']);
  expect(ids({ filter: 'gpu 0' })).toEqual(['b', 'a']);
  expect(ids({ filter: 'busy' })).toEqual(['b']);
  expect(ids({ filter: 'bob plot' })).toEqual([]);
});

it('those that hold nothing are listed only when asked for', () => {
  expect(ids({ all: false })).toEqual(['b', 'a']);
  const waiting = environment({ id: 'd', pending: { gpus: 1, mps: 'auto' } });
  const row = rowOf(waiting, undefined, labels);
  expect(arrange([row], { ...ALL, all: false })).toHaveLength(1);
});

it('groups have a heading with their sum', () => {
  const [first, , second] = arrange(rows, { ...ALL, grouped: true });
  expect(first).toMatchObject({ kind: 'group', user: 'bob', count: 1 });
  expect(second).toMatchObject({ kind: 'group', user: 'user', cap: 12 * GIB });
});

it('rows of which nothing has changed stay the same', () => {
  const maker = new Rows();
  const map = new Map(sample.map(one => [one.id, one]));
  const before = maker.of(map, new Map(), labels);
  const changed = environment({ id: 'b', name: 'train.py', user: 'bob' });
  const after = maker.of(new Map([...map, ['b', changed]]), new Map(), labels);
  expect(after[0]).toBe(before[0]);
  expect(after[1]).not.toBe(before[1]);
  const renamed = maker.of(map, new Map(), new Map([['GPU-0', 'GPU 5']]));
  expect(renamed[0].devices).toEqual(['GPU 5']);
});

it('names and kernels are said in words', () => {
  const now = Date.parse('2026-01-01T12:00:00Z');
  expect(nameOf(sample[0], trans)).toBe('llm.ipynb');
  expect(nameOf(environment({ name: null, kind: 'shell' }), trans)).toBe(
    'a shell'
  );
  expect(kernelText(sample[1], now, trans)).toBe('busy');
  const busy = (kernel_state_since: string) =>
    environment({ kernel_state: 'busy', kernel_state_since });
  expect(kernelText(busy('2026-01-01T11:00:00Z'), now, trans)).toBe(
    'busy 1 h 00 min'
  );
  expect(kernelText(busy('2026-01-01T11:59:30Z'), now, trans)).toBe('busy');
  expect(
    kernelText(environment({ idle_since: '2026-01-01T11:48:00Z' }), now, trans)
  ).toBe('idle 12 min');
  expect(kernelText(environment({ kind: 'command' }), now, trans)).toBe(
    'command'
  );
});
