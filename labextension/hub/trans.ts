import type { TranslationBundle } from '@jupyterlab/translation';

/** Put values where `%1`, `%2` stand. */
function filled(text: string, values: unknown[]): string {
  return text.replace(/%(\d)/g, (whole, number: string) => {
    const value = values[Number(number) - 1];
    return value === undefined ? whole : String(value);
  });
}

/** English, as it is written: what the components ask for where nothing is translated. */
export const trans = {
  __: (text: string, ...values: unknown[]) => filled(text, values),
  _n: (one: string, many: string, count: number, ...values: unknown[]) =>
    filled(count === 1 ? one : many, [count, ...values]),
  gettext: (text: string, ...values: unknown[]) => filled(text, values)
} as unknown as TranslationBundle;
