import type { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';
import type { INotice } from '../api/types';
import { Prose } from './Prose';

export type NoticeAction = INotice['actions'][number];

export interface INoticeListProps {
  notices: readonly INotice[];
  answer(notice: INotice, action: NoticeAction): void;
  trans: TranslationBundle;
}

/** What the broker tells of a notebook, each with what can be done about it. */
export function NoticeList(props: INoticeListProps): JSX.Element {
  const { notices, answer, trans } = props;
  const labels: Record<NoticeAction, string> = {
    keep: trans.__('Keep'),
    extend: trans.__('Extend by 1 h'),
    release: trans.__('Release now'),
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
              {notice.actions.map(action => (
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
