import type { TranslationBundle } from '@jupyterlab/translation';
import type { IDevice, IEnvironment } from './api/types';
import { amount, deviceLabel } from './view';

/** How a restart ended, or that it is given up. */
export interface IOutcome {
  id: string;
  /** The environment as it was before. */
  before: IEnvironment;
  /** As it is now; null when it has ended. */
  after: IEnvironment | null;
}

/** What is to be said to the user. */
export interface ISaid {
  kind: 'success' | 'warning' | 'error';
  text: string;
}

interface IKnown {
  environment: IEnvironment;
  /** Whether the process is being replaced. */
  away: boolean;
  /** The failure that was told. */
  told: string | null;
}

/** Follows the processes behind environments, and sees when one has been replaced. */
export class Restarts {
  /** Return what has come to an end since the last look. */
  look(environments: ReadonlyMap<string, IEnvironment>): IOutcome[] {
    const outcomes: IOutcome[] = [];
    for (const [id, known] of this._known) {
      if (!environments.has(id)) {
        this._known.delete(id);
        if (known.away) {
          outcomes.push({ id, before: known.environment, after: null });
        }
      }
    }
    for (const [id, now] of environments) {
      const known = this._known.get(id);
      const before = known?.environment;
      if (!known || !before) {
        if (isRunning(now)) {
          this._known.set(id, { environment: now, away: false, told: null });
        }
      } else if (now.kernel_state === 'dead' && !isRunning(now)) {
        if (known.told !== now.reason) {
          known.told = now.reason;
          outcomes.push({ id, before, after: now });
        }
        known.away = true;
      } else if (!isRunning(now)) {
        known.away = true;
        known.told = null;
      } else if (now.pid === before.pid) {
        this._known.set(id, { environment: now, away: false, told: null });
      } else if (now.kernel_state === 'idle' || now.kernel_state === 'busy') {
        this._known.set(id, { environment: now, away: false, told: null });
        outcomes.push({ id, before, after: now });
      } else {
        known.away = true; // it is there, and does not answer yet
      }
    }
    return outcomes;
  }

  private readonly _known = new Map<string, IKnown>();
}

/** Say how a restart ended; null where no device has to do with it. */
export function outcomeText(
  outcome: IOutcome,
  devices: readonly IDevice[],
  trans: TranslationBundle
): ISaid | null {
  const { before, after } = outcome;
  const name = before.name ?? trans.__('The notebook');
  const label = (uuid: string) => {
    const device = devices.find(one => one.uuid === uuid);
    return device ? deviceLabel(device, trans) : uuid.slice(0, 12);
  };
  const list = (uuids: string[]) => uuids.map(label).join(', ');
  const mark = devices.some(device => device.simulated)
    ? ` ${trans.__('SIMULATED')}`
    : '';
  const wanted = before.grants
    .filter(grant => grant.state !== 'draining')
    .map(grant => grant.device);
  if (!before.grants.length && !after?.grants.length) {
    return null;
  }
  if (!after) {
    const text = trans.__('The kernel of %1 did not come back.', name);
    const given = trans.__('%1 was given back.', list(wanted));
    return {
      kind: 'error',
      text: wanted.length ? `${text} ${given}${mark}` : text
    };
  }
  if (!isRunning(after)) {
    return { kind: 'error', text: `${name}: ${after.reason ?? ''}`.trim() };
  }
  const back = after.grants.map(grant => grant.device);
  const lost = wanted.filter(device => !back.includes(device));
  const freed = before.grants
    .map(grant => grant.device)
    .filter(device => !back.includes(device) && !lost.includes(device));
  const held = after.grants.map(
    grant =>
      `${label(grant.device)}: ${amount(grant, trans)}, ${standing(grant, trans)}`
  );
  const parts = [
    ...held,
    ...(freed.length ? [trans.__('%1 is free now', list(freed))] : []),
    ...(lost.length ? [trans.__('%1 was not kept', list(lost))] : [])
  ];
  const well =
    !lost.length &&
    after.grants.every(
      grant => grant.state === 'granted' && grant.applied === 'live'
    );
  const text = `${trans.__('%1 restarted.', name)} ${parts.join('; ')}.${mark}`;
  return { kind: well ? 'success' : 'warning', text };
}

/** Whether a new process has what a grant gives. */
function standing(
  grant: IEnvironment['grants'][number],
  trans: TranslationBundle
): string {
  if (grant.state === 'lost') {
    return trans.__('device lost');
  }
  if (grant.state === 'contended') {
    return trans.__('contended');
  }
  switch (grant.applied) {
    case 'live':
      return trans.__('live');
    case 'pending':
      return trans.__('the kernel is being told');
    case 'at_restart':
      return trans.__('not applied, takes effect at restart');
    default:
      return trans.__('not confirmed by the kernel');
  }
}

function isRunning(environment: IEnvironment): boolean {
  const away = environment.state === 'held' || environment.state === 'reserved';
  return !away && environment.pid !== null && environment.pid !== undefined;
}
