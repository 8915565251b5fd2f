import { beforeEach, expect, it } from 'vitest';
import type { INotice } from '../src/api/types';
import { Notices, toastText, type IButton, type IShelf } from '../src/notices';
import { trans } from './samples';

interface IShownToast {
  message: string;
  type: string;
  autoClose: number | false;
  actions: IButton[];
}

let toasts: Map<string, IShownToast>;
let emitted: number;
let updated: number;
let acted: string[];
let notices: Notices;

const shelf: IShelf = {
  emit: (message, type, options) => {
    const id = `toast-${++emitted}`;
    toasts.set(id, { message, type, ...options });
    return id;
  },
  update: ({ id, ...toast }) => {
    updated++;
    toasts.set(id, toast);
    return true;
  },
  dismiss: id => void toasts.delete(id)
};

function notice(changes: Partial<INotice> = {}): INotice {
  return {
    id: 'notice-1',
    environment: 'kernel-1',
    user: 'user',
    kind: 'idle',
    level: 'warning',
    message: 'Idle for 30 min.',
    hint: 'Say `keep`.',
    since: '2026-01-01T12:00:00Z',
    until: null,
    actions: ['keep', 'release', 'dismiss'],
    ...changes
  };
}

beforeEach(() => {
  toasts = new Map();
  emitted = updated = 0;
  acted = [];
  notices = new Notices(
    shelf,
    ({ id }, act) => acted.push(`${id} ${act}`),
    trans
  );
});

const shown = () => [...toasts.values()];
const labels = () => shown().flatMap(one => one.actions.map(it => it.label));

it('a notice is shown once, with its buttons, and stays', () => {
  notices.look([notice()]);
  notices.look([notice()]);
  expect(emitted).toBe(1);
  expect(shown()[0].message).toBe('Idle for 30 min. Say keep.');
  expect(shown()[0].autoClose).toBe(false);
  expect(labels()).toEqual(['Keep', 'Release now']);
  shown()[0].actions[0].callback(null as never);
  expect(acted).toEqual(['notice-1 keep']);
});

it('what says something else is changed in place', () => {
  notices.look([notice()]);
  notices.look([notice({ message: 'Idle for 31 min.' })]);
  expect([emitted, updated]).toEqual([1, 1]);
  expect(shown()).toHaveLength(1);
  expect(shown()[0].message).toContain('31 min');
});

it('whose it is is said first, where that is known', () => {
  notices.look([notice()], () => 'llm.ipynb');
  expect(shown()[0].message).toBe('llm.ipynb: Idle for 30 min. Say keep.');
});

it('what is over goes', () => {
  notices.look([notice(), notice({ id: 'notice-2' })]);
  notices.look([notice({ id: 'notice-2' })]);
  expect(shown()).toHaveLength(1);
  notices.look([]);
  expect(shown()).toHaveLength(0);
});

it('one who asks is answered with now, or in half an hour', () => {
  notices.look([notice({ kind: 'ask', actions: ['release', 'dismiss'] })]);
  expect(labels()).toEqual(['Release now', 'In 30 min']);
  shown()[0].actions[1].callback(null as never);
  expect(acted).toEqual(['notice-1 release_later']);
});

it('a mere piece of news closes by itself', () => {
  notices.look([notice({ level: 'info', actions: ['dismiss'] })]);
  expect(shown()[0].autoClose).toBeGreaterThan(0);
  notices.look([notice({ id: 'n', level: 'error', actions: ['dismiss'] })]);
  expect(shown()[0].autoClose).toBe(false);
});

it('what is taken away by hand is known by its notice, once', () => {
  notices.look([notice()]);
  expect(notices.removed('toast-1')).toBe('notice-1');
  expect(notices.removed('toast-1')).toBeNull();
  expect(notices.removed('somebody else’s')).toBeNull();
});

it('what was taken back is not dismissed once more', () => {
  notices.look([notice()]);
  notices.look([]);
  expect(notices.removed('toast-1')).toBeNull();
});

it('a notice that names its notebook is not headed by that name', () => {
  notices.look(
    [notice({ message: 'The turn of llm.ipynb has come.' })],
    () => 'llm.ipynb'
  );
  expect(shown()[0].message).toBe('The turn of llm.ipynb has come. Say keep.');
});

it('until when there is time comes first, and what does not fit is left out', () => {
  const now = Date.parse('2026-01-01T12:00:00Z');
  const long = 'Nothing has run here for 30 min, and GPU 0 is held. '.repeat(3);
  const due = notice({
    message: long.trim(),
    until: new Date(2026, 0, 1, 18, 5).toISOString()
  });
  const text = toastText(due, 'llm.ipynb', now, trans);
  expect(text).toMatch(/^llm\.ipynb, until (Jan 1 )?18:05: Nothing/);
  expect(text).not.toContain('Say keep');
  const said = notice({ message: 'It is kept until 18:05.', until: due.until });
  expect(toastText(said, null, now, trans)).toBe(
    'It is kept until 18:05. Say keep.'
  );
  const over = notice({ until: '2026-01-01T11:59:00Z' });
  expect(toastText(over, null, now, trans)).toBe('Idle for 30 min. Say keep.');
  const hinted = notice({
    message: 'It is yours.',
    hint: 'Keep it until 18:05.',
    until: due.until
  });
  expect(toastText(hinted, null, now, trans)).toBe(
    'It is yours. Keep it until 18:05.'
  );
});
