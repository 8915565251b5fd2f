import type { TranslationBundle } from '@jupyterlab/translation';
import type { INotice } from './api/types';

type Action = INotice['actions'][number];

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
export type Act = (notice: INotice, action: Action | Asked) => void;

/** Answers to somebody who asks for a GPU. */
export type Asked = 'release_later';

/** Milliseconds for which a mere piece of news is shown. */
const NEWS = 10_000;

interface IShown {
  id: string;
  said: string;
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
      const text = name ? `${name}: ${textOf(notice)}` : textOf(notice);
      const said = `${notice.level} ${text} ${notice.actions.join()}`;
      const old = this._shown.get(notice.id);
      if (old?.said === said) {
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
        this._shown.set(notice.id, { id, said });
      } else {
        const id = this.shelf.emit(text, level, options);
        this._shown.set(notice.id, { id, said });
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
    const { trans } = this;
    const labels: Record<Action, string | null> = {
      keep: trans.__('Keep'),
      extend: trans.__('Extend by 1 h'),
      release: trans.__('Release now'),
      restart: trans.__('Restart'),
      dismiss: null // the notification's own button does that
    };
    const buttons: IButton[] = [];
    const add = (label: string, action: Action | Asked, warn: boolean) =>
      buttons.push({
        label,
        displayType: warn ? 'warn' : 'default',
        callback: () => this.act(notice, action)
      });
    for (const action of notice.actions) {
      const label = labels[action];
      if (label) {
        add(label, action, action === 'release' || action === 'restart');
        if (notice.kind === 'ask' && action === 'release') {
          add(trans.__('In 30 min'), 'release_later', false);
        }
      }
    }
    return buttons;
  }

  private readonly _shown = new Map<string, IShown>();
}

/** What is said, without the marks that the server's sentences have for typing. */
function textOf(notice: INotice): string {
  return [notice.message, notice.hint]
    .filter(one => one)
    .join(' ')
    .replace(/`/g, '');
}
