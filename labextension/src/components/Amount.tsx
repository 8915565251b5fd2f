import type { TranslationBundle } from '@jupyterlab/translation';
import React, { useId } from 'react';
import { shareOf, shareText, stepped, type IDraft } from '../draft';

export interface IAmountProps {
  draft: IDraft;
  /** How many devices there are. */
  most: number;
  change(draft: IDraft): void;
  trans: TranslationBundle;
}

const PERCENT = 100;
const STEP = 5;

/** How much of one device, or how many: typed, by a slider up to one, by steps beyond. */
export function Amount(props: IAmountProps): JSX.Element {
  const { draft, most, change, trans } = props;
  const id = useId();
  const share = shareOf(draft);
  const odd = share === null && draft.share.trim() !== '';
  const text = shareText(draft, trans);
  const slide = (percent: number) => {
    const value = percent ? String(percent / PERCENT) : '';
    const few = percent < PERCENT && draft.devices.length > 1;
    change({ ...draft, share: value, devices: few ? [] : draft.devices });
  };
  return (
    <>
      <label htmlFor={id}>{trans.__('GPUs')}</label>
      <span className="jp-Genv-field">
        <button
          type="button"
          className="jp-Genv-button jp-Genv-step"
          aria-label={trans.__('One GPU less')}
          disabled={share === null || share < 1}
          onClick={() => change(stepped(draft, -1, most))}
        >
          −
        </button>
        <input
          id={id}
          className="jp-Genv-input jp-Genv-share"
          inputMode="decimal"
          autoComplete="off"
          autoFocus
          aria-invalid={odd}
          aria-describedby={`${id}-said`}
          placeholder="–"
          value={draft.share}
          onChange={event => change({ ...draft, share: event.target.value })}
        />
        <button
          type="button"
          className="jp-Genv-button jp-Genv-step"
          aria-label={trans.__('One GPU more')}
          disabled={share !== null && share >= most}
          onClick={() => change(stepped(draft, 1, most))}
        >
          +
        </button>
        <span id={`${id}-said`} className="jp-Genv-unit" role="status">
          {text}
        </span>
      </span>
      <input
        type="range"
        className="jp-Genv-slider"
        min={0}
        max={PERCENT}
        step={STEP}
        aria-label={trans.__('Share of one GPU')}
        aria-valuetext={text}
        value={Math.min(PERCENT, Math.round((share ?? 0) * PERCENT))}
        onChange={event => slide(event.target.valueAsNumber)}
      />
    </>
  );
}
