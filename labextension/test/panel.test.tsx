import React from 'react';
import { renderToStaticMarkup } from 'react-dom/server';
import { expect, it, vi } from 'vitest';
import { Panel, type IPanelProps } from '../src/components/Panel';
import { applyEvent, INITIAL, type IState } from '../src/state';
import { device, environment, event, grant, trans } from './samples';

// JupyterLab's icons are made of web components, which load in a browser only.
vi.mock('../src/icons', () => {
  const icon = { react: () => null };
  return { gpuIcon: icon, caretDownIcon: icon, caretRightIcon: icon };
});

const GIB = 2 ** 30;
const NOW = Date.parse('2026-01-01T12:30:00Z');
const nothing = () => undefined;

function draw(state: IState, changes: Partial<IPanelProps> = {}): string {
  return renderToStaticMarkup(
    <Panel
      state={state}
      target={{ id: 'kernel-1', name: 'llm.ipynb', starting: false }}
      actions={{
        attach: nothing,
        release: nothing,
        restart: nothing,
        dismiss: nothing,
        place: async () => ({ kind: 'unknown' }),
        isMine: id => id === 'kernel-1',
        releaseOther: nothing,
        ask: async () => '',
        leave: nothing,
        answer: nothing
      }}
      rows={{
        pathOf: ({ id }) => (id === 'kernel-2' ? 'work/plot.ipynb' : null),
        open: nothing,
        release: nothing
      }}
      hidden={new Set()}
      end={nothing}
      folds={{ has: () => false, toggle: nothing }}
      retry={nothing}
      now={NOW}
      trans={trans}
      {...changes}
    />
  );
}

const loaded = (changes: Parameters<typeof event>[0]) =>
  applyEvent(INITIAL, event({ snapshot: true, ...changes }), NOW);
const usual = {
  devices: [device()],
  environments: [
    environment({ grants: [grant()], processes: [] }),
    environment({
      id: 'kernel-2',
      name: 'plot.ipynb',
      grants: [grant({ memory: GIB })],
      processes: []
    }),
    environment({ id: 'kernel-3', user: 'bob', grants: [grant()] })
  ]
};

it('each way to the broker has a state of its own', () => {
  const at = (connection: IState['connection'], state = INITIAL) =>
    draw({ ...state, connection });
  expect(at({ kind: 'connecting' })).toContain('Loading');
  expect(at({ kind: 'disconnected' })).toContain('does not answer');
  const refused = { kind: 'refused', message: 'Why.', hint: 'How.' } as const;
  expect(at({ ...refused, status: 403 })).toContain('No permission');
  expect(at({ ...refused, status: 503 })).toContain('cannot be shared');
  const stale = at({ kind: 'disconnected' }, loaded(usual));
  expect(stale).toContain('data-stale="true"');
  expect(stale).toContain('may be out of date');
  expect(draw(loaded({}))).toContain('No GPU here');
});

it('a notebook of this server is a link, and only mine can be released', () => {
  const drawn = draw(loaded(usual));
  expect(drawn).toContain('title="Open work/plot.ipynb"');
  expect(drawn).toContain('Release what plot.ipynb has');
  expect(drawn.match(/Release what/g)).toHaveLength(1);
  expect(drawn).toContain('bob');
});

it('sections that are not wanted, or have nothing to say, are not there', () => {
  const drawn = draw(loaded(usual));
  for (const name of ['Queue', 'Leftovers']) {
    expect(drawn).not.toContain(`aria-label="${name}"`);
  }
  const less = draw(loaded(usual), { hidden: new Set(['environments']) });
  expect(less).toContain('aria-label="Devices"');
  expect(less).not.toContain('aria-label="Environments"');
});

it('a place in the queue is told in the section of its notebook', () => {
  const ticket = {
    id: 't1',
    environment: 'kernel-1',
    user: 'user',
    name: 'llm.ipynb',
    request: { gpus: 1, mps: 'auto' },
    state: 'waiting',
    position: 2,
    since: '2026-01-01T12:00:00Z',
    until: null,
    held: [],
    expected: '2026-01-01T13:00:00Z',
    guess: true,
    message: 'Second in the queue.'
  } as const;
  const queue = [ticket, { ...ticket, id: 't2', environment: 'kernel-3' }];
  const drawn = draw(loaded({ ...usual, queue: queue as never }));
  expect(drawn).toContain('Second in the queue.');
  expect(drawn).toContain('Leave the queue');
  expect(drawn).toContain('2. llm.ipynb');
  expect(drawn).toMatch(/user · since \d\d:\d\d · perhaps at/);
  expect(drawn.match(/out of the queue/g)).toHaveLength(1);
});

it('what is left of a kernel can be ended', () => {
  const leftover = {
    pid: 4711,
    start: 99,
    command: 'python',
    environment: 'gone',
    name: 'old.ipynb',
    user: 'user',
    after: 'ended',
    uses: [{ device: 'GPU-0', memory: 2 * GIB }],
    started: '2026-01-01T11:00:00Z',
    left: '2026-01-01T12:00:00Z',
    until: null,
    state: 'running'
  } as const;
  const drawn = draw(loaded({ ...usual, leftovers: [leftover] as never }));
  expect(drawn).toContain('GPU 0: 2 GiB');
  expect(drawn).toContain('left of old.ipynb for 30 min');
  expect(drawn).toContain('aria-label="End process 4711"');
  const refusals = new Map([['4711-99', { message: 'Not yours.', hint: '' }]]);
  const state = loaded({ ...usual, leftovers: [leftover] as never });
  expect(draw({ ...state, refusals })).toContain('Not yours.');
});

it('temperature, power and trouble of a device are told where they are known', () => {
  const hot = device({
    utilization: 90,
    temperature: 71,
    power: 412_600,
    trouble: 'GPU 0 had `Xid 13`.'
  });
  const drawn = draw(loaded({ ...usual, devices: [hot] }));
  expect(drawn).toContain('90 % busy · 71 °C · 413 W');
  expect(drawn).toContain('At most 90 % busy in the last 2 minutes');
  expect(drawn).toContain('<code>Xid 13</code>');
});
