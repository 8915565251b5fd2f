import type { TranslationBundle } from '@jupyterlab/translation';
import React, { useMemo } from 'react';
import type { ILeftover } from '../api/types';
import type { IFolds } from '../folds';
import type { ITarget } from '../kernel';
import { noticesOf, type IState } from '../state';
import { Devices } from './Devices';
import { Environments } from './Environments';
import type { IRowActions } from './EnvironmentRow';
import { Leftovers } from './Leftovers';
import { Loading, Message } from './Message';
import { Queue } from './Queue';
import { Quota } from './Quota';
import { Told } from './Told';
import { ThisNotebook, type INotebookActions } from './ThisNotebook';

export interface IPanelProps {
  state: IState;
  target: ITarget | null;
  actions: INotebookActions;
  rows: IRowActions;
  /** The sections that are not wanted. */
  hidden: ReadonlySet<string>;
  folds: IFolds;
  /** End a leftover process. */
  end(leftover: ILeftover): void;
  retry(): void;
  now: number;
  trans: TranslationBundle;
}

const FORBIDDEN = 403;

/** The whole panel, in each of its states. */
export function Panel(props: IPanelProps): JSX.Element {
  const { state, target, rows, hidden, folds, now, trans } = props;
  const id = target?.id ?? null;
  const shown = (name: string) => !hidden.has(name);
  const user = state.health?.user ?? null;
  const owners = useMemo(() => ({ own: id, user }), [id, user]);
  const { mine, others } = noticesOf(state);
  const stale = state.connection.kind !== 'open';
  const simulated = state.devices.some(device => device.simulated);
  return (
    <div className="jp-Genv-panel">
      {simulated && (
        <p className="jp-Genv-simulated">
          <strong>{trans.__('SIMULATED')}</strong>
          {trans.__('These devices do not exist.')}
        </p>
      )}
      <Way {...props} />
      {state.loaded && state.connection.kind !== 'absent' && (
        <div className="jp-Genv-content" data-stale={stale}>
          <Driver state={state} trans={trans} />
          {state.devices.length > 0 && (
            <>
              {shown('notebook') && (
                <ThisNotebook
                  target={target}
                  environment={id ? state.environments.get(id) : undefined}
                  usage={id ? state.usage.get(id) : undefined}
                  devices={state.devices}
                  busy={id ? state.busy.get(id) : undefined}
                  refusal={id ? state.refusals.get(id) : undefined}
                  ticket={state.queue.find(one => one.environment === id)}
                  notices={mine.filter(
                    one => one.environment !== null && one.environment === id
                  )}
                  actions={props.actions}
                  folds={folds}
                  now={now}
                  trans={trans}
                />
              )}
              {shown('devices') && (
                <Devices
                  devices={state.devices}
                  loads={state.loads}
                  owners={owners}
                  folds={folds}
                  now={now}
                  trans={trans}
                />
              )}
              {shown('environments') && (
                <Environments
                  state={state}
                  own={id}
                  actions={rows}
                  folds={folds}
                  now={now}
                  trans={trans}
                />
              )}
            </>
          )}
          {shown('queue') && state.queue.length > 0 && (
            <Queue
              state={state}
              isMine={props.actions.isMine}
              leave={props.actions.leave}
              folds={folds}
              now={now}
              trans={trans}
            />
          )}
          {shown('quota') && state.quota && (
            <Quota quota={state.quota} folds={folds} now={now} trans={trans} />
          )}
          {shown('told') && others.length > 0 && (
            <Told
              notices={others}
              environments={state.environments}
              folds={folds}
              now={now}
              trans={trans}
            />
          )}
          {shown('leftovers') && state.leftovers.length > 0 && (
            <Leftovers
              state={state}
              end={props.end}
              folds={folds}
              now={now}
              trans={trans}
            />
          )}
          <Notices state={state} trans={trans} />
        </div>
      )}
    </div>
  );
}

/** What stands between the page and the broker, if something does. */
function Way(props: IPanelProps): JSX.Element | null {
  const { state, retry, trans } = props;
  const { connection, loaded } = state;
  const again = { label: trans.__('Try again'), act: retry };
  switch (connection.kind) {
    case 'open':
      return null;
    case 'connecting':
      return loaded ? null : <Loading label={trans.__('Loading')} />;
    case 'absent':
      return (
        <Message
          title={trans.__('Not active on this Jupyter server')}
          hint={trans.__(
            'Install genv-jupyter where the server runs, or enable it there: jupyter server extension enable genv_jupyter. Then start the server again.'
          )}
          button={again}
        />
      );
    case 'disconnected':
      return (
        <Message
          title={trans.__('The Jupyter server does not answer')}
          hint={
            loaded
              ? trans.__('What is shown may be out of date. Trying again.')
              : trans.__('Trying again.')
          }
          button={again}
        />
      );
    case 'refused':
      return (
        <Message
          title={
            connection.status === FORBIDDEN
              ? trans.__('No permission')
              : trans.__('GPUs cannot be shared at present')
          }
          text={connection.message}
          hint={connection.hint}
          button={again}
        />
      );
  }
}

/** What the driver's trouble is, or that there is nothing to share. */
function Driver(props: {
  state: IState;
  trans: TranslationBundle;
}): JSX.Element | null {
  const { state, trans } = props;
  const trouble = state.health?.driver;
  if (trouble) {
    return (
      <Message
        title={
          state.devices.length
            ? trans.__('Trouble with the NVIDIA driver')
            : trans.__('No working NVIDIA driver')
        }
        text={trouble}
      />
    );
  }
  return state.devices.length ? null : (
    <Message
      title={trans.__('No GPU here')}
      hint={trans.__(
        'This host has none, or CUDA_VISIBLE_DEVICES left none to this Jupyter server. The command “jupyter gpu doctor” says which.'
      )}
    />
  );
}

/** What the broker wants said, and whom it binds. */
function Notices(props: {
  state: IState;
  trans: TranslationBundle;
}): JSX.Element {
  const { state, trans } = props;
  const said = [...(state.health?.notices ?? [])];
  if (
    state.health?.kind === 'user' &&
    state.devices.length &&
    !state.health.simulated
  ) {
    said.push(
      trans.__(
        'Other users of this host are not bound by what is granted here.'
      )
    );
  }
  return (
    <>
      {said.map(notice => (
        <p key={notice} className="jp-Genv-quiet">
          {notice}
        </p>
      ))}
    </>
  );
}
