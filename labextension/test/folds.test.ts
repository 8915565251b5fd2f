import { beforeEach, expect, it } from 'vitest';
import { Folds, type IMemory } from '../src/folds';

let kept: Map<string, unknown>;
let memory: IMemory;

beforeEach(() => {
  kept = new Map();
  memory = {
    fetch: id => Promise.resolve(kept.get(id)),
    save: (id, value) => Promise.resolve(kept.set(id, value))
  };
});

it('what is folded is remembered, and what is unfolded again is not', async () => {
  const folds = new Folds(memory);
  let changes = 0;
  folds.changed.connect(() => changes++);
  folds.toggle('devices');
  folds.toggle('notebook');
  folds.toggle('notebook');
  expect(changes).toBe(3);
  const later = new Folds(memory);
  await later.restore();
  expect(later.has('devices')).toBe(true);
  expect(later.has('notebook')).toBe(false);
});

it('what was remembered does not undo what was done meanwhile', async () => {
  new Folds(memory).toggle('devices');
  const folds = new Folds(memory);
  const restored = folds.restore();
  folds.toggle('notebook');
  await restored;
  expect(folds.has('devices')).toBe(false);
  expect(folds.has('notebook')).toBe(true);
});

it('without a memory, or with a broken one, it folds all the same', async () => {
  const broken = new Folds({
    fetch: () => Promise.reject(new Error('broken')),
    save: () => Promise.reject(new Error('broken'))
  });
  await broken.restore();
  broken.toggle('devices');
  expect(broken.has('devices')).toBe(true);
  kept.set('genv-jupyter:folded', { not: 'a list' });
  await new Folds(memory).restore();
  const none = new Folds(null);
  await none.restore();
  none.toggle('devices');
  expect(none.has('devices')).toBe(true);
});
