import type { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';
import type { IEnvironment, INotice } from '../api/types';
import type { IFolds } from '../folds';
import { formatClock } from '../units';
import { Heading } from './Heading';
import { Prose } from './Prose';
import { VirtualList } from './VirtualList';

export interface IToldProps {
  notices: readonly INotice[];
  environments: ReadonlyMap<string, IEnvironment>;
  folds: IFolds;
  now: number;
  trans: TranslationBundle;
}

const HEIGHT = 46;

/** What others are told of their environments: for administrators, who are not told by toasts. */
export function Told(props: IToldProps): JSX.Element {
  const { notices, environments, folds, now, trans } = props;
  return (
    <section
      className="jp-Genv-section"
      aria-label={trans.__('Told to others')}
    >
      <Heading
        title={trans.__('Told to others')}
        note={String(notices.length)}
        name="told"
        folds={folds}
      />
      {!folds.has('told') && (
        <VirtualList
          items={notices}
          className="jp-Genv-rows"
          label={trans.__('Told to others')}
          height={HEIGHT}
          keyOf={notice => notice.id}
          attributes={() => ({ className: 'jp-Genv-told' })}
          render={({ environment, user, level, message, since }) => {
            const name = environment && environments.get(environment)?.name;
            return (
              <div className="jp-Genv-note jp-Genv-notice" data-level={level}>
                <span>
                  <Prose text={name ? `${name}: ${message}` : message} />
                  <span className="jp-Genv-holderWho">
                    {' '}
                    {user} · {formatClock(since, now)}
                  </span>
                </span>
              </div>
            );
          }}
        />
      )}
    </section>
  );
}
