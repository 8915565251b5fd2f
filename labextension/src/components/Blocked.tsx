import type { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';
import type { IDeviceGrant } from '../api/types';
import type { IRefusal } from '../state';
import { Prose } from './Prose';

/** What can be done about a refusal. */
export interface IBlockedActions {
  /** Whether an environment is the reader's, and so theirs to release. */
  isMine(environment: string): boolean;
  release(environment: string): void;
  /** The environment of the notebook in front: no use to ask oneself. */
  own: string | null;
}

export interface IBlockedProps {
  refusal: IRefusal;
  actions: IBlockedActions;
  trans: TranslationBundle;
}

/** So many holders have a button; the sentence names more. */
const MOST = 3;

/** Why something is not to be had, and what to do about it. */
export function Blocked(props: IBlockedProps): JSX.Element {
  const { refusal, actions, trans } = props;
  const { message, hint, holders = [] } = refusal;
  const others = new Map<string, IDeviceGrant>();
  for (const holder of holders) {
    if (holder.environment !== actions.own && holder.state !== 'draining') {
      others.set(holder.environment, holder);
    }
  }
  const mine = [...others.values()].filter(({ environment }) =>
    actions.isMine(environment)
  );
  return (
    <>
      <p>
        <Prose text={message} />
      </p>
      {hint && (
        <p className="jp-Genv-hint">
          <Prose text={hint} />
        </p>
      )}
      {mine.length > 0 && (
        <p className="jp-Genv-ways">
          {mine.slice(0, MOST).map(({ environment, name }) => (
            <button
              key={environment}
              type="button"
              className="jp-Genv-button"
              onClick={() => actions.release(environment)}
            >
              {trans.__('Release %1', name ?? trans.__('a kernel'))}
            </button>
          ))}
        </p>
      )}
    </>
  );
}
