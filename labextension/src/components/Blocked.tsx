import type { TranslationBundle } from '@jupyterlab/translation';
import React, { useState } from 'react';
import type { IDeviceGrant, IRequest } from '../api/types';
import type { IRefusal } from '../state';
import { Prose } from './Prose';

/** What can be done about a refusal. */
export interface IBlockedActions {
  /** The environment of the notebook in front: no use to ask oneself. */
  own: string;
  /** Whether an environment is the reader's, and so theirs to release. */
  isMine(environment: string): boolean;
  release(environment: string): void;
  /** Ask those who hold it; returns what came of that. */
  ask(request: IRequest): Promise<string>;
  attach(request: IRequest): void;
}

export interface IBlockedProps {
  refusal: IRefusal;
  /** What was refused; null where that is not known any more. */
  request: IRequest | null;
  actions: IBlockedActions;
  trans: TranslationBundle;
}

/** So many holders have a button; the sentence names more. */
const MOST = 3;
/** Seconds. */
const AN_HOUR = 3600;

/** Why something is not to be had, and what to do about it. */
export function Blocked(props: IBlockedProps): JSX.Element {
  const { refusal, request, actions, trans } = props;
  const { message, hint, taken } = refusal;
  const [said, setSaid] = useState('');
  const holders = holdersOf(refusal, actions.own);
  const mine = holders.filter(one => actions.isMine(one.environment));
  const others = [
    ...new Set(
      holders
        .filter(one => !actions.isMine(one.environment))
        .map(one => one.user)
    )
  ];
  const button = (label: string, act: () => void, key?: string) => (
    <button key={key} type="button" className="jp-Genv-button" onClick={act}>
      {label}
    </button>
  );
  return (
    <>
      <p>
        <Prose text={message} />
      </p>
      {/* Where others have it, the buttons below say what the hint does in words to type. */}
      {hint && !taken && (
        <p className="jp-Genv-hint">
          <Prose text={hint} />
        </p>
      )}
      {taken && (
        <p className="jp-Genv-ways">
          {mine
            .slice(0, MOST)
            .map(({ environment, name }) =>
              button(
                trans.__('Release %1', name ?? trans.__('a kernel')),
                () => actions.release(environment),
                environment
              )
            )}
          {request &&
            others.length > 0 &&
            button(trans.__('Ask %1', others.slice(0, MOST).join(', ')), () => {
              void actions.ask(request).then(setSaid);
            })}
          {request &&
            !request.wait &&
            button(trans.__('Wait up to 1 h'), () =>
              actions.attach({ ...request, wait: AN_HOUR })
            )}
        </p>
      )}
      {said && (
        <p role="status">
          <Prose text={said} />
        </p>
      )}
    </>
  );
}

/** Who holds what is needed, each once; whoever has given it back already is not to be asked. */
function holdersOf(refusal: IRefusal, own: string): readonly IDeviceGrant[] {
  const found = new Map<string, IDeviceGrant>();
  for (const holder of refusal.holders ?? []) {
    if (holder.environment !== own && holder.state !== 'draining') {
      found.set(holder.environment, holder);
    }
  }
  return [...found.values()];
}
