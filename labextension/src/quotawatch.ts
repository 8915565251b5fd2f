import type { IDisposable } from '@lumino/disposable';
import type { IGrant, IQuota } from './api/types';
import { isOver, isUnsummed } from './quota';
import { isMine, type IState } from './state';
import type { GpuStore } from './store';

/** GPU hours are first added up when somebody wants to know them: so often, and so soon, again. */
const TRIES = 5;
const AGAIN = 1000;

/** What has to be known for it. */
export interface IQuotaSource {
  quota(): Promise<IQuota>;
}

/**
 * Keeps the reader's quota in the store, as long as somebody looks.
 *
 * It is not polled: it is asked for when a rule of quotas or what is counted has changed, which the
 * stream of events tells, and when a period begins anew. Where no rule bounds anybody it never is.
 */
export class QuotaWatch implements IDisposable {
  constructor(
    private readonly source: IQuotaSource,
    private readonly store: GpuStore
  ) {}

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  /** Somebody looks, who may just have come. */
  look(come = false): void {
    const { state } = this.store;
    if (state.connection.kind !== 'open') {
      this._key = null;
      this._tries = 0;
    } else if (!state.health?.quotas) {
      this._key = null;
      if (state.quota) {
        this.store.bound(null);
      }
    } else if (!this._asking && (come || this.changed(state))) {
      void this.ask();
    }
  }

  dispose(): void {
    this._isDisposed = true;
    clearTimeout(this._timer);
  }

  private changed(state: IState): boolean {
    const { quota } = state;
    return this._key !== keyOf(state) || (!!quota && isOver(quota, Date.now()));
  }

  private async ask(): Promise<void> {
    clearTimeout(this._timer);
    this._asking = true;
    const asked = this.store.state;
    let known = asked.quota;
    try {
      known = { view: await this.source.quota(), at: Date.now() };
    } catch (error) {
      if ((error as { status?: number }).status === undefined) {
        throw error;
      }
      // What was known stays; the next change of what is held asks again.
    } finally {
      this._asking = false;
    }
    if (this._isDisposed || !this.store.state.health?.quotas) {
      return;
    }
    this._key = keyOf({ ...asked, quota: known });
    if (known && isUnsummed(known.view) && this._tries++ < TRIES) {
      this._timer = setTimeout(() => this.look(true), AGAIN);
    }
    this.store.bound(known);
  }

  private _asking = false;
  private _isDisposed = false;
  /** What it was counted from when it was asked for. */
  private _key: string | null = null;
  private _timer: ReturnType<typeof setTimeout> | undefined;
  private _tries = 0;
}

/** All that the reader's quota depends on, of what the stream tells. */
function keyOf(state: IState): string {
  const user = state.health?.user;
  const held = [...state.environments.values()]
    .filter(one => one.grants.length && isMine(state, one))
    .map(one => [one.id, one.grants.map(heldOf)]);
  const waiting = state.queue.filter(one => one.user === user).length;
  const told = state.notices.filter(one => one.kind === 'quota');
  const said = told.map(one => one.message);
  return JSON.stringify([state.health?.quotas, held, waiting, said]);
}

function heldOf(grant: IGrant): unknown[] {
  const { device, memory, compute, exclusive, state } = grant;
  return [device, memory, compute, exclusive, state];
}
