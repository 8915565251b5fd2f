import type { IDisposable } from '@lumino/disposable';
import type { IEvent, IHealth } from './api/types';
import type { Connection } from './state';
import type { GpuStore } from './store';

const FIRST_DELAY = 500;
const LONGEST_DELAY = 30_000;

/** What the stream needs of the API client. */
export interface ISource {
  health(): Promise<IHealth>;
  events(): WebSocket;
}

/**
 * Feeds the store from one WebSocket, and opens it again with back-off when it closes.
 *
 * A WebSocket does not say why it could not be opened; a `GET health` before it does.
 */
export class EventStream implements IDisposable {
  constructor(
    private readonly source: ISource,
    private readonly store: GpuStore
  ) {}

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  /** Connect now, whatever the back-off says. */
  async connect(): Promise<void> {
    clearTimeout(this._timer);
    this.close();
    if (this._isDisposed) {
      return;
    }
    const attempt = ++this._attempt;
    try {
      await this.source.health();
    } catch (error) {
      if (attempt === this._attempt) {
        this.failed(connectionOf(error));
      }
      return;
    }
    if (attempt === this._attempt && !this._isDisposed) {
      this.open();
    }
  }

  dispose(): void {
    if (!this._isDisposed) {
      this._isDisposed = true;
      this._attempt++;
      clearTimeout(this._timer);
      this.close();
    }
  }

  private open(): void {
    const socket = this.source.events();
    this._socket = socket;
    socket.onmessage = message => {
      this._delay = FIRST_DELAY;
      this.store.apply(JSON.parse(String(message.data)) as IEvent);
    };
    socket.onclose = () => {
      this.close();
      this.failed({ kind: 'connecting' });
    };
  }

  private close(): void {
    const socket = this._socket;
    this._socket = null;
    if (socket) {
      socket.onmessage = null;
      socket.onclose = null;
      socket.close();
    }
  }

  private failed(connection: Connection): void {
    if (this._isDisposed) {
      return;
    }
    this.store.connect(connection);
    if (connection.kind === 'absent') {
      return; // only a server that is started again can change that
    }
    // Half of the delay is random: many pages do not return in one moment.
    const delay = this._delay * (0.5 + Math.random() / 2);
    this._delay = Math.min(this._delay * 2, LONGEST_DELAY);
    this._timer = setTimeout(() => void this.connect(), delay);
  }

  private _attempt = 0;
  private _delay = FIRST_DELAY;
  private _isDisposed = false;
  private _socket: WebSocket | null = null;
  private _timer: ReturnType<typeof setTimeout> | undefined;
}

/** What the failure of the first call says about the way to the broker. */
function connectionOf(error: unknown): Connection {
  const said = error as { status?: number; message?: string; hint?: string };
  if (!said.status) {
    return { kind: 'disconnected' };
  }
  if (said.status === 404) {
    return { kind: 'absent' };
  }
  return {
    kind: 'refused',
    message: said.message ?? '',
    hint: said.hint ?? ''
  };
}
