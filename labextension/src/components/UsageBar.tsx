import type { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';
import type { IGrantUsage } from '../api/types';
import { levelOf, peakSince, usageText } from '../usage';

export interface IUsageBarProps {
  usage: IGrantUsage;
  now: number;
  trans: TranslationBundle;
}

/** What is used of a grant against its cap, with the peak as a mark; the text says the same. */
export function UsageBar(props: IUsageBarProps): JSX.Element {
  const { usage, now, trans } = props;
  const { memory, memory_used: used, memory_peak: peak } = usage;
  const share = (bytes: number) =>
    `${Math.min(100, (100 * bytes) / Math.max(1, memory))}%`;
  return (
    <div className="jp-Genv-usage" data-level={levelOf(used, memory)}>
      <div className="jp-Genv-bar" aria-hidden="true">
        {!!used && (
          <span className="jp-Genv-used" style={{ width: share(used) }} />
        )}
        {!!peak && (
          <span
            className="jp-Genv-peak"
            style={{ insetInlineStart: share(peak) }}
          />
        )}
      </div>
      <span className="jp-Genv-usageText" title={peakSince(usage, now, trans)}>
        {usageText(usage, trans)}
      </span>
    </div>
  );
}
