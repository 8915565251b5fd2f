import type { TranslationBundle } from '@jupyterlab/translation';
import React, { useMemo } from 'react';
import type { ILeftover } from '../api/types';
import type { IFolds } from '../folds';
import { labelsOf } from '../listing';
import { leftoverKey, type IState } from '../state';
import { formatAge, formatClock, formatMemory } from '../units';
import { Heading } from './Heading';
import { Prose } from './Prose';
import { VirtualList } from './VirtualList';

export interface ILeftoversProps {
  state: IState;
  end(leftover: ILeftover): void;
  folds: IFolds;
  now: number;
  trans: TranslationBundle;
}

const HEIGHT = 46;

/** Processes that outlived their kernel and still hold a GPU; one click ends one. */
export function Leftovers(props: ILeftoversProps): JSX.Element {
  const { state, end, folds, now, trans } = props;
  const { leftovers, devices, busy, refusals } = state;
  const labels = useMemo(() => labelsOf(devices, trans), [devices, trans]);
  return (
    <section className="jp-Genv-section" aria-label={trans.__('Leftovers')}>
      <Heading
        title={trans.__('Leftovers')}
        note={String(leftovers.length)}
        name="leftovers"
        folds={folds}
      />
      {!folds.has('leftovers') && (
        <VirtualList
          items={leftovers}
          className="jp-Genv-rows"
          label={trans.__('Leftovers')}
          height={HEIGHT}
          keyOf={one => leftoverKey(one)}
          attributes={() => ({ className: 'jp-Genv-row' })}
          render={leftover => (
            <Leftover
              leftover={leftover}
              labels={labels}
              busy={busy.has(leftoverKey(leftover))}
              refusal={refusals.get(leftoverKey(leftover))?.message}
              end={end}
              now={now}
              trans={trans}
            />
          )}
        />
      )}
    </section>
  );
}

function Leftover(props: {
  leftover: ILeftover;
  labels: ReadonlyMap<string, string>;
  busy: boolean;
  refusal: string | undefined;
  end(leftover: ILeftover): void;
  now: number;
  trans: TranslationBundle;
}): JSX.Element {
  const { leftover, labels, busy, refusal, end, now, trans } = props;
  const { pid, command, user, name, after, left, until, state } = leftover;
  const from = name ?? trans.__('a kernel');
  const uses = leftover.uses.map(
    ({ device, memory }) =>
      `${labels.get(device) ?? device.slice(0, 12)}: ${formatMemory(memory)}`
  );
  const parts = [
    user,
    after === 'ended'
      ? trans.__('left of %1 for %2', from, formatAge(left, now, trans))
      : trans.__(
          'left of %1 since its restart, %2',
          from,
          formatAge(left, now, trans)
        ),
    until ? trans.__('is ended at %1', formatClock(until, now)) : ''
  ].filter(part => part);
  return (
    <>
      <span className="jp-Genv-swatch jp-mod-unattributed" aria-hidden="true" />
      <span className="jp-Genv-holderName" title={command ?? undefined}>
        {trans.__('%1 (process %2)', command ?? trans.__('a program'), pid)}
      </span>
      <span className="jp-Genv-amount">{uses.join(', ')}</span>
      <span className="jp-Genv-holderWho">{parts.join(' · ')}</span>
      <button
        type="button"
        className="jp-Genv-button"
        disabled={busy || state === 'ending'}
        aria-label={trans.__('End process %1', pid)}
        onClick={() => end(leftover)}
      >
        {state === 'ending' ? trans.__('Ending…') : trans.__('End')}
      </button>
      {refusal && (
        <span className="jp-Genv-trouble" role="alert">
          <Prose text={refusal} />
        </span>
      )}
    </>
  );
}
