import { nullTranslator } from '@jupyterlab/translation';
import type {
  IDevice,
  IDeviceGrant,
  IEnvironment,
  IEvent,
  IGrant,
  IGrantUsage,
  IUsage
} from '../src/api/types';

const GIB = 2 ** 30;

export const trans = nullTranslator.load('genv_jupyter');

export function device(changes: Partial<IDevice> = {}): IDevice {
  return {
    uuid: 'GPU-0',
    index: 0,
    name: 'Simulated GPU 24 GiB',
    kind: 'gpu',
    parent: null,
    memory_total: 24 * GIB,
    memory_usable: 24 * GIB,
    memory_used: 0,
    utilization: null,
    health: 'ok',
    simulated: true,
    grants: [],
    external_memory: 0,
    unattributed_memory: 0,
    environments_memory: 0,
    memory_utilization: null,
    temperature: null,
    power: null,
    power_limit: null,
    sm_clock: null,
    memory_clock: null,
    ecc_errors: null,
    xid: null,
    trouble: null,
    maintenance: null,
    ...changes
  };
}

export function deviceGrant(changes: Partial<IDeviceGrant> = {}): IDeviceGrant {
  return {
    environment: 'kernel-1',
    user: 'user',
    name: 'llm.ipynb',
    memory: 12 * GIB,
    compute: 5000,
    exclusive: false,
    state: 'granted',
    since: '2026-01-01T12:00:00Z',
    ...changes
  };
}

export function grant(changes: Partial<IGrant> = {}): IGrant {
  const limit = { strength: 'none', verified: null, reason: '' } as const;
  return {
    device: 'GPU-0',
    memory: 12 * GIB,
    compute: 5000,
    exclusive: false,
    state: 'granted',
    applied: 'live',
    since: '2026-01-01T12:00:00Z',
    limits: { memory: limit, compute: limit, devices: limit },
    ...changes
  };
}

export function grantUsage(changes: Partial<IGrantUsage> = {}): IGrantUsage {
  return {
    device: 'GPU-0',
    memory: 12 * GIB,
    memory_used: 3 * GIB,
    memory_peak: 4 * GIB,
    peak_since: '2026-01-01T12:00:00Z',
    seconds_used: 600,
    since: '2026-01-01T12:00:00Z',
    utilization: null,
    utilization_mean: null,
    utilization_max: null,
    utilization_seconds: null,
    ...changes
  };
}

export function usage(changes: Partial<IUsage> = {}): IUsage {
  return {
    environment: 'kernel-1',
    at: '2026-01-01T12:10:00Z',
    simulated: false,
    grants: [grantUsage()],
    advice: 'The amount fits.',
    ...changes
  };
}

export function environment(changes: Partial<IEnvironment> = {}): IEnvironment {
  return {
    id: 'kernel-1',
    previous: null,
    user: 'user',
    kind: 'kernel',
    name: 'llm.ipynb',
    path: 'llm.ipynb',
    server: 'server-1',
    kernel_state: 'idle',
    idle_since: null,
    kernel_state_since: null,
    request: null,
    pending: null,
    grants: [],
    state: 'released',
    applied: null,
    created: '2026-01-01T12:00:00Z',
    expires: null,
    cuda: 'unknown',
    reason: null,
    ended: null,
    pid: null,
    environ: null,
    processes: null,
    ...changes
  };
}

export function event(changes: Partial<IEvent> = {}): IEvent {
  return {
    revision: 1,
    snapshot: false,
    devices: [],
    environments: [],
    usage: [],
    removed: [],
    wants: [],
    health: null,
    notices: null,
    leftovers: null,
    queue: null,
    figures: null,
    ...changes
  };
}
