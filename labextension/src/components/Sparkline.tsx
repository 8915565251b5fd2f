import type { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';
import { stepPath, type ISample } from '../series';

export interface ISparklineProps {
  series: readonly ISample[];
  /** Milliseconds since the epoch. */
  now: number;
  trans: TranslationBundle;
}

const WIDTH = 56;
const HEIGHT = 12;

/** How busy a device was in the last minutes, as far as this page has seen it. */
export function Sparkline(props: ISparklineProps): JSX.Element | null {
  const { series, trans } = props;
  const known = series.flatMap(({ value }) => (value === null ? [] : [value]));
  const most = Math.max(0, ...known);
  if (!most) {
    return null;
  }
  const { line, area } = stepPath(series, props.now, WIDTH, HEIGHT);
  return (
    <svg
      className="jp-Genv-sparkline"
      viewBox={`0 -0.5 ${WIDTH} ${HEIGHT + 1}`}
      role="img"
      aria-label={trans.__('At most %1 % busy in the last 2 minutes', most)}
    >
      <title>{trans.__('At most %1 % busy in the last 2 minutes', most)}</title>
      <path className="jp-Genv-sparkArea" d={area} />
      <path className="jp-Genv-sparkLine" d={line} />
    </svg>
  );
}
