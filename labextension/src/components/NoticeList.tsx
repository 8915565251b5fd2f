import type { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';
import type { INotice } from '../api/types';
import { Prose } from './Prose';

type NoticeAction = INotice['actions'][number];
/** What can be done about a notice; who asks can be told *later*, too. */
export type Answer = NoticeAction | 'release_later';

export interface INoticeListProps {
  notices: readonly INotice[];
  answer(notice: INotice, action: Answer): void;
  trans: TranslationBundle;
}

/** What the broker tells of a notebook, each with what can be done about it. */
export function NoticeList(props: INoticeListProps): JSX.Element {
  const { notices, answer, trans } = props;
  const labels: Record<Answer, string> = {
    keep: trans.__('Keep'),
    extend: trans.__('Extend by 1 h'),
    release: trans.__('Release now'),
    release_later: trans.__('In 30 min'),
    restart: trans.__('Restart'),
    dismiss: trans.__('Dismiss')
  };
  return (
    <div role="status">
      {notices.map(notice => (
        <div
          key={notice.id}
          className="jp-Genv-note jp-Genv-notice"
          data-level={notice.level}
        >
          <span>
            <Prose text={notice.message} />
            {notice.hint && (
              <span className="jp-Genv-hint">
                {' '}
                <Prose text={notice.hint} />
              </span>
            )}
          </span>
          {notice.actions.length > 0 && (
            <span className="jp-Genv-ways">
              {answersTo(notice).map(action => (
                <button
                  key={action}
                  type="button"
                  className="jp-Genv-button"
                  onClick={() => answer(notice, action)}
                >
                  {labels[action]}
                </button>
              ))}
            </span>
          )}
        </div>
      ))}
    </div>
  );
}

/** What can be done about a notice, in the order of the buttons. */
export function answersTo({ kind, actions }: INotice): Answer[] {
  return actions.flatMap((action): Answer[] =>
    kind === 'ask' && action === 'release'
      ? [action, 'release_later']
      : [action]
  );
}
