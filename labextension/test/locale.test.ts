import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import manifest from '../../package.json';
import { bareStringsOf, stringsOf } from './strings';

const SOURCES = join(__dirname, '../src');
const LOCALES = join(__dirname, '../../genv_jupyter/locale');
const DOMAIN = 'genv_jupyter';
const strings = stringsOf(SOURCES);

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
