import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import type { IEvent } from '../src/api/types';
import { GpuStore } from '../src/store';
import { EventStream } from '../src/stream';
import { event } from './samples';

class Socket {
  onmessage: ((message: { data: string }) => void) | null = null;
  onclose: (() => void) | null = null;
  closed = false;
  close() {
    this.closed = true;
  }
  say(changes: Partial<IEvent>) {
    this.onmessage?.({ data: JSON.stringify(event(changes)) });
  }
}

let sockets: Socket[];
let failure: unknown;
let asked: number;
let polls: number;
let strange: boolean;
let hidden: boolean;
let store: GpuStore;
let stream: EventStream;

beforeEach(() => {
  vi.useFakeTimers();
  sockets = [];
  failure = null;
  asked = 0;
  polls = 0;
  strange = false;
  hidden = false;
  store = new GpuStore();
  stream = new EventStream(
    {
      health: () => {
        asked++;
        return failure
          ? Promise.reject(failure)
          : Promise.resolve((strange ? null : { version: '1' }) as never);
      },
      snapshot: () => {
        polls++;
        return failure
          ? Promise.reject(failure)
          : Promise.resolve(event({ snapshot: true }));
      },
      events: () => {
        sockets.push(new Socket());
        return sockets[sockets.length - 1] as unknown as WebSocket;
      }
    },
    store,
    {
      get hidden() {
        return hidden;
      }
    }
  );
});

afterEach(() => {
  stream.dispose();
  vi.useRealTimers();
});

it('one socket feeds the store', async () => {
  await stream.connect();
  expect(sockets).toHaveLength(1);
  sockets[0].say({ revision: 1, snapshot: true });
  expect(store.state.loaded).toBe(true);
  expect(store.state.connection.kind).toBe('open');
});

it('a socket that closes is opened again, later each time the server fails', async () => {
  const chance = vi.spyOn(Math, 'random');
  await stream.connect();
  sockets[0].say({ revision: 1, snapshot: true });
  failure = { status: 0 };
  for (const [drawn, delay] of [
    [1, 500],
    [0, 500],
    [1, 2000]
  ]) {
    const before = asked;
    chance.mockReturnValue(drawn);
    if (before === 1) {
      sockets[0].onclose?.();
    }
    await vi.advanceTimersByTimeAsync(delay - 1);
    expect(asked).toBe(before);
    chance.mockReturnValue(drawn ? 0 : 1); // for the next one, which is drawn now
    await vi.advanceTimersByTimeAsync(1);
    expect(asked).toBe(before + 1);
  }
  chance.mockRestore();
  failure = null;
  await vi.advanceTimersByTimeAsync(4000);
  expect(sockets).toHaveLength(2);
  sockets[1].say({ revision: 1, snapshot: true });
  sockets[1].onclose?.();
  await vi.advanceTimersByTimeAsync(500);
  expect(sockets).toHaveLength(3);
  expect(polls).toBe(0);
});

/** Two sockets in a row are closed before they say anything, as a proxy does. */
async function blocked() {
  await stream.connect();
  sockets[0].onclose?.();
  await vi.advanceTimersByTimeAsync(500);
  sockets[1].onclose?.();
  await vi.advanceTimersByTimeAsync(0);
}

it('where sockets never speak, the state is polled', async () => {
  await blocked();
  expect(polls).toBe(1);
  expect(store.state.connection.kind).toBe('open');
  stream.interval = 2000;
  await vi.advanceTimersByTimeAsync(5000);
  expect(polls).toBe(2);
  await vi.advanceTimersByTimeAsync(4000);
  expect(polls).toBe(4);
});

it('a socket that is open and says nothing is given up', async () => {
  await stream.connect();
  await vi.advanceTimersByTimeAsync(15_000);
  expect(sockets[0].closed).toBe(true);
  await vi.advanceTimersByTimeAsync(500);
  await vi.advanceTimersByTimeAsync(15_000);
  expect(polls).toBe(1);
});

it('polling ends when a socket gets through', async () => {
  await blocked();
  await vi.advanceTimersByTimeAsync(70_000);
  expect(sockets).toHaveLength(3);
  sockets[2].say({ revision: 1, snapshot: true });
  const before = polls;
  await vi.advanceTimersByTimeAsync(3_600_000);
  expect(polls).toBe(before);
  expect(sockets).toHaveLength(3);
});

it('nothing is polled while nobody looks', async () => {
  await blocked();
  hidden = true;
  await vi.advanceTimersByTimeAsync(5000);
  expect(polls).toBe(1);
  expect(vi.getTimerCount()).toBe(0);
  hidden = false;
  stream.shown();
  await vi.advanceTimersByTimeAsync(0);
  expect(polls).toBe(2);
});

it('polling that fails says why, and goes on when that is over', async () => {
  await blocked();
  failure = { status: 503, message: 'The broker is down.', hint: 'Wait.' };
  await vi.advanceTimersByTimeAsync(5000);
  expect(store.state.connection.kind).toBe('refused');
  failure = null;
  await vi.advanceTimersByTimeAsync(500);
  expect(store.state.connection.kind).toBe('open');
});

it('an answer that is no broker of ours is no server of ours', async () => {
  strange = true;
  await stream.connect();
  expect(store.state.connection.kind).toBe('absent');
  expect(sockets).toHaveLength(0);
});

it('a server without the extension is asked once and left in peace', async () => {
  failure = { status: 404 };
  await stream.connect();
  expect(store.state.connection.kind).toBe('absent');
  await vi.advanceTimersByTimeAsync(3_600_000);
  expect(sockets).toHaveLength(0);
  expect(vi.getTimerCount()).toBe(0);
});

it('a broker that is down is named, and found when it is back', async () => {
  failure = { status: 503, message: 'The broker is down.', hint: 'Wait.' };
  await stream.connect();
  expect(store.state.connection).toEqual({
    kind: 'refused',
    status: 503,
    message: 'The broker is down.',
    hint: 'Wait.'
  });
  failure = null;
  await vi.advanceTimersByTimeAsync(500);
  expect(sockets).toHaveLength(1);
});

it('a server that does not answer is a lost connection', async () => {
  failure = { status: 0 };
  await stream.connect();
  expect(store.state.connection.kind).toBe('disconnected');
});

it('dispose ends socket and timer', async () => {
  await stream.connect();
  stream.dispose();
  expect(sockets[0].closed).toBe(true);
  expect(vi.getTimerCount()).toBe(0);
  await stream.connect();
  expect(sockets).toHaveLength(1);
});

it('an answer that comes after dispose opens nothing', async () => {
  const asked = stream.connect();
  stream.dispose();
  await asked;
  expect(sockets).toHaveLength(0);
});
