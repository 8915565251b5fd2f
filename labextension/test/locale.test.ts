import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import manifest from '../../package.json';
import { translated } from '../src/schema';
import { bareStringsOf, stringsOf, stringsOfSchema } from './strings';

const SOURCES = join(__dirname, '../src');
const LOCALES = join(__dirname, '../../genv_jupyter/locale');
const DOMAIN = 'genv_jupyter';
const SCHEMA = join(__dirname, '../schema/gpu.json');
const strings = [...stringsOf(SOURCES), ...stringsOfSchema(SCHEMA)];

type Catalogue = Record<string, string[]> & { '': Record<string, string> };

function catalogueOf(language: string): Catalogue {
  const path = join(LOCALES, language, 'LC_MESSAGES', `${DOMAIN}.json`);
  return JSON.parse(readFileSync(path, 'utf8')) as Catalogue;
}

/** Where values go: `%1`, `%2`. */
const places = (text: string) => [...new Set(text.match(/%\d/g) ?? [])].sort();

it('every string of the front end can be translated', () => {
  expect(strings.length).toBeGreaterThan(100);
  expect(bareStringsOf(SOURCES)).toEqual([]);
});

it('a schema is translated where people read it, and only there', () => {
  const trans = { gettext: (text: string) => `<${text}>` };
  const schema = {
    title: 'GPU panel',
    type: 'string',
    properties: { units: { oneOf: [{ const: 'GB', title: 'GB' }] } },
    default: 'GB'
  };
  expect(translated(schema, trans as never)).toEqual({
    title: '<GPU panel>',
    type: 'string',
    properties: { units: { oneOf: [{ const: 'GB', title: '<GB>' }] } },
    default: 'GB'
  });
});

describe.each(readdirSync(LOCALES))('%s', language => {
  const catalogue = catalogueOf(language);
  const { '': head, ...texts } = catalogue;

  it('has every string, and none that is gone', () => {
    const known = new Set(strings.map(({ text }) => text));
    const missing = [...known].filter(text => !texts[text]?.every(one => one));
    expect(missing, `to be translated in ${language}`).toEqual([]);
    const left = Object.keys(texts).filter(text => !known.has(text));
    expect(left, 'no longer said').toEqual([]);
  });

  it('has both forms of what is counted', () => {
    const counted = new Set(
      strings.filter(({ plural }) => plural !== null).map(({ text }) => text)
    );
    for (const [text, forms] of Object.entries(texts)) {
      expect(forms.length, text).toBe(counted.has(text) ? 2 : 1);
    }
  });

  it('keeps the places of values', () => {
    for (const { text, plural } of strings) {
      const forms = texts[text] ?? [];
      expect(places(forms[0]), text).toEqual(places(text));
      if (plural !== null) {
        expect(places(forms[1]), plural).toEqual(places(plural));
      }
    }
  });

  it('says what it is, as JupyterLab wants to know it', () => {
    expect(head).toEqual({
      domain: DOMAIN,
      language: language.replace('_', '-'),
      plural_forms: 'nplurals=2; plural=(n != 1);',
      version: manifest.version
    });
  });
});
