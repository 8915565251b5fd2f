import { ServerConnection } from '@jupyterlab/services';
import { Signal, type ISignal } from '@lumino/signaling';
import { ApiError } from '../src/api/client';
import type { ILeftover, IQueueTicket } from '../src/api/types';
import { Folds, type IMemory } from '../src/folds';
import { Page } from '../src/page';
import { leftoverKey, type Busy } from '../src/state';
import { GpuStore } from '../src/store';
import { EventStream } from '../src/stream';
import { HubClient, type IMe } from './client';
import { LineSocket } from './lines';

/** Milliseconds after which a page that nobody looks at hangs up. */
const PATIENCE = 30_000;

/** Where the browser remembers what is folded away; without it nothing is remembered. */
const memory: IMemory = {
  fetch: async id => JSON.parse(localStorage.getItem(id) ?? 'null'),
  save: async (id, value) => localStorage.setItem(id, JSON.stringify(value))
};

/** Everything the page stands on: one client, one store, one stream. */
export class Gpu {
  readonly store = new GpuStore();
  readonly folds = new Folds(memory);
  readonly page = new Page();
  readonly client: HubClient;

  constructor(base: string) {
    this.client = new HubClient(
      ServerConnection.makeSettings({
        baseUrl: base,
        WebSocket: LineSocket as unknown as typeof WebSocket
      })
    );
    this._stream = new EventStream(this.client, this.store, this.page);
    document.addEventListener('visibilitychange', () => this.look());
    this.page.resumed.connect((_, how) => {
      if (how === 'woken' && !this.page.hidden) {
        this.retry();
      }
    });
    void this.folds.restore();
    this.retry();
  }

  /** Who looks; null until that is known. */
  get me(): IMe | null {
    return this._me;
  }

  get meChanged(): ISignal<this, void> {
    return this._meChanged;
  }

  /** Connect anew. */
  retry(): void {
    this._stream.dispose();
    this._stream = new EventStream(this.client, this.store, this.page);
    this._hungUp = false;
    void this._stream.connect();
    void this.ask();
  }

  /** End what an environment has. */
  release(id: string): Promise<boolean> {
    return this.run(id, 'release', () => this.client.detach(id));
  }

  end(leftover: ILeftover): Promise<boolean> {
    return this.run(leftoverKey(leftover), 'end', () =>
      this.client.end(leftover)
    );
  }

  leave(ticket: IQueueTicket): Promise<boolean> {
    return this.run(ticket.environment, 'leave', () =>
      this.client.leave(ticket.id)
    );
  }

  maintain(device: string, on: boolean, reason = ''): Promise<boolean> {
    return this.run(device, 'attach', () =>
      this.client.maintain(device, on, reason)
    );
  }

  /** Do something; a refusal is kept where the page shows it. */
  private async run(
    id: string,
    busy: Busy,
    action: () => Promise<unknown>
  ): Promise<boolean> {
    this.store.begin(id, busy);
    try {
      await action();
      this.store.end(id);
      return true;
    } catch (error) {
      this.store.end(id, refusalOf(error));
      return false;
    }
  }

  /** Ask who looks, once the service answers. */
  private async ask(): Promise<void> {
    try {
      const me = await this.client.me();
      // What somebody may is not taken from them because the daemon is down for a while.
      this._me = { ...me, admin: me.admin ?? this._me?.admin ?? null };
      this._meChanged.emit();
      if (me.admin !== null) {
        return;
      }
    } catch (error) {
      if (!(error instanceof ApiError)) {
        throw error;
      }
    }
    // The stream meets the same and says so; it is asked again when that is over.
    this.store.changed.connect(this.again, this);
  }

  private again(): void {
    if (this.store.state.connection.kind === 'open') {
      this.store.changed.disconnect(this.again, this);
      void this.ask();
    }
  }

  /** Hang up while nobody looks; come back at once when somebody does. */
  private look(): void {
    clearTimeout(this._timer);
    if (document.hidden) {
      this._timer = setTimeout(() => {
        this._hungUp = true;
        this._stream.dispose();
      }, PATIENCE);
    } else if (this._hungUp) {
      this.retry();
    }
  }

  private _hungUp = false;
  private _me: IMe | null = null;
  private _meChanged = new Signal<this, void>(this);
  private _stream: EventStream;
  private _timer: ReturnType<typeof setTimeout> | undefined;
}

/** What a failed call says, in words. */
export function refusalOf(error: unknown): { message: string; hint: string } {
  if (!(error instanceof ApiError)) {
    throw error;
  }
  if (error.status === 0) {
    return {
      message: 'The GPU service does not answer.',
      hint: 'Nothing was changed as far as is known.'
    };
  }
  const { message, hint, status } = error;
  return { message: message || `The Hub answered ${status}.`, hint };
}
