import type { TranslationBundle } from '@jupyterlab/translation';

const WHOLE = 10_000;
type Sizes = readonly [string, number][];
const SIZES: Record<'GiB' | 'GB', Sizes> = {
  GiB: [
    ['GiB', 2 ** 30],
    ['MiB', 2 ** 20],
    ['KiB', 2 ** 10]
  ],
  GB: [
    ['GB', 1e9],
    ['MB', 1e6],
    ['kB', 1e3]
  ]
};
const GLYPHS: Record<number, string> = {
  2500: '¼',
  5000: '½',
  7500: '¾'
};

let units: 'GiB' | 'GB' = 'GiB';

/** Choose how capacities are shown from now on. */
export function setUnits(chosen: 'GiB' | 'GB'): void {
  units = chosen;
}

/** Write bytes as capacities are shown: `23.7 GiB`. */
export function formatMemory(
  bytes: number | null,
  unit: 'GiB' | 'GB' = units
): string {
  if (bytes === null) {
    return '?';
  }
  for (const [name, size] of SIZES[unit]) {
    if (Math.abs(bytes) >= size) {
      return `${trim(bytes / size)} ${name}`;
    }
  }
  return bytes === 0 ? `0 ${unit}` : `${bytes} B`;
}

/** Write a part of an amount, the unit once where it is the same: `3.2 of 11.8 GiB`. */
export function formatPart(
  used: number | null,
  whole: number,
  between: string
): string {
  const [amount, unit] = formatMemory(whole).split(' ');
  const [part, other] = formatMemory(used).split(' ');
  const first = !used || other === unit ? part : `${part} ${other}`;
  return `${first}${between}${amount} ${unit}`;
}

/** Write hundredths of a percent: `50 %`. */
export function formatShare(compute: number): string {
  return `${trim(compute / 100)} %`;
}

/** Write hundredths of a percent as briefly as a button needs it: `½`, `0.3`. */
export function shortShare(compute: number): string {
  return GLYPHS[compute] ?? String(compute / WHOLE);
}

/** Read an amount of memory as `genv_jupyter.units` does; null when it is none. */
export function parseMemory(text: string): number | null {
  const match = /^\s*(\d*\.?\d+)\s*(?:([KMGTPE])(i?))?B?\s*$/i.exec(text);
  if (!match) {
    return null;
  }
  const power = match[2] ? 'KMGTPE'.indexOf(match[2].toUpperCase()) + 1 : 0;
  const bytes = Math.floor(
    Number(match[1]) * (match[3] ? 1024 : 1000) ** power
  );
  return bytes >= 1 ? bytes : null;
}

/** The other unit of an amount as it was written: `4G` is `3.7 GiB`, `4GiB` is `4.3 GB`. */
export function otherUnit(text: string): string {
  const bytes = parseMemory(text);
  if (bytes === null) {
    return '';
  }
  return /i/i.test(text)
    ? `${trim(bytes / 1e9)} GB`
    : formatMemory(bytes, 'GiB');
}

/** Write how long ago a moment was: `12 min`, `2 h 05 min`, `4 d`. */
export function formatAge(
  since: string,
  now: number,
  trans: TranslationBundle
): string {
  const seconds = (now - Date.parse(since)) / 1000;
  return seconds < 60 ? trans.__('just now') : formatDuration(seconds, trans);
}

/** Write how long something takes, in whole minutes: `12 min`, `2 h 05 min`, `4 d`. */
export function formatDuration(
  seconds: number,
  trans: TranslationBundle
): string {
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) {
    return trans.__('%1 min', minutes);
  }
  if (minutes < 48 * 60) {
    const rest = String(minutes % 60).padStart(2, '0');
    return trans.__('%1 h %2 min', Math.floor(minutes / 60), rest);
  }
  return trans.__('%1 d', Math.floor(minutes / (24 * 60)));
}

/** Made once: to make one takes longer than everything else that a row needs. */
const CLOCK = new Intl.DateTimeFormat([], {
  hour: '2-digit',
  minute: '2-digit',
  hourCycle: 'h23'
});

const DAY = new Intl.DateTimeFormat([], { day: 'numeric', month: 'short' });

/** Write a moment on the reader's clock, with the day where it is not today. */
export function formatClock(since: string, now: number): string {
  const date = new Date(since);
  const time = CLOCK.format(date);
  const today = date.toDateString() === new Date(now).toDateString();
  return today ? time : `${DAY.format(date)} ${time}`;
}

function trim(value: number): string {
  return String(Math.round(value * 10) / 10);
}
