import { expect, it } from 'vitest';
import schema from '../schema/gpu.json';
import { choicesOf, Settings, USUAL } from '../src/settings';
import { formatMemory, otherUnit, setUnits } from '../src/units';

it('what the schema has as usual is what is usual here', () => {
  const defaults = Object.fromEntries(
    Object.entries(schema.properties).map(([key, it]) => [key, it.default])
  );
  expect(choicesOf(defaults)).toEqual(USUAL);
  expect(choicesOf({})).toEqual(USUAL);
});

it('what is chosen is taken, what makes no sense is not', () => {
  const chosen = choicesOf({
    position: 'left',
    units: 'GB',
    colours: 'safe',
    sections: { queue: false },
    refresh: 0,
    notifications: false,
    remember: true,
    launcher: ' '
  });
  expect(chosen).toEqual({
    position: 'left',
    units: 'GB',
    colours: 'safe',
    hidden: new Set(['queue']),
    refresh: 1,
    notifications: false,
    remember: true,
    launcher: null
  });
  expect(choicesOf({ refresh: 'often' }).refresh).toBe(USUAL.refresh);
});

it('a registry that does not know us changes nothing', async () => {
  const settings = new Settings();
  await settings.follow(
    { load: () => Promise.reject(new Error('404')) } as never,
    'genv-jupyter:gpu'
  );
  expect(settings.choices).toBe(USUAL);
});

it('capacities have the unit that was chosen; the other unit is still the other', () => {
  setUnits('GB');
  expect(formatMemory(12 * 2 ** 30)).toBe('12.9 GB');
  expect(formatMemory(0)).toBe('0 GB');
  expect(otherUnit('4G')).toBe('3.7 GiB');
  setUnits('GiB');
  expect(formatMemory(12 * 2 ** 30)).toBe('12 GiB');
});
