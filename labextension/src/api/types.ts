/**
 * The types that travel, as `genv_jupyter/model.py` has them.
 *
 * Memory is an integer of bytes, compute an integer in hundredths of a percent (5000 is 50 %),
 * times are RFC 3339 UTC, unknown values are null.
 */

export interface IRequest {
  gpus?: number | null;
  fraction?: number | null;
  memory?: number | string | null;
  devices?: string[] | null;
  name?: string | null;
}

export interface IGrant {
  device: string;
  memory: number;
  compute: number | null;
  exclusive: boolean;
  state: 'reserved' | 'granted' | 'draining' | 'contended' | 'lost';
  applied: 'live' | 'at_restart' | 'pending' | 'unknown' | null;
  since: string;
}

export interface IEnvironment {
  id: string;
  user: string;
  kind: 'kernel' | 'command' | 'shell';
  name: string | null;
  path: string | null;
  kernel_state:
    'starting' | 'idle' | 'busy' | 'restarting' | 'dead' | 'unknown' | null;
  request: IRequest | null;
  grants: IGrant[];
  state:
    | 'reserved'
    | 'waiting'
    | 'granted'
    | 'active'
    | 'draining'
    | 'released'
    | 'held';
  applied: 'live' | 'at_restart' | 'pending' | 'unknown' | null;
  cuda: 'initialized' | 'not_initialized' | 'unknown';
  reason: string | null;
}

export interface IDeviceGrant {
  environment: string;
  user: string;
  name: string | null;
  memory: number;
  compute: number | null;
  exclusive: boolean;
  state: IGrant['state'];
  since: string;
}

export interface IDevice {
  uuid: string;
  index: number | null;
  name: string | null;
  kind: 'gpu' | 'mig';
  parent: string | null;
  memory_total: number | null;
  memory_usable: number | null;
  memory_used: number | null;
  utilization: number | null;
  health: 'ok' | 'lost' | 'unreliable' | 'unknown';
  simulated: boolean;
  grants: IDeviceGrant[];
  external_memory: number | null;
  unattributed_memory: number | null;
}

export interface IHealth {
  version: string;
  simulated: boolean;
  driver: string | null;
  notices?: string[];
}

export interface IEvent {
  revision: number;
  snapshot?: boolean;
  devices?: IDevice[];
  environments?: IEnvironment[];
  removed?: string[];
  health?: IHealth | null;
}
