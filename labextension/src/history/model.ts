import type { IDisposable } from '@lumino/disposable';
import { Signal, type ISignal } from '@lumino/signaling';
import { ApiError } from '../api/client';
import type { IRefusal } from '../state';
import { SPANS, type IHistory, type Span, type Subject } from './data';

/** Fetches what is drawn of a subject. */
export type Fetch = (subject: Subject, span: Span) => Promise<IHistory>;

/** What one history tab shows, fetched again while somebody looks. */
export class HistoryModel implements IDisposable {
  constructor(
    readonly subject: Subject,
    private readonly fetch: Fetch,
    /** Seconds between two updates at least. */
    private readonly interval: () => number
  ) {}

  get changed(): ISignal<HistoryModel, void> {
    return this._changed;
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  get span(): Span {
    return this._span;
  }

  get history(): IHistory | null {
    return this._history;
  }

  get refusal(): IRefusal | null {
    return this._refusal;
  }

  get loading(): boolean {
    return this._loading;
  }

  show(span: Span): void {
    if (span !== this._span) {
      this._span = span;
      this._history = null;
      void this.refresh();
    }
  }

  /** Begin to follow, since somebody looks. */
  start(): void {
    if (!this._watched) {
      this._watched = true;
      void this.refresh();
    }
  }

  /** Rest, since nobody does. */
  stop(): void {
    this._watched = false;
    clearTimeout(this._timer);
  }

  async refresh(): Promise<void> {
    clearTimeout(this._timer);
    if (this._isDisposed || !this._watched) {
      return;
    }
    const attempt = ++this._attempt;
    this._loading = true;
    this._changed.emit();
    try {
      const history = await this.fetch(this.subject, this._span);
      if (attempt !== this._attempt) {
        return;
      }
      this._history = history;
      this._refusal = null;
    } catch (error) {
      if (!(error instanceof ApiError)) {
        throw error;
      }
      if (attempt !== this._attempt) {
        return;
      }
      this._refusal = { message: error.message, hint: error.hint };
    }
    this._loading = false;
    if (this._isDisposed) {
      return;
    }
    this._changed.emit();
    if (this._watched) {
      const seconds = Math.max(this.interval(), SPANS[this._span].step);
      this._timer = setTimeout(() => void this.refresh(), 1000 * seconds);
    }
  }

  dispose(): void {
    if (!this._isDisposed) {
      this._isDisposed = true;
      this._attempt++;
      this.stop();
      Signal.clearData(this);
    }
  }

  private _attempt = 0;
  private _changed = new Signal<this, void>(this);
  private _history: IHistory | null = null;
  private _isDisposed = false;
  private _loading = false;
  private _refusal: IRefusal | null = null;
  private _span: Span = '10m';
  private _timer: ReturnType<typeof setTimeout> | undefined;
  private _watched = false;
}
