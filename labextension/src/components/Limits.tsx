import type { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';
import type { IGrant, ILimit } from '../api/types';

export interface ILimitsProps {
  limits: IGrant['limits'];
  trans: TranslationBundle;
}

/** How strong each limit of a grant is, in a word; the reasons unfold. */
export function Limits(props: ILimitsProps): JSX.Element {
  const { limits, trans } = props;
  const rows: [string, ILimit][] = [
    [trans.__('memory'), limits.memory],
    [trans.__('compute'), limits.compute],
    [trans.__('devices'), limits.devices]
  ];
  return (
    <details className="jp-Genv-limits">
      <summary>
        {trans.__('Limits:')}{' '}
        {rows.map(([name, limit]) => (
          <span key={name} className="jp-Genv-limit" title={limit.reason}>
            {name} <b>{strengthText(limit, trans)}</b>
          </span>
        ))}
      </summary>
      <ul>
        {rows.map(([name, limit]) => (
          <li key={name}>{trans.__('%1: %2', name, limit.reason)}</li>
        ))}
      </ul>
    </details>
  );
}

/** The strength of a limit in a word, and whether it was verified. */
export function strengthText(limit: ILimit, trans: TranslationBundle): string {
  const words: Record<ILimit['strength'], string> = {
    hard: trans.__('hard'),
    driver: trans.__('driver'),
    cooperative: trans.__('cooperative'),
    watched: trans.__('watched'),
    none: trans.__('none')
  };
  const word = words[limit.strength];
  switch (limit.verified) {
    case true:
      return trans.__('%1, verified', word);
    case false:
      return trans.__('%1, not in force', word);
    default:
      return word;
  }
}
