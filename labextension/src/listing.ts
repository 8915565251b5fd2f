import type { TranslationBundle } from '@jupyterlab/translation';
import type { IDevice, IEnvironment, IUsage } from './api/types';
import { deviceLabel } from './view';

export type SortKey = 'memory' | 'used' | 'name' | 'user' | 'since' | 'idle';

/** An environment as the list of all of them has it. Memory in bytes. */
export interface IRow {
  environment: IEnvironment;
  usage: IUsage | undefined;
  /** Labels of the devices on which it holds something. */
  devices: readonly string[];
  cap: number;
  /** Null where it is not known, or not told. */
  used: number | null;
  peak: number | null;
  /** When it got what it has held longest; null where it holds nothing. */
  since: string | null;
  /** Whether it is the caller's: only of those are the variables told. */
  mine: boolean;
}

/** What an entry of the list is: an environment, or the heading of somebody's. */
export type Entry =
  | { kind: 'row'; key: string; row: IRow }
  | { kind: 'group'; key: string; user: string; count: number; cap: number };

/** What is shown of the list, and in which order. */
export interface IListing {
  sort: SortKey;
  grouped: boolean;
  filter: string;
  /** Whether those that hold nothing and wait for nothing are listed too. */
  all: boolean;
}

/** Whether an environment holds something, or waits for it. */
export function isActive(environment: IEnvironment): boolean {
  return environment.grants.length > 0 || environment.pending !== null;
}

/** What is written in the list about an environment. */
export function rowOf(
  environment: IEnvironment,
  usage: IUsage | undefined,
  labels: ReadonlyMap<string, string>
): IRow {
  let cap = 0;
  let since: string | null = null;
  const devices: string[] = [];
  for (const grant of environment.grants) {
    cap += grant.memory;
    devices.push(labels.get(grant.device) ?? grant.device.slice(0, 12));
    if (since === null || grant.since < since) {
      since = grant.since;
    }
  }
  let used: number | null = usage?.grants.length ? 0 : null;
  let peak = used;
  for (const grant of usage?.grants ?? []) {
    const { memory_used: part, memory_peak: most } = grant;
    used = used === null || part === null ? null : used + part;
    peak = peak === null || most === null ? null : peak + most;
  }
  const mine = environment.processes !== null;
  return { environment, usage, devices, cap, used, peak, since, mine };
}

/** Makes the rows; one of which nothing has changed stays the same. */
export class Rows {
  of(
    environments: ReadonlyMap<string, IEnvironment>,
    usage: ReadonlyMap<string, IUsage>,
    labels: ReadonlyMap<string, string>
  ): readonly IRow[] {
    const known = this._labels === labels ? this._known : new Map();
    const rows = new Map<string, IRow>();
    for (const [id, environment] of environments) {
      const used = usage.get(id);
      const row: IRow | undefined = known.get(id);
      const same = row?.environment === environment && row.usage === used;
      rows.set(id, same ? row : rowOf(environment, used, labels));
    }
    this._known = rows;
    this._labels = labels;
    return [...rows.values()];
  }

  private _known = new Map<string, IRow>();
  private _labels: ReadonlyMap<string, string> | null = null;
}

/** How devices are called, by UUID. */
export function labelsOf(
  devices: readonly IDevice[],
  trans: TranslationBundle
): ReadonlyMap<string, string> {
  return new Map(devices.map(one => [one.uuid, deviceLabel(one, trans)]));
}

/** What an environment is called: its name, or what it is. */
export function nameOf(
  environment: IEnvironment,
  trans: TranslationBundle
): string {
  if (environment.name) {
    return environment.name;
  }
  switch (environment.kind) {
    case 'command':
      return trans.__('a command');
    case 'shell':
      return trans.__('a shell');
    default:
      return trans.__('a kernel');
  }
}

/** Filter, sort and group the rows. */
export function arrange(
  rows: readonly IRow[],
  listing: IListing
): readonly Entry[] {
  const words = listing.filter.toLowerCase().split(/\s+/).filter(Boolean);
  const shown = rows.filter(
    row => (listing.all || isActive(row.environment)) && matches(row, words)
  );
  shown.sort(ORDERS[listing.sort]);
  const entry = (row: IRow): Entry => ({
    kind: 'row',
    key: row.environment.id,
    row
  });
  if (!listing.grouped) {
    return shown.map(entry);
  }
  const groups = new Map<string, IRow[]>();
  for (const row of shown) {
    const { user } = row.environment;
    const group = groups.get(user);
    if (group) {
      group.push(row);
    } else {
      groups.set(user, [row]);
    }
  }
  return [...groups].flatMap(([user, group]): Entry[] => [
    {
      kind: 'group',
      key: `user ${user}`,
      user,
      count: group.length,
      cap: group.reduce((sum, row) => sum + row.cap, 0)
    },
    ...group.map(entry)
  ]);
}

function matches(row: IRow, words: readonly string[]): boolean {
  if (!words.length) {
    return true;
  }
  const { name, user, path, kernel_state: state } = row.environment;
  const text = [name, user, path, state, ...row.devices].join(' ');
  const lower = text.toLowerCase();
  return words.every(word => lower.includes(word));
}

type Order = (one: IRow, other: IRow) => number;

const byText = (one: string, other: string): number =>
  one < other ? -1 : one > other ? 1 : 0;

/** Ends each order, so that rows of equal rank keep their places. */
const byId: Order = (one, other) =>
  byText(one.environment.id, other.environment.id);

const byName: Order = (one, other) =>
  byText(one.environment.name ?? '', other.environment.name ?? '') ||
  byId(one, other);

const ORDERS: Record<SortKey, Order> = {
  memory: (one, other) => other.cap - one.cap || byName(one, other),
  used: (one, other) =>
    (other.used ?? -1) - (one.used ?? -1) || byName(one, other),
  name: byName,
  user: (one, other) =>
    byText(one.environment.user, other.environment.user) || byName(one, other),
  since: (one, other) =>
    byText(one.since ?? '~', other.since ?? '~') || byName(one, other),
  // The longest idle first, and whoever is not idle at the end.
  idle: (one, other) =>
    byText(
      one.environment.idle_since ?? '~',
      other.environment.idle_since ?? '~'
    ) || byName(one, other)
};
