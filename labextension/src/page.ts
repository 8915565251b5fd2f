import type { IDisposable } from '@lumino/disposable';
import { Signal, type ISignal } from '@lumino/signaling';

const TICK = 20_000;
/** Milliseconds. Pages in the background are ticked once a minute: more than that is sleep. */
const SLEEP = 90_000;

/** What happens to the page: it is looked at again, or the computer was asleep or offline. */
export type Resumed = 'shown' | 'woken';

/** Whether the page can be seen, and when it comes back. */
export class Page implements IDisposable {
  constructor() {
    this._timer = setInterval(() => this.tick(), TICK);
    document.addEventListener('visibilitychange', this.onVisibility);
    window.addEventListener('online', this.onOnline);
  }

  get resumed(): ISignal<Page, Resumed> {
    return this._resumed;
  }

  get hidden(): boolean {
    return document.hidden;
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    if (!this._isDisposed) {
      this._isDisposed = true;
      clearInterval(this._timer);
      document.removeEventListener('visibilitychange', this.onVisibility);
      window.removeEventListener('online', this.onOnline);
      Signal.clearData(this);
    }
  }

  private tick(): void {
    const now = Date.now();
    const slept = now - this._ticked > SLEEP;
    this._ticked = now;
    if (slept) {
      this._resumed.emit('woken');
    }
  }

  private readonly onVisibility = (): void => {
    if (!document.hidden) {
      this.tick(); // the timer may come later than the eyes
      this._resumed.emit('shown');
    }
  };

  private readonly onOnline = (): void => {
    this._resumed.emit('woken');
  };

  private _isDisposed = false;
  private _resumed = new Signal<this, Resumed>(this);
  private _ticked = Date.now();
  private readonly _timer: ReturnType<typeof setInterval>;
}
