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
let store: GpuStore;
let stream: EventStream;

beforeEach(() => {
  vi.useFakeTimers();
  sockets = [];
  failure = null;
  store = new GpuStore();
  stream = new EventStream(
    {
      health: () =>
        failure ? Promise.reject(failure) : Promise.resolve({} as never),
      events: () => {
        sockets.push(new Socket());
        return sockets[sockets.length - 1] as unknown as WebSocket;
      }
    },
    store
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

it('a socket that closes is opened again, later each time, until it speaks', async () => {
  await stream.connect();
  for (const longest of [500, 1000, 2000]) {
    const before = sockets.length;
    sockets[before - 1].onclose?.();
    await vi.advanceTimersByTimeAsync(longest / 2 - 1);
    expect(sockets).toHaveLength(before);
    await vi.advanceTimersByTimeAsync(longest / 2 + 1);
    expect(sockets).toHaveLength(before + 1);
  }
  sockets[3].say({ revision: 1, snapshot: true });
  sockets[3].onclose?.();
  await vi.advanceTimersByTimeAsync(500);
  expect(sockets).toHaveLength(5);
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
