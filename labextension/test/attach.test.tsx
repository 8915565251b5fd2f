// @vitest-environment jsdom
import React, { act } from 'react';
import { createRoot, type Root } from 'react-dom/client';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import type { IRequest } from '../src/api/types';
import { Attach } from '../src/components/Attach';
import type { IPreview } from '../src/preview';
import { device, deviceGrant, grant, trans } from './samples';

const GIB = 2 ** 30;
let root: Root;
let box: HTMLElement;
let answers: Map<string, (preview: IPreview) => void>;
const attach = vi.fn();
const release = vi.fn();
const ask = vi.fn(async () => 'Asked: bob.');
const place = vi.fn(
  (request: IRequest) =>
    new Promise<IPreview>(resolve =>
      answers.set(JSON.stringify(request), resolve)
    )
);
const blocked = {
  own: 'kernel-1',
  isMine: (id: string) => id === 'kernel-2',
  release,
  ask,
  attach
};

beforeEach(() => {
  vi.useFakeTimers();
  vi.clearAllMocks();
  vi.stubGlobal('IS_REACT_ACT_ENVIRONMENT', true);
  answers = new Map();
  box = document.createElement('div');
  document.body.append(box);
  root = createRoot(box);
  draw();
});

afterEach(() => {
  act(() => root.unmount());
  box.remove();
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

function draw(
  devices = [device(), device({ uuid: 'GPU-1', index: 1 })],
  held: IRequest | null = null
): void {
  act(() =>
    root.render(
      <Attach
        devices={devices}
        own="kernel-1"
        holding={held !== null}
        held={held}
        disabled={false}
        refused={false}
        attach={attach}
        place={place}
        blocked={blocked}
        trans={trans}
      />
    )
  );
}

const button = (name: string) => {
  const found = [...box.querySelectorAll('button')].find(
    one => (one.getAttribute('aria-label') ?? one.textContent) === name
  );
  if (!found) {
    throw new Error(`no button ${name} in ${box.textContent}`);
  }
  return found;
};
const hover = (name: string) =>
  act(() => {
    // React hears of a pointer that enters by one that goes over.
    const event = new MouseEvent('pointerover', { bubbles: true });
    button(name).dispatchEvent(event);
  });
const wait = (milliseconds: number) =>
  act(() => vi.advanceTimersByTimeAsync(milliseconds));
const answer = (request: IRequest, preview: IPreview) =>
  act(async () => answers.get(JSON.stringify(request))?.(preview));

it('a quick choice is tried once somebody stays on it', async () => {
  hover('Attach ½ GPU');
  await wait(100);
  hover('Attach 1 GPU');
  await wait(240);
  expect(place).not.toHaveBeenCalled();
  await wait(10);
  expect(place.mock.calls).toEqual([[{ gpus: 1 }]]);
  const whole = grant({ exclusive: true, compute: null, memory: 24 * GIB });
  await answer({ gpus: 1 }, { kind: 'fits', grants: [whole] });
  expect(box.textContent).toContain('GPU 0: whole, 24 GiB, leaves 0 GiB');
  act(() => button('Attach 1 GPU').click());
  expect(attach.mock.calls).toEqual([[{ gpus: 1 }]]);
  expect(box.textContent).not.toContain('leaves');
});

it('an answer to what was asked before is not shown', async () => {
  hover('Attach 1 GPU');
  await wait(250);
  hover('Attach ½ GPU');
  await wait(250);
  await answer({ gpus: 1 }, { kind: 'fits', grants: [grant()] });
  expect(box.textContent).not.toContain('leaves');
  await answer({ fraction: 0.5 }, { kind: 'fits', grants: [grant()] });
  expect(box.textContent).toContain('GPU 0: 50 %, 12 GiB, leaves 12 GiB');
});

it('it is tried again when what is free has changed, and only then', async () => {
  hover('Attach 1 GPU');
  await wait(250);
  draw([device({ utilization: 50 }), device({ uuid: 'GPU-1', index: 1 })]);
  await wait(250);
  expect(place).toHaveBeenCalledTimes(1);
  draw([device({ grants: [deviceGrant({ environment: 'kernel-9' })] })]);
  await wait(250);
  expect(place).toHaveBeenCalledTimes(2);
});

it('a refusal comes with ways out: release, ask, wait', async () => {
  hover('Attach 1 GPU');
  await wait(250);
  const holders = [
    deviceGrant({ environment: 'kernel-1' }),
    deviceGrant({ environment: 'kernel-2', name: 'mine.ipynb' }),
    deviceGrant({ environment: 'kernel-3', user: 'bob' }),
    deviceGrant({ environment: 'kernel-4', user: 'ada', state: 'draining' })
  ];
  await answer(
    { gpus: 1 },
    {
      kind: 'refused',
      refusal: { message: 'No GPU is free.', hint: '', taken: true, holders }
    }
  );
  expect(box.textContent).toContain('No GPU is free.');
  act(() => button('Release mine.ipynb').click());
  expect(release.mock.calls).toEqual([['kernel-2']]);
  await act(async () => button('Ask bob').click());
  expect(ask.mock.calls).toEqual([[{ gpus: 1 }]]);
  expect(box.textContent).toContain('Asked: bob.');
  act(() => button('Wait up to 1 h').click());
  expect(attach.mock.calls).toEqual([[{ gpus: 1, wait: 3600 }]]);
});

it('what can never be has no ways out', async () => {
  hover('Attach 1 GPU');
  await wait(250);
  await answer(
    { gpus: 1 },
    { kind: 'refused', refusal: { message: 'Too many.', hint: 'Less.' } }
  );
  expect(box.textContent).toContain('Too many.');
  expect(() => button('Wait up to 1 h')).toThrow();
});

it('the form is not sent while it is known to be refused', async () => {
  act(() => button('Other…').click());
  await wait(250);
  expect(place.mock.calls).toEqual([[{ fraction: 0.5 }]]);
  const refusal = { message: 'No room.', hint: '', taken: true };
  await answer({ fraction: 0.5 }, { kind: 'refused', refusal });
  const send = box.querySelector<HTMLButtonElement>('button[type=submit]');
  expect(send?.disabled).toBe(true);
  act(() =>
    box
      .querySelector('form')
      ?.dispatchEvent(new Event('submit', { bubbles: true, cancelable: true }))
  );
  expect(attach).not.toHaveBeenCalled();
});

it('what is held is not offered again, and the form begins with it', async () => {
  draw(undefined, { fraction: 0.5, name: 'llm', duration: 3600 });
  expect(() => button('Attach ½ GPU')).toThrow();
  expect(button('Attach 1 GPU').disabled).toBe(false);
  draw(undefined, { gpus: 1 });
  expect(() => button('Attach 1 GPU')).toThrow();
  draw(undefined, { fraction: 0.5, memory: '4G' });
  expect(button('Attach ½ GPU').disabled).toBe(false);
  act(() => button('Other…').click());
  await wait(250);
  expect(place.mock.calls).toEqual([[{ fraction: 0.5, memory: '4G' }]]);
});
