import { expect, it } from 'vitest';
import type { IEnvironment } from '../src/api/types';
import { outcomeText, Restarts } from '../src/restarts';
import { device, environment, grant, trans } from './samples';

const GIB = 2 ** 30;
const whole = grant({ memory: 24 * GIB, compute: null, exclusive: true });
const running = kernel({ pid: 1 });
const held = kernel({ pid: 1, state: 'held', kernel_state: 'restarting' });
const reserved = kernel({ pid: null, state: 'reserved' });

function kernel(changes: Partial<IEnvironment>): IEnvironment {
  return environment({
    name: 'train.ipynb',
    state: 'granted',
    kernel_state: 'idle',
    grants: [whole],
    ...changes
  });
}

/** Show environments one after the other; return what is said at each. */
function told(...states: (IEnvironment | null)[]): (string | null)[] {
  const restarts = new Restarts();
  return states.map(state => {
    const map = new Map(state ? [[state.id, state]] : []);
    const [outcome] = restarts.look(map);
    if (!outcome) {
      return null;
    }
    const said = outcomeText(outcome, [device()], trans);
    return said && `${said.kind}: ${said.text}`;
  });
}

it('a restart is over when the new process answers, and said once', () => {
  const starting = kernel({ pid: 2, kernel_state: 'starting' });
  const back = kernel({ pid: 2 });
  expect(told(running, held, reserved, starting, back, back)).toEqual([
    null,
    null,
    null,
    null,
    'success: train.ipynb restarted. GPU 0: whole, 24 GiB, live. SIMULATED',
    null
  ]);
});

it('states that were missed in between change nothing', () => {
  expect(told(running, kernel({ pid: 2, kernel_state: 'busy' }))[1]).toContain(
    'success'
  );
});

it('a kernel that has no GPU, before and after, is not spoken of', () => {
  const none = { grants: [] };
  expect(
    told(kernel({ pid: 1, ...none }), kernel({ pid: 2, ...none }))[1]
  ).toBeNull();
});

it('what was not kept, and what was freed, is said', () => {
  expect(told(running, kernel({ pid: 2, grants: [] }))[1]).toBe(
    'warning: train.ipynb restarted. GPU 0 was not kept. SIMULATED'
  );
  const draining = kernel({
    pid: 1,
    grants: [{ ...whole, state: 'draining' }]
  });
  expect(told(draining, kernel({ pid: 2, grants: [] }))[1]).toBe(
    'success: train.ipynb restarted. GPU 0 is free now. SIMULATED'
  );
});

it('variables that did not reach the new process are said', () => {
  const after = kernel({ pid: 2, grants: [{ ...whole, applied: 'unknown' }] });
  expect(told(running, after)[1]).toBe(
    'warning: train.ipynb restarted. GPU 0: whole, 24 GiB, not confirmed by the kernel. SIMULATED'
  );
  const lost = kernel({ pid: 2, grants: [{ ...whole, state: 'lost' }] });
  expect(told(running, lost)[1]).toContain('warning');
});

it('a start that fails is said with its cause, each time, and when it is given up', () => {
  const dead = kernel({
    pid: null,
    state: 'held',
    kernel_state: 'dead',
    reason: 'No such file.'
  });
  expect(told(running, held, dead, dead, held, dead, null)).toEqual([
    null,
    null,
    'error: train.ipynb: No such file.',
    null,
    null,
    'error: train.ipynb: No such file.',
    'error: The kernel of train.ipynb did not come back. GPU 0 was given back. SIMULATED'
  ]);
});

it('a kernel that is shut down is not one that did not come back', () => {
  expect(told(running, null)[1]).toBeNull();
});
