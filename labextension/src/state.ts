import type {
  IDevice,
  IDeviceGrant,
  IEnvironment,
  IEvent,
  IHealth,
  ILeftover,
  INotice,
  IQueueTicket,
  IRequest,
  IUsage
} from './api/types';
import type { IKnownQuota } from './quota';
import { withSample, type ISample } from './series';

/** What is known of the way to the broker. */
export type Connection =
  | { kind: 'connecting' | 'open' | 'absent' | 'disconnected' }
  | { kind: 'refused'; status: number; message: string; hint: string };

/** Why an action was refused: what happened, and what to do next. */
export interface IRefusal {
  message: string;
  hint: string;
  /** What was asked for. */
  request?: IRequest;
  /** Whether waiting may help: there is such a thing, and others have it. */
  taken?: boolean;
  /** Who holds what was asked for. */
  holders?: readonly IDeviceGrant[];
}

export type Busy = 'attach' | 'release' | 'restart' | 'leave' | 'end';

/** How a leftover process is named where actions are kept: no other ever has that name. */
export function leftoverKey(leftover: { pid: number; start: number }): string {
  return `${leftover.pid}-${leftover.start}`;
}

/** All that the faces show; replaced, never changed. */
export interface IState {
  readonly connection: Connection;
  /** Whether a snapshot has come since the page was opened. */
  readonly loaded: boolean;
  readonly health: IHealth | null;
  readonly devices: readonly IDevice[];
  readonly environments: ReadonlyMap<string, IEnvironment>;
  /** What is really used, by environment, of those that may be seen. */
  readonly usage: ReadonlyMap<string, IUsage>;
  /** How busy each device was in the last minutes. */
  readonly loads: ReadonlyMap<string, readonly ISample[]>;
  /** What the broker tells of one's environments, the oldest first. */
  readonly notices: readonly INotice[];
  /** Who waits for devices, the first first. */
  readonly queue: readonly IQueueTicket[];
  /** Processes that outlived what had started them. */
  readonly leftovers: readonly ILeftover[];
  /** What the reader may have, as it was asked for last; null: nobody has looked yet. */
  readonly quota: IKnownQuota | null;
  readonly busy: ReadonlyMap<string, Busy>;
  readonly refusals: ReadonlyMap<string, IRefusal>;
}

export const INITIAL: IState = {
  connection: { kind: 'connecting' },
  loaded: false,
  health: null,
  devices: [],
  environments: new Map(),
  usage: new Map(),
  loads: new Map(),
  notices: [],
  queue: [],
  leftovers: [],
  quota: null,
  busy: new Map(),
  refusals: new Map()
};

/** Apply a message of the stream; devices and environments that did not change stay the same. */
export function applyEvent(
  state: IState,
  event: IEvent,
  at = Date.now()
): IState {
  const { snapshot: fresh, removed } = event;
  const devices = new Map(
    fresh ? [] : state.devices.map(device => [device.uuid, device])
  );
  const loads = new Map(state.loads);
  for (const device of event.devices) {
    const { uuid, utilization: value } = device;
    devices.set(uuid, device);
    loads.set(uuid, withSample(loads.get(uuid) ?? [], { at, value }));
  }
  const environments = new Map(fresh ? [] : state.environments);
  for (const environment of event.environments) {
    environments.set(environment.id, environment);
  }
  const usage = new Map(fresh ? [] : state.usage);
  for (const used of event.usage) {
    usage.set(used.environment, used);
  }
  for (const id of removed) {
    usage.delete(id);
    devices.delete(id);
    environments.delete(id);
  }
  for (const id of loads.keys()) {
    if (!devices.has(id)) {
      loads.delete(id);
    }
  }
  return {
    ...state,
    connection: fresh ? { kind: 'open' } : state.connection,
    loaded: state.loaded || fresh,
    health: event.health ?? state.health,
    devices: [...devices.values()].sort(byIndex),
    environments,
    usage,
    loads,
    notices: event.notices ?? (fresh ? [] : state.notices),
    queue: event.queue ?? (fresh ? [] : state.queue),
    leftovers: event.leftovers ?? (fresh ? [] : state.leftovers),
    refusals: fresh ? state.refusals : without(state.refusals, removed)
  };
}

/** Whether an environment is the reader's: an administrator may do things to others', too. */
export function isMine(
  { health }: IState,
  environment: IEnvironment | undefined
): boolean {
  const user = health?.user ?? null;
  return (
    !!environment &&
    environment.processes !== null &&
    (user === null || environment.user === user)
  );
}

/** The notices that are told to the reader, and those that an administrator sees besides. */
export function noticesOf({ health, notices }: IState): {
  mine: readonly INotice[];
  others: readonly INotice[];
} {
  const user = health?.user ?? null;
  const mine = notices.filter(one => user === null || one.user === user);
  return { mine, others: notices.filter(one => !mine.includes(one)) };
}

/** Return a map with one entry set, or gone where the value is null. */
export function withEntry<T>(
  map: ReadonlyMap<string, T>,
  key: string,
  value: T | null
): ReadonlyMap<string, T> {
  const copy = new Map(map);
  if (value === null) {
    copy.delete(key);
  } else {
    copy.set(key, value);
  }
  return copy;
}

function without<T>(
  map: ReadonlyMap<string, T>,
  keys: readonly string[]
): ReadonlyMap<string, T> {
  return keys.some(key => map.has(key))
    ? new Map([...map].filter(([key]) => !keys.includes(key)))
    : map;
}

function byIndex(one: IDevice, other: IDevice): number {
  const order =
    (one.index ?? Number.MAX_SAFE_INTEGER) -
    (other.index ?? Number.MAX_SAFE_INTEGER);
  return order || (one.uuid < other.uuid ? -1 : 1);
}
