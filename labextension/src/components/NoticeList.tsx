import type { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';
import type { INotice } from '../api/types';
import { answerLabels, answersTo, dueOf, type Answer } from '../notices';
import { Prose } from './Prose';

export interface INoticeListProps {
  notices: readonly INotice[];
  answer(notice: INotice, action: Answer): void;
  now: number;
  trans: TranslationBundle;
}

/** What the broker tells of a notebook, each with what can be done about it. */
export function NoticeList(props: INoticeListProps): JSX.Element {
  const { notices, answer, now, trans } = props;
  const labels = answerLabels(trans);
  const due = (notice: INotice) => {
    const said = `${notice.message} ${notice.hint}`;
    const until = dueOf(notice.until, said, now);
    return until && <b>{trans.__('until %1', until)}: </b>;
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
            {due(notice)}
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
