import type { TranslationBundle } from '@jupyterlab/translation';
import type { IEnvironment, IGrantUsage, IUsage } from './api/types';
import { formatClock, formatMemory, formatPart } from './units';

/** Part of the cap from which on the use is close to it. */
const CLOSE = 0.9;
/** Milliseconds: a peak that is known since later than its grant says since when. */
const LATE = 5000;

export type Level = 'unknown' | 'fine' | 'close' | 'over';

/** How near to its cap a grant is used. */
export function levelOf(used: number | null, cap: number): Level {
  if (used === null) {
    return 'unknown';
  }
  return used > cap ? 'over' : used >= CLOSE * cap ? 'close' : 'fine';
}

/** Say what is used of a grant: `3.2 of 11.8 GiB, peak 4 GiB`. */
export function usageText(
  usage: IGrantUsage,
  trans: TranslationBundle
): string {
  const { memory, memory_used: used } = usage;
  const said =
    used === null
      ? trans.__('use unknown, of %1', formatMemory(memory))
      : formatPart(used, memory, trans.__(' of '));
  const near: Record<Level, string> = {
    unknown: '',
    fine: '',
    close: trans.__(', close to the cap'),
    over: trans.__(', over the cap')
  };
  return `${said}${near[levelOf(used, memory)]}, ${peakText(usage, trans)}`;
}

/** Since when the peak is known, where that is not the beginning of the grant. */
export function peakSince(
  usage: IGrantUsage,
  now: number,
  trans: TranslationBundle
): string | undefined {
  const { peak_since: seen, since } = usage;
  return seen && Date.parse(seen) - Date.parse(since) >= LATE
    ? trans.__('The peak was seen since %1.', formatClock(seen, now))
    : undefined;
}

/** What a notebook uses of all that it holds; null where nothing is held or told. */
export function totalOf(
  environment: IEnvironment,
  usage: IUsage | undefined
): { used: number | null; cap: number } | null {
  const held = environment.grants.filter(grant => grant.state !== 'draining');
  const seen = held.map(grant =>
    usage?.grants.find(one => one.device === grant.device)
  );
  if (!held.length || seen.includes(undefined)) {
    return null;
  }
  let used: number | null = 0;
  let cap = 0;
  for (const one of seen as IGrantUsage[]) {
    const { memory, memory_used: part } = one;
    cap += memory;
    used = used === null || part === null ? null : used + part;
  }
  return { used, cap };
}

function peakText(usage: IGrantUsage, trans: TranslationBundle): string {
  const { memory_peak: peak } = usage;
  return peak === null
    ? trans.__('peak unknown')
    : trans.__('peak %1', formatMemory(peak));
}
