import type { TranslationBundle } from '@jupyterlab/translation';
import type { INotice } from './api/types';
import { formatClock } from './units';

/** What can be done about a notice; who asks can be told *later*, too. */
export type Answer = INotice['actions'][number] | 'release_later';

/** The part of JupyterLab's notifications that is used here. */
export interface IShelf {
  emit(
    message: string,
    level: INotice['level'],
    options: { autoClose: number | false; actions: IButton[] }
  ): string;
  update(args: {
    id: string;
    message: string;
    type: INotice['level'];
    autoClose: number | false;
    actions: IButton[];
  }): boolean;
  dismiss(id: string): void;
}

/** A button of a notification. */
export interface IButton {
  label: string;
  displayType: 'default' | 'warn';
  callback(event: MouseEvent): void;
}

/** What a button does, besides closing the notification. */
export type Act = (notice: INotice, answer: Answer) => void;

/** Milliseconds for which a mere piece of news is shown. */
const NEWS = 10_000;
/** So many characters JupyterLab shows of a notification. */
const LONGEST = 140;

interface IShown {
  id: string;
  look: string;
}

/** Shows the notices of the broker as notifications of JupyterLab's own, and takes them back. */
export class Notices {
  constructor(
    private readonly shelf: IShelf,
    private readonly act: Act,
    private readonly trans: TranslationBundle
  ) {}

  /** Show what is new, change what has changed, take away what is over. */
  look(
    notices: readonly INotice[],
    nameOf: (environment: string) => string | null = () => null
  ): void {
    const standing = new Set(notices.map(({ id }) => id));
    for (const [notice, { id }] of this._shown) {
      if (!standing.has(notice)) {
        this._shown.delete(notice);
        this.shelf.dismiss(id);
      }
    }
    for (const notice of notices) {
      const name = notice.environment && nameOf(notice.environment);
      const text = toastText(notice, name, Date.now(), this.trans);
      const look = `${notice.level} ${text} ${notice.actions.join()}`;
      const old = this._shown.get(notice.id);
      if (old?.look === look) {
        continue;
      }
      const { level } = notice;
      const actions = this.buttons(notice);
      const passing = level === 'info' && actions.length === 0;
      const autoClose = passing ? NEWS : (false as const);
      const options = { autoClose, actions };
      if (old) {
        const { id } = old;
        this.shelf.update({ id, message: text, type: level, ...options });
        this._shown.set(notice.id, { id, look });
      } else {
        const id = this.shelf.emit(text, level, options);
        this._shown.set(notice.id, { id, look });
      }
    }
  }

  /** A notification was taken away by hand: return the notice that it was, if it was one. */
  removed(id: string): string | null {
    for (const [notice, shown] of this._shown) {
      if (shown.id === id) {
        this._shown.delete(notice);
        return notice;
      }
    }
    return null;
  }

  private buttons(notice: INotice): IButton[] {
    const labels = answerLabels(this.trans);
    // To dismiss it is the notification's own button.
    const answers = answersTo(notice).filter(answer => answer !== 'dismiss');
    return answers.map(answer => ({
      label: labels[answer],
      displayType:
        answer === 'release' || answer === 'restart' ? 'warn' : 'default',
      callback: () => this.act(notice, answer)
    }));
  }

  private readonly _shown = new Map<string, IShown>();
}

/** What can be done about a notice, in the order of the buttons. */
export function answersTo({ kind, actions }: INotice): Answer[] {
  return actions.flatMap((action): Answer[] =>
    kind === 'ask' && action === 'release'
      ? [action, 'release_later']
      : [action]
  );
}

/** What the buttons are called. */
export function answerLabels(trans: TranslationBundle): Record<Answer, string> {
  return {
    keep: trans.__('Keep'),
    extend: trans.__('Extend by 1 h'),
    release: trans.__('Release now'),
    release_later: trans.__('In 30 min'),
    restart: trans.__('Restart'),
    dismiss: trans.__('Dismiss')
  };
}

/** Until when there is time to do something; null where there is none, or what is said says it. */
export function dueOf(
  until: string | null,
  said: string,
  now: number
): string | null {
  const coming = until !== null && Date.parse(until) > now;
  return coming && !/\d\d:\d\d/.test(said) ? formatClock(until, now) : null;
}

/** Which notebook, until when, and what: first what must not be cut off. */
export function toastText(
  notice: INotice,
  name: string | null,
  now: number,
  trans: TranslationBundle
): string {
  const message = plain(notice.message);
  const written = (said: string) => {
    const due = dueOf(notice.until, said, now);
    const head = [
      name && !said.includes(name) ? name : '',
      due ? trans.__('until %1', due) : ''
    ].filter(part => part);
    return head.length ? `${head.join(', ')}: ${said}` : said;
  };
  const whole = written(`${message} ${plain(notice.hint)}`.trim());
  return whole.length <= LONGEST ? whole : written(message);
}

/** A sentence of the server's without the marks that it has for typing. */
function plain(sentence: string): string {
  return sentence.replace(/`/g, '');
}
