import type { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';
import type { IQueueTicket } from '../api/types';
import type { IFolds } from '../folds';
import type { IState } from '../state';
import { formatClock } from '../units';
import { Heading } from './Heading';
import { VirtualList } from './VirtualList';

export interface IQueueProps {
  state: IState;
  /** Whether an environment is the reader's, and its place theirs to give up. */
  isMine(environment: string): boolean;
  leave(ticket: IQueueTicket): void;
  folds: IFolds;
  now: number;
  trans: TranslationBundle;
}

const HEIGHT = 46;

/** Who waits for devices, the first first, and when there should be room. */
export function Queue(props: IQueueProps): JSX.Element {
  const { state, isMine, leave, folds, now, trans } = props;
  const { queue, busy } = state;
  return (
    <section className="jp-Genv-section" aria-label={trans.__('Queue')}>
      <Heading
        title={trans.__('Queue')}
        note={String(queue.length)}
        name="queue"
        folds={folds}
      />
      {!folds.has('queue') && (
        <VirtualList
          items={queue}
          className="jp-Genv-rows"
          label={trans.__('Queue')}
          height={HEIGHT}
          keyOf={ticket => ticket.id}
          attributes={() => ({ className: 'jp-Genv-row' })}
          render={ticket => (
            <Ticket
              ticket={ticket}
              mine={isMine(ticket.environment)}
              busy={busy.has(ticket.environment)}
              leave={leave}
              now={now}
              trans={trans}
            />
          )}
        />
      )}
    </section>
  );
}

function Ticket(props: {
  ticket: IQueueTicket;
  mine: boolean;
  busy: boolean;
  leave(ticket: IQueueTicket): void;
  now: number;
  trans: TranslationBundle;
}): JSX.Element {
  const { ticket, mine, busy, leave, now, trans } = props;
  const name = ticket.name ?? trans.__('a kernel');
  const parts = [
    ticket.user,
    trans.__('since %1', formatClock(ticket.since, now)),
    expectation(ticket, now, trans)
  ].filter(part => part);
  return (
    <>
      <span className="jp-Genv-dot" data-state="waiting" aria-hidden="true" />
      <span className="jp-Genv-holderName" title={ticket.message}>
        {ticket.state === 'granted'
          ? trans.__('%1: its turn', name)
          : `${ticket.position}. ${name}`}
      </span>
      <span className="jp-Genv-amount">{wanted(ticket, trans)}</span>
      <span className="jp-Genv-holderWho">{parts.join(' · ')}</span>
      {mine && ticket.state === 'waiting' && (
        <button
          type="button"
          className="jp-Genv-link jp-Genv-rowAction"
          disabled={busy}
          aria-label={trans.__('Take %1 out of the queue', name)}
          onClick={() => leave(ticket)}
        >
          {trans.__('Leave')}
        </button>
      )}
    </>
  );
}

/** What somebody waits for, where that may be seen. */
function wanted(ticket: IQueueTicket, trans: TranslationBundle): string {
  const { gpus, fraction, memory, devices } = ticket.request ?? {};
  const parts = [
    fraction ? trans.__('%1 GPU', fraction) : '',
    gpus ? trans._n('1 GPU', '%1 GPUs', gpus) : '',
    memory ? String(memory) : '',
    !fraction && !gpus && !memory && devices
      ? trans._n('1 GPU', '%1 GPUs', devices.length)
      : ''
  ];
  return parts.filter(part => part).join(', ');
}

function expectation(
  ticket: IQueueTicket,
  now: number,
  trans: TranslationBundle
): string {
  const { expected, guess } = ticket;
  if (expected === null) {
    return '';
  }
  const clock = formatClock(expected, now);
  return guess ? trans.__('perhaps at %1', clock) : trans.__('at %1', clock);
}
