import type { IDisposable } from '@lumino/disposable';
import type { IEvent, IHealth } from './api/types';
import type { Connection } from './state';
import type { GpuStore } from './store';

const FIRST_DELAY = 500;
const LONGEST_DELAY = 30_000;
/** Milliseconds until an open socket that says nothing is taken for a blocked one. */
const SILENCE = 15_000;
/** So many sockets in a row that never spoke: WebSockets do not get through here. */
const BLOCKED = 2;
/** Milliseconds after which one is tried again all the same. */
const RETRY = 60_000;

/** What the stream needs of the API client. */
export interface ISource {
  health(): Promise<IHealth>;
  events(): WebSocket;
  /** All that a socket's first message has, by requests. */
  snapshot(): Promise<IEvent>;
}

/**
 * Feeds the store from one WebSocket, and opens it again with back-off when it closes.
 *
 * A WebSocket does not say why it could not be opened; a `GET health` before it does. Where
 * WebSockets do not get through, the store is fed by polling, and only while somebody looks.
 */
export class EventStream implements IDisposable {
  /** Milliseconds between two polls. */
  interval = 5000;

  constructor(
    private readonly source: ISource,
    private readonly store: GpuStore,
    private readonly page: { readonly hidden: boolean } = { hidden: false }
  ) {}

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  /** Connect now, whatever the back-off says. */
  async connect(): Promise<void> {
    this.rest();
    if (this._isDisposed) {
      return;
    }
    const attempt = ++this._attempt;
    let health: IHealth | null;
    try {
      health = await this.source.health();
    } catch (error) {
      if (attempt === this._attempt) {
        this.failed(connectionOf(error));
      }
      return;
    }
    if (attempt !== this._attempt || this._isDisposed) {
      return;
    }
    if (typeof health?.version !== 'string') {
      this.failed({ kind: 'absent' }); // a page of somebody else's
    } else if (this._unheard < BLOCKED || Date.now() - this._tried > RETRY) {
      this.open();
    } else {
      void this.poll();
    }
  }

  /** The page is looked at again. */
  shown(): void {
    if (this._paused) {
      void this.poll();
    }
  }

  dispose(): void {
    if (!this._isDisposed) {
      this._isDisposed = true;
      this._attempt++;
      this.rest();
    }
  }

  private open(): void {
    this._tried = Date.now();
    const socket = this.source.events();
    this._socket = socket;
    const over = () => {
      this.rest();
      this._unheard++;
      if (this._unheard < BLOCKED) {
        this.failed({ kind: 'connecting' });
      } else {
        void this.poll();
      }
    };
    this._timer = setTimeout(over, SILENCE);
    socket.onclose = over;
    socket.onmessage = message => {
      clearTimeout(this._timer);
      this._delay = FIRST_DELAY;
      this._unheard = 0;
      socket.onclose = () => {
        this.rest();
        this.failed({ kind: 'connecting' });
      };
      this.store.apply(JSON.parse(String(message.data)) as IEvent);
    };
  }

  private async poll(): Promise<void> {
    this.rest();
    if (this._isDisposed) {
      return;
    }
    if (this.page.hidden) {
      this._paused = true;
      return;
    }
    const attempt = ++this._attempt;
    try {
      const event = await this.source.snapshot();
      if (attempt !== this._attempt) {
        return;
      }
      this._delay = FIRST_DELAY;
      this.store.apply(event);
    } catch (error) {
      if (attempt === this._attempt) {
        this.failed(connectionOf(error));
      }
      return;
    }
    const again = Date.now() - this._tried > RETRY;
    this._timer = setTimeout(
      () => void (again ? this.connect() : this.poll()),
      this.interval
    );
  }

  /** End what is under way: the timer, a pause, the socket. */
  private rest(): void {
    clearTimeout(this._timer);
    this._paused = false;
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
  private _paused = false;
  private _socket: WebSocket | null = null;
  private _timer: ReturnType<typeof setTimeout> | undefined;
  /** When a socket was last tried. */
  private _tried = 0;
  /** Sockets in a row that closed, or were given up, before they had said anything. */
  private _unheard = 0;
}

/** What the failure of a call says about the way to the broker. */
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
    status: said.status,
    message: said.message ?? '',
    hint: said.hint ?? ''
  };
}
