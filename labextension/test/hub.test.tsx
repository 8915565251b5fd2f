// @vitest-environment jsdom
import React, { act } from 'react';
import { createRoot } from 'react-dom/client';
import { renderToStaticMarkup } from 'react-dom/server';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { ApiError } from '../src/api/client';
import { Device } from '../src/components/Device';
import { useFetched } from '../hub/hooks';
import { LineSocket } from '../hub/lines';
import { ServerConnection, xsrfToken } from '../hub/shims/services';
import { URLExt } from '../hub/shims/coreutils';
import { trans } from '../hub/trans';
import { device } from './samples';

// As the bundle of the page has it.
vi.mock('@jupyterlab/services', () => import('../hub/shims/services'));
vi.mock('@jupyterlab/coreutils', () => import('../hub/shims/coreutils'));
vi.mock(
  '@jupyterlab/ui-components',
  () => import('../hub/shims/ui-components')
);

const folds = { has: () => false, toggle: () => undefined };

beforeEach(() => {
  vi.stubGlobal('IS_REACT_ACT_ENVIRONMENT', true);
});

afterEach(() => {
  vi.unstubAllGlobals();
  document.cookie = '_xsrf=; max-age=0';
});

/** A stream that is told by hand. */
function streamed(): {
  tell(text: string | Uint8Array): void;
  end(): void;
  asked: [string, RequestInit][];
} {
  const encoder = new TextEncoder();
  let controller: ReadableStreamDefaultController<Uint8Array>;
  const asked: [string, RequestInit][] = [];
  vi.stubGlobal('fetch', (url: string, init: RequestInit) => {
    asked.push([url, init]);
    const body = new ReadableStream<Uint8Array>({
      start: it => {
        controller = it;
        init.signal?.addEventListener('abort', () => it.error(new Error()));
      }
    });
    return Promise.resolve({ ok: true, body } as Response);
  });
  return {
    tell: text =>
      controller.enqueue(
        typeof text === 'string' ? encoder.encode(text) : text
      ),
    end: () => controller.close(),
    asked
  };
}

it('lines come whole, in whatever pieces they are sent', async () => {
  const stream = streamed();
  document.cookie = '_xsrf=of-this-page';
  const socket = new LineSocket('ws://hub/services/gpu/events');
  const heard: string[] = [];
  socket.onmessage = ({ data }) => heard.push(data);
  const closed = new Promise<void>(resolve => (socket.onclose = resolve));
  await Promise.resolve();
  const sent = new TextEncoder().encode('{"a":"ü"}\n{"b":');
  for (const byte of sent) {
    stream.tell(Uint8Array.of(byte));
  }
  stream.tell('1}\n{"c"');
  stream.end();
  await closed;
  expect(heard).toEqual(['{"a":"ü"}', '{"b":1}']);
  const [[url, init]] = stream.asked;
  expect(url).toBe('http://hub/services/gpu/events');
  expect(init.headers).toEqual({ 'X-XSRFToken': 'of-this-page' });
});

it('who hangs up is told that it is closed, and nothing more', async () => {
  const stream = streamed();
  const socket = new LineSocket('ws://hub/events');
  const heard: string[] = [];
  socket.onmessage = ({ data }) => heard.push(data);
  const closed = new Promise<void>(resolve => (socket.onclose = resolve));
  await Promise.resolve();
  socket.close();
  await closed;
  expect(heard).toEqual([]);
  expect(stream.asked[0][1].signal?.aborted).toBe(true);
});

it('each call has the token of this page', async () => {
  const asked: RequestInit[] = [];
  vi.stubGlobal('fetch', (_: string, init: RequestInit) => {
    asked.push(init);
    return Promise.resolve(new Response('null'));
  });
  document.cookie = '_xsrf=of-this-page';
  await ServerConnection.makeRequest('/quota', { method: 'GET' });
  expect(asked[0].headers).toMatchObject({ 'X-XSRFToken': 'of-this-page' });
  expect(asked[0]).toMatchObject({ method: 'GET', redirect: 'error' });
  expect(xsrfToken('a=1; _xsrf=first; _xsrf=second')).toBe('first');
  expect(xsrfToken('not_xsrf=1')).toBeNull();
});

it('addresses are put together', () => {
  expect(URLExt.join('http://hub/services/gpu/', 'v1', 'a%2Fb')).toBe(
    'http://hub/services/gpu/v1/a%2Fb'
  );
  expect(URLExt.objectToQueryString({ search: 'a&b', limit: '5' })).toBe(
    '?search=a%26b&limit=5'
  );
});

it('English is written as it is', () => {
  expect(trans.__('%1 of %2, %1', 'a', 'b')).toBe('a of b, a');
  expect(trans._n('1 GPU', '%1 GPUs', 1)).toBe('1 GPU');
  expect(trans._n('1 GPU', '%1 GPUs', 3)).toBe('3 GPUs');
  expect(trans.__('100 % and %2', 'x')).toBe('100 % and %2');
});

it('a device under maintenance says since when, by whom and why', () => {
  const maintenance = {
    since: '2026-01-01T14:05:00Z',
    by: 'carol',
    reason: '<b>fan</b>'
  };
  const drawn = renderToStaticMarkup(
    <Device
      device={device({ maintenance })}
      load={[]}
      owners={{ own: null, user: null }}
      name="one"
      folds={folds}
      folded={false}
      now={Date.parse('2026-01-01T15:00:00Z')}
      trans={trans}
    />
  );
  expect(drawn).toContain('under maintenance');
  expect(drawn).toContain('by carol: &lt;b&gt;fan&lt;/b&gt;');
});

it('an answer that is overtaken is left, and a refusal keeps what is known', async () => {
  const answers: [(value: string) => void, (error: unknown) => void][] = [];
  const shown: string[] = [];
  function Shown(props: { what: string }): JSX.Element {
    const { what } = props;
    const found = useFetched(
      () =>
        new Promise<string>((resolve, reject) => {
          answers.push([resolve, reject]);
        }),
      [what]
    );
    shown.push(`${found.value} ${found.refusal?.message ?? ''}`);
    return <></>;
  }
  const root = createRoot(document.createElement('div'));
  await act(async () => root.render(<Shown what="a" />));
  await act(async () => root.render(<Shown what="b" />));
  await act(async () => answers[1][0]('of b'));
  await act(async () => answers[0][0]('of a'));
  expect(shown[shown.length - 1]).toBe('of b ');
  await act(async () => root.render(<Shown what="c" />));
  const error = new ApiError(503, 'broker_down', 'It is down.', '');
  await act(async () => answers[2][1](error));
  expect(shown[shown.length - 1]).toBe('of b It is down.');
  await act(async () => root.unmount());
});
