import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';

const STYLES = join(__dirname, '../style');
const files = readdirSync(STYLES).filter(name => name.endsWith('.css'));

/** The rules of all files, a line each, without comments. */
const lines = files.flatMap(name =>
  readFileSync(join(STYLES, name), 'utf8')
    .replace(/\/\*[\s\S]*?\*\//g, '')
    .split('\n')
    .map(line => `${name}: ${line.trim()}`)
);
const saying = (what: RegExp) => lines.filter(line => what.test(line));

it('every file is part of the style', () => {
  const index = readFileSync(join(STYLES, 'index.css'), 'utf8');
  const used = [...index.matchAll(/url\('(.+?)'\)/g)].map(found => found[1]);
  expect([...used, 'index.css'].sort()).toEqual([...files].sort());
});

it('sides are said so that they are right in every script', () => {
  expect(
    saying(/(margin|padding|border)-(left|right)|[\s:](left|right)\s*[:;]/)
  ).toEqual([]);
});

it('colours are those of the theme, but for the one palette that is for the colour-blind', () => {
  const own = saying(/#[0-9a-f]{3,8}\b|\b(rgb|hsl|lab|lch|oklab|oklch)a?\(/i);
  expect(
    own.filter(line => !/^history\.css: --jp-genv-\w+: #/.test(line))
  ).toEqual([]);
  const names =
    /:\s*(black|white|red|green|blue|grey|gray|orange|yellow)\b(?!-)/i;
  expect(saying(names)).toEqual([]);
});

it('every variable of ours has a value somewhere', () => {
  const text = lines.join('\n');
  const used = new Set(
    [...text.matchAll(/var\((--jp-genv-[\w-]+)/g)].map(found => found[1])
  );
  expect(used.size).toBeGreaterThan(5);
  for (const name of used) {
    expect(text, name).toContain(`${name}:`);
  }
});

it('nothing moves, so nobody has to ask for less motion', () => {
  expect(saying(/\b(animation|transition|scroll-behavior)\b/)).toEqual([]);
});
