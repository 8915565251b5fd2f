import type { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';
import type { IDeviceGrant } from '../api/types';
import { formatAge, formatClock } from '../units';
import { amount } from '../view';

export interface IHolderProps {
  grant: IDeviceGrant;
  odd: boolean;
  own: boolean;
  now: number;
  trans: TranslationBundle;
}

/** One who holds a part of a device: what, who, since when. */
export function Holder(props: IHolderProps): JSX.Element {
  const { grant, now, own, trans } = props;
  const kind = grant.state === 'draining' ? 'draining' : own ? 'mine' : 'other';
  const name = grant.name ?? trans.__('a kernel');
  return (
    <li className="jp-Genv-holder">
      <span
        className={`jp-Genv-swatch jp-mod-${kind}`}
        data-odd={props.odd}
        aria-hidden="true"
      />
      <span className="jp-Genv-holderName" title={name}>
        {name}
      </span>
      <span className="jp-Genv-amount">{amount(grant, trans)}</span>
      <span className="jp-Genv-holderWho">
        <GrantState state={grant.state} trans={trans} />
        {own ? trans.__('this notebook') : grant.user}
        {' · '}
        <span title={new Date(grant.since).toLocaleString()}>
          {trans.__(
            'since %1 (%2)',
            formatClock(grant.since, now),
            formatAge(grant.since, now, trans)
          )}
        </span>
      </span>
    </li>
  );
}

function GrantState(props: {
  state: IDeviceGrant['state'];
  trans: TranslationBundle;
}): JSX.Element | null {
  const { trans } = props;
  const words: Record<string, string> = {
    draining: trans.__('draining'),
    reserved: trans.__('starting'),
    contended: trans.__('contended'),
    lost: trans.__('device lost')
  };
  const word = words[props.state];
  return word ? <span className="jp-Genv-tag">{word}</span> : null;
}
