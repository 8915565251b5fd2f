import type { TranslationBundle } from '@jupyterlab/translation';
import type { IDevice, IEnvironment } from './api/types';
import { formatMemory, formatShare, shortShare } from './units';

/** Milliwatts of a watt. */
const MILLI = 1000;

/** Whose something is: the notebook's in front, another of the same user, somebody else's. */
export type Owner = 'mine' | 'ours' | 'other';

/** Say whose a grant is. */
export function ownerOf(
  grant: { environment: string; user: string },
  owners: { own: string | null; user: string | null }
): Owner {
  if (grant.environment === owners.own) {
    return 'mine';
  }
  return grant.user === owners.user ? 'ours' : 'other';
}

/** A part of a device's bar. `share` is in percent of the bar. */
export interface ISegment {
  key: string;
  kind: Owner | 'draining' | 'external' | 'unattributed' | 'reserve';
  own: boolean;
  /** Alternates between neighbours of one kind, so that their border shows. */
  odd: boolean;
  share: number;
  label: string;
}

/** Return the bar of a device: grants first, then what outsiders and the driver take. */
export function segments(
  device: IDevice,
  owners: { own: string | null; user: string | null },
  trans: TranslationBundle
): ISegment[] {
  const parts: (Omit<ISegment, 'share' | 'odd'> & { bytes: number })[] = [];
  for (const grant of device.grants) {
    const owner = ownerOf(grant, owners);
    const draining = grant.state === 'draining';
    parts.push({
      key: grant.environment,
      kind: draining ? 'draining' : owner,
      own: owner === 'mine',
      bytes: grant.memory,
      label: trans.__(
        '%1 of %2: %3',
        grant.name ?? trans.__('a kernel'),
        grant.user,
        amount(grant, trans)
      )
    });
  }
  const outside: [ISegment['kind'], number | null, string][] = [
    ['external', device.external_memory, trans.__('Other processes')],
    ['unattributed', device.unattributed_memory, trans.__('Not attributed')],
    ['reserve', reserve(device), trans.__('Kept free for the driver')]
  ];
  for (const [kind, bytes, label] of outside) {
    if (bytes) {
      parts.push({
        key: kind,
        kind,
        own: false,
        bytes,
        label: `${label}: ${formatMemory(bytes)}`
      });
    }
  }
  const taken = parts.reduce((sum, part) => sum + part.bytes, 0);
  const whole = Math.max(device.memory_total ?? taken, taken);
  return parts.map(({ bytes, ...part }, index) => ({
    ...part,
    odd: index % 2 === 1,
    share: whole ? (100 * bytes) / whole : 100 / parts.length
  }));
}

/** What can still be granted on a device; null where the driver does not tell. */
export function freeMemory(device: IDevice): number | null {
  if (device.memory_usable === null) {
    return null;
  }
  if (device.health === 'lost' || device.grants.some(one => one.exclusive)) {
    return 0;
  }
  if (device.maintenance) {
    return 0;
  }
  const taken = device.grants.reduce((sum, grant) => sum + grant.memory, 0);
  const outside =
    (device.external_memory ?? 0) + (device.unattributed_memory ?? 0);
  return Math.max(0, device.memory_usable - taken - outside);
}

/** A line of the list of devices: one of them, or the GPU that is divided into those below. */
export type Branch =
  | { kind: 'device'; device: IDevice; within: boolean }
  | { kind: 'divided'; uuid: string; parts: readonly IDevice[] };

/** Put MIG instances below their GPU, which by itself cannot be had. */
export function inTree(devices: readonly IDevice[]): readonly Branch[] {
  const known = new Set(devices.map(device => device.uuid));
  const parts = new Map<string, IDevice[]>();
  for (const device of devices) {
    if (device.parent !== null) {
      const list = parts.get(device.parent);
      if (list) {
        list.push(device);
      } else {
        parts.set(device.parent, [device]);
      }
    }
  }
  const below = (parent: string): Branch[] =>
    (parts.get(parent) ?? []).map(device => ({
      kind: 'device',
      device,
      within: true
    }));
  const told = new Set<string>();
  return devices.flatMap((device): Branch[] => {
    const { parent, uuid } = device;
    if (parent === null) {
      return [{ kind: 'device', device, within: false }, ...below(uuid)];
    }
    if (known.has(parent) || told.has(parent)) {
      return [];
    }
    told.add(parent);
    const all = parts.get(parent) ?? [];
    return [{ kind: 'divided', uuid: parent, parts: all }, ...below(parent)];
  });
}

