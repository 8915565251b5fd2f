import type { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';
import type { IQuotaUse } from '../api/types';
import type { IFolds } from '../folds';
import {
  boundedOf,
  isCounted,
  quantityName,
  quotaLevel,
  quotaNote,
  quotaText,
  type IKnownQuota
} from '../quota';
import { Heading } from './Heading';

export interface IQuotaProps {
  quota: IKnownQuota;
  folds: IFolds;
  now: number;
  trans: TranslationBundle;
}

/** What the reader may have: used, left, by which rule, and when more comes. */
export function Quota(props: IQuotaProps): JSX.Element | null {
  const { quota, folds, now, trans } = props;
  const bounded = boundedOf(quota, now);
  const { guarantees } = quota.view;
  return bounded.length || guarantees.length ? (
    <section className="jp-Genv-section" aria-label={trans.__('My quota')}>
      <Heading title={trans.__('My quota')} name="quota" folds={folds} />
      {!folds.has('quota') && (
        <ul>
          {bounded.map(one => (
            <Quantity key={one.quantity} use={one} now={now} trans={trans} />
          ))}
          {guarantees.map(({ group, devices, used }) => (
            <li key={group} className="jp-Genv-usageText">
              {trans.__(
                'Kept for the group %1: %2 GPUs, %3 in use',
                group,
                String(devices),
                String(Math.round(used * 100) / 100)
              )}
            </li>
          ))}
        </ul>
      )}
    </section>
  ) : null;
}

function Quantity(props: {
  use: IQuotaUse;
  now: number;
  trans: TranslationBundle;
}): JSX.Element {
  const { use, now, trans } = props;
  const { quantity, used, limit } = use;
  const share = limit ? Math.min(1, (used ?? 0) / limit) : used ? 1 : 0;
  return (
    <li
      className="jp-Genv-quantity jp-Genv-usage"
      data-quantity={quantity}
      data-level={isCounted(use) ? quotaLevel(use) : undefined}
    >
      <span className="jp-Genv-holderName">
        {quantityName(quantity, trans)}
      </span>
      <span className="jp-Genv-amount">{quotaText(use, trans)}</span>
      {isCounted(use) && (
        <div className="jp-Genv-bar" aria-hidden="true">
          {share > 0 && (
            <span
              className="jp-Genv-used"
              style={{ width: `${100 * share}%` }}
            />
          )}
        </div>
      )}
      <span className="jp-Genv-usageText">{quotaNote(use, now, trans)}</span>
    </li>
  );
}
