import type { IDisposable } from '@lumino/disposable';
import { Signal, type ISignal } from '@lumino/signaling';
import type { IEvent } from './api/types';
import type { IKnownQuota } from './quota';
import {
  applyEvent,
  INITIAL,
  withEntry,
  type Busy,
  type Connection,
  type IRefusal,
  type IState
} from './state';

/** The one place where the state is; every face reads it and listens to `changed`. */
export class GpuStore implements IDisposable {
  get state(): IState {
    return this._state;
  }

  get changed(): ISignal<GpuStore, void> {
    return this._changed;
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  apply(event: IEvent): void {
    this.set(applyEvent(this._state, event));
  }

  connect(connection: Connection): void {
    this.set({ ...this._state, connection });
  }

  /** Say what the reader may have. */
  bound(quota: IKnownQuota | null): void {
    this.set({ ...this._state, quota });
  }

  /** Say what is under way for an environment; a new action makes an older refusal go. */
  begin(id: string, busy: Busy): void {
    this.set({
      ...this._state,
      busy: withEntry(this._state.busy, id, busy),
      refusals: withEntry(this._state.refusals, id, null)
    });
  }

  end(id: string, refusal: IRefusal | null = null): void {
    this.set({
      ...this._state,
      busy: withEntry(this._state.busy, id, null),
      refusals: withEntry(this._state.refusals, id, refusal)
    });
  }

  dismiss(id: string): void {
    this.set({
      ...this._state,
      refusals: withEntry(this._state.refusals, id, null)
    });
  }

  dispose(): void {
    if (!this._isDisposed) {
      this._isDisposed = true;
      Signal.clearData(this);
    }
  }

  private set(state: IState): void {
    if (!this._isDisposed) {
      this._state = state;
      this._changed.emit();
    }
  }

  private _state = INITIAL;
  private _isDisposed = false;
  private _changed = new Signal<this, void>(this);
}