/** How people call a device: `GPU 0`, or the beginning of its UUID. */
export function deviceLabel(device: IDevice, trans: TranslationBundle): string {
  if (device.index === null) {
    return device.uuid.slice(0, 12);
  }
  return device.kind === 'mig'
    ? trans.__('MIG %1', device.index)
    : trans.__('GPU %1', device.index);
}

/** How a device is, in a line: how busy, how warm, and by how many held. */
export function deviceState(
  device: IDevice,
  folded: boolean,
  trans: TranslationBundle
): string {
  const busy =
    device.utilization === null || device.health === 'lost'
      ? ''
      : trans.__('%1 % busy', device.utilization);
  const warm =
    device.temperature === null ? '' : trans.__('%1 °C', device.temperature);
  const watts =
    device.power === null
      ? ''
      : trans.__('%1 W', Math.round(device.power / MILLI));
  const count = device.grants.length;
  const holders =
    folded && count ? trans._n('1 holder', '%1 holders', count) : '';
  return [busy, warm, watts, holders].filter(it => it).join(' · ');
}

/** What a grant gives, in words: `whole, 23.5 GiB`, `50 %, 11.8 GiB`, `3.7 GiB`. */
export function amount(
  grant: { memory: number; compute: number | null; exclusive: boolean },
  trans: TranslationBundle
): string {
  const memory = formatMemory(grant.memory);
  if (grant.exclusive) {
    return trans.__('whole, %1', memory);
  }
  return grant.compute === null
    ? memory
    : `${formatShare(grant.compute)}, ${memory}`;
}

/** What an environment has, as briefly as a button needs it: `½`, `2`, `3.7 GiB`, `none`. */
export function summary(
  environment: IEnvironment | undefined,
  trans: TranslationBundle
): string {
  const grants = environment?.grants ?? [];
  if (!grants.length) {
    return trans.__('none');
  }
  const held = grants.filter(grant => grant.state !== 'draining');
  if (!held.length) {
    return trans.__('draining');
  }
  const first = held[0];
  if (held.every(grant => grant.exclusive)) {
    return String(held.length);
  }
  const each =
    first.compute === null
      ? formatMemory(first.memory)
      : shortShare(first.compute);
  return held.length > 1 ? `${held.length} × ${each}` : each;
}

/** On which devices an environment holds something: `GPU 0`, `GPU 0, GPU 1`, `4 GPUs`. */
export function where(
  environment: IEnvironment,
  devices: readonly IDevice[],
  trans: TranslationBundle
): string {
  const held = environment.grants.filter(grant => grant.state !== 'draining');
  if (held.length > 2) {
    return trans.__('%1 GPUs', held.length);
  }
  return held
    .map(grant => {
      const device = devices.find(one => one.uuid === grant.device);
      return device ? deviceLabel(device, trans) : grant.device.slice(0, 12);
    })
    .join(', ');
}

/** Whether a kernel's process is being replaced, or could not be. */
export function replacing(
  environment: IEnvironment
): 'restarting' | 'failed' | null {
  const { state, kernel_state } = environment;
  if (state !== 'held') {
    return null;
  }
  return kernel_state === 'dead' ? 'failed' : 'restarting';
}

/** What the running process does not know yet. */
export function missing(
  environment: IEnvironment
): 'restart' | 'pending' | 'unknown' | null {
  switch (environment.applied) {
    case 'at_restart':
      return 'restart';
    case 'pending':
    case 'unknown':
      return environment.applied;
    default:
      return null;
  }
}

function reserve(device: IDevice): number {
  if (device.memory_total === null || device.memory_usable === null) {
    return 0;
  }
  return Math.max(0, device.memory_total - device.memory_usable);
}
