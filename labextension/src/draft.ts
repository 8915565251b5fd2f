import type { TranslationBundle } from '@jupyterlab/translation';
import type { IDevice, IGrant, IRequest } from './api/types';
import { formatShare } from './units';
import { freeMemory } from './view';

/** What the form holds, as it was typed. */
export interface IDraft {
  /** A fraction of one device, or how many whole ones; empty: no ceiling on compute. */
  share: string;
  memory: string;
  /** UUIDs; empty: any. */
  devices: readonly string[];
  duration: string;
  name: string;
  wait: string;
}

export const HALF: IDraft = {
  share: '0.5',
  memory: '',
  devices: [],
  duration: '',
  name: '',
  wait: ''
};

/** Begin with what is held, where the form has it, so that one thing of it can be changed. */
export function draftOf(
  held: IRequest | null,
  devices: readonly IDevice[]
): IDraft {
  const { gpus, fraction, memory, devices: named } = held ?? {};
  if (!held || (gpus && fraction) || !(gpus || fraction || memory)) {
    return HALF;
  }
  const known = (named ?? []).every(name =>
    devices.some(({ uuid }) => uuid === name)
  );
  return {
    ...HALF,
    share: String(fraction ?? gpus ?? ''),
    memory: String(memory ?? ''),
    devices: known ? (named ?? []) : []
  };
}

/** Read the share; null where nothing, or no number, was typed. */
export function shareOf(draft: IDraft): number | null {
  const text = draft.share.trim().replace(',', '.');
  const number = Number(text);
  return text && Number.isFinite(number) && number > 0 ? number : null;
}

/** Return the request of the form; null when nothing, or no number, was asked for. */
export function requestOf(draft: IDraft): IRequest | null {
  const request: IRequest = {};
  const share = shareOf(draft);
  if (share !== null) {
    if (share < 1) {
      request.fraction = share;
    } else {
      request.gpus = share;
    }
  } else if (draft.share.trim()) {
    return null;
  }
  const memory = draft.memory.trim();
  if (memory) {
    request.memory = memory;
  }
  if (share === null && !memory) {
    return null;
  }
  if (draft.devices.length) {
    request.devices = [...draft.devices];
  }
  for (const field of ['duration', 'name', 'wait'] as const) {
    const text = draft[field].trim();
    if (text) {
      request[field] = text;
    }
  }
  return request;
}

/** Put a device in, or take it out; whole devices are as many as are named. */
export function withDevice(draft: IDraft, uuid: string): IDraft {
  const chosen = draft.devices.includes(uuid);
  const share = shareOf(draft);
  const whole = share !== null && share >= 1;
  if (chosen) {
    const devices = draft.devices.filter(one => one !== uuid);
    return whole && devices.length
      ? { ...draft, devices, share: String(devices.length) }
      : { ...draft, devices };
  }
  if (whole) {
    const devices = [...draft.devices, uuid];
    return { ...draft, devices, share: String(devices.length) };
  }
  // A part lives on one device: another one takes the place of the first.
  return { ...draft, devices: [uuid] };
}

/** One whole device more, or one less; what is less than a whole one becomes one, or a half. */
export function stepped(draft: IDraft, step: 1 | -1, most: number): IDraft {
  const share = shareOf(draft) ?? 0;
  const to = step > 0 ? Math.floor(share) + 1 : Math.ceil(share) - 1;
  const count = Math.min(most, to);
  return {
    ...draft,
    share: count >= 1 ? String(count) : '0.5',
    devices: draft.devices.length > 1 || count > 1 ? [] : draft.devices
  };
}

/** Say what a share is: `half of one GPU`, `30 % of one GPU`, `2 whole GPUs`. */
export function shareText(draft: IDraft, trans: TranslationBundle): string {
  const share = shareOf(draft);
  if (share === null) {
    return draft.share.trim()
      ? trans.__('not a number')
      : trans.__('no ceiling on compute');
  }
  if (share < 1) {
    return share === 0.5
      ? trans.__('half of one GPU')
      : trans.__('%1 of one GPU', formatShare(10_000 * share));
  }
  if (draft.memory.trim()) {
    return trans._n('memory on 1 GPU', 'memory on each of %1', share);
  }
  return trans._n('1 whole GPU', '%1 whole GPUs', share);
}

/** What a request would leave on a device. Memory in bytes. */
export interface ILanding {
  device: IDevice;
  /** What it would get there; null: nothing. */
  grant: IGrant | null;
  /** What would be left for others; null where the driver does not tell. */
  left: number | null;
}

/** What placing grants for an environment leaves on each device. */
export function landings(
  devices: readonly IDevice[],
  own: string,
  grants: readonly IGrant[]
): readonly ILanding[] {
  return devices.map(device => {
    const grant = grants.find(one => one.device === device.uuid) ?? null;
    const others = device.grants.filter(one => one.environment !== own);
    const free = freeMemory({ ...device, grants: others });
    const left =
      free === null || grant?.exclusive
        ? free && 0
        : Math.max(0, free - (grant?.memory ?? 0));
    return { device, grant, left };
  });
}
