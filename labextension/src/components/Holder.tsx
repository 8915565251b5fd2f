import type { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';
import type { IDeviceGrant } from '../api/types';
import { formatAge, formatClock } from '../units';
import { amount, ownerOf } from '../view';
import type { IOwners } from './Device';
import { GrantState, Swatch } from './GrantState';

export interface IHolderProps {
  grant: IDeviceGrant;
  odd: boolean;
  owners: IOwners;
  now: number;
  trans: TranslationBundle;
}

/** One who holds a part of a device: what, who, since when. */
export function Holder(props: IHolderProps): JSX.Element {
  const { grant, now, owners, trans } = props;
  const owner = ownerOf(grant, owners);
  const name = grant.name ?? trans.__('a kernel');
  return (
    <li className="jp-Genv-holder">
      <Swatch state={grant.state} owner={owner} odd={props.odd} />
      <span className="jp-Genv-holderName" title={name}>
        {name}
      </span>
      <span className="jp-Genv-amount">{amount(grant, trans)}</span>
      <span className="jp-Genv-holderWho">
        <GrantState state={grant.state} trans={trans} />
        {owner === 'mine' ? trans.__('this notebook') : grant.user}
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
