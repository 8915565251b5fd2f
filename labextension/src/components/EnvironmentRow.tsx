import type { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';
import type { IEnvironment } from '../api/types';
import { nameOf, type IRow } from '../listing';
import { formatAge, formatClock, formatMemory, formatPart } from '../units';
import { levelOf } from '../usage';
import { HistoryLink } from './HistoryLink';

/** Milliseconds; what is shorter is not worth a word. */
const MINUTE = 60_000;

/** What can be done with any environment from the list. */
export interface IRowActions {
  /** The notebook of a kernel of this Jupyter server; null where there is none. */
  pathOf(environment: IEnvironment): string | null;
  open(path: string): void;
  release(id: string): void;
}

export interface IEnvironmentRowProps {
  row: IRow;
  /** Whether it is the notebook's in front. */
  own: boolean;
  path: string | null;
  busy: boolean;
  /** Why the last that was asked for it was refused. */
  refusal: string | undefined;
  actions: IRowActions;
  now: number;
  trans: TranslationBundle;
}

/** One environment: what it is called, what it has, whose it is, and how it is. */
export const EnvironmentRow = React.memo(function EnvironmentRow(
  props: IEnvironmentRowProps
): JSX.Element {
  const { row, own, path, busy, actions, trans } = props;
  const { environment, cap, used, mine } = row;
  const name = nameOf(environment, trans);
  const state = environment.kernel_state;
  return (
    <>
      <span
        className="jp-Genv-dot"
        data-state={environment.pending ? 'waiting' : (state ?? 'unknown')}
        aria-hidden="true"
      />
      {path !== null && !own ? (
        <a
          className="jp-Genv-holderName"
          href="#"
          title={trans.__('Open %1', path)}
          onClick={event => {
            event.preventDefault();
            actions.open(path);
          }}
        >
          {name}
        </a>
      ) : (
        <span className="jp-Genv-holderName" title={environment.path ?? name}>
          {name}
        </span>
      )}
      <span className="jp-Genv-amount" data-level={levelOf(used, cap)}>
        {mine ? (
          <HistoryLink
            kind="environment"
            id={environment.id}
            name={name}
            title={trans.__('History of %1', name)}
            trans={trans}
          >
            {held(row, trans)}
          </HistoryLink>
        ) : (
          held(row, trans)
        )}
      </span>
      <span className="jp-Genv-holderWho">{details(props)}</span>
      {mine &&
        !own &&
        environment.grants.some(it => it.state !== 'draining') && (
          <button
            type="button"
            className="jp-Genv-link jp-Genv-rowAction"
            disabled={busy}
            aria-label={trans.__('Release what %1 has', name)}
            onClick={() => actions.release(environment.id)}
          >
            {trans.__('Release')}
          </button>
        )}
      {props.refusal && (
        <span className="jp-Genv-trouble" role="alert">
          {props.refusal}
        </span>
      )}
    </>
  );
});

/** What is held, and used of it where that is told. */
function held(row: IRow, trans: TranslationBundle): string {
  const { environment, cap, used } = row;
  if (!environment.grants.length) {
    return environment.pending ? trans.__('waiting') : trans.__('none');
  }
  return used === null ? formatMemory(cap) : formatPart(used, cap, '/');
}

/** Whose it is, where, how the kernel is, the peak, since when, until when. */
function details(props: IEnvironmentRowProps): React.ReactNode {
  const { row, own, now, trans } = props;
  const { environment, devices, peak, since } = row;
  const { expires } = environment;
  const parts: React.ReactNode[] = [
    own ? trans.__('this notebook') : environment.user,
    devices.length > 2
      ? trans.__('%1 GPUs', devices.length)
      : devices.join(', '),
    kernelText(environment, now, trans),
    peak ? trans.__('peak %1', formatMemory(peak)) : '',
    since && (
      <span title={new Date(since).toLocaleString()}>
        {trans.__('since %1', formatClock(since, now))}
      </span>
    ),
    expires && (
      <span
        className="jp-Genv-lease"
        title={new Date(expires).toLocaleString()}
      >
        {trans.__('until %1', formatClock(expires, now))}
      </span>
    )
  ];
  return parts
    .filter(part => part)
    .map((part, index) => (
      <React.Fragment key={index}>
        {index > 0 && ' · '}
        {part}
      </React.Fragment>
    ));
}

/** How a kernel is, and since when it is busy or has nothing to do. */
export function kernelText(
  environment: IEnvironment,
  now: number,
  trans: TranslationBundle
): string {
  const { kernel_state: state, kind } = environment;
  const since = environment.kernel_state_since ?? environment.idle_since;
  const lasts = since !== null && now - Date.parse(since) >= MINUTE;
  if (kind === 'server') {
    return trans.__('reserved for its kernels');
  }
  if (kind !== 'kernel') {
    return kind === 'command' ? trans.__('command') : trans.__('shell');
  }
  switch (state) {
    case 'busy':
      return lasts
        ? trans.__('busy %1', formatAge(since, now, trans))
        : trans.__('busy');
    case 'idle':
      return lasts
        ? trans.__('idle %1', formatAge(since, now, trans))
        : trans.__('idle');
    case 'starting':
      return trans.__('starting');
    case 'restarting':
      return trans.__('restarting');
    case 'dead':
      return trans.__('not running');
    default:
      return '';
  }
}
