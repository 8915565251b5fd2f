import type { ISettingRegistry } from '@jupyterlab/settingregistry';
import type { TranslationBundle } from '@jupyterlab/translation';

/** What of a schema people read. */
const READ = ['title', 'description', 'jupyter.lab.setting-icon-label'];

/**
 * Return a schema in the reader's language.
 *
 * The server translates schemas by catalogues of language packs alone, and ours is none of those.
 */
export function translated<T>(part: T, trans: TranslationBundle): T {
  if (Array.isArray(part)) {
    return part.map((one: unknown) => translated(one, trans)) as T;
  }
  if (part === null || typeof part !== 'object') {
    return part;
  }
  const entries = Object.entries(part).map(([key, value]: [string, unknown]) =>
    typeof value === 'string' && READ.includes(key)
      ? // eslint-disable-next-line jupyter/no-dynamic-translation -- they are in the schema
        [key, trans.gettext(value)]
      : [key, translated(value, trans)]
  );
  return Object.fromEntries(entries) as T;
}

/** Have the settings editor show what can be set in the reader's language. */
export function speak(
  registry: ISettingRegistry | null,
  plugin: string,
  trans: TranslationBundle
): void {
  registry?.transform(plugin, {
    fetch: found => ({ ...found, schema: translated(found.schema, trans) })
  });
}
