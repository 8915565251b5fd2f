import type { TranslationBundle } from '@jupyterlab/translation';
import React, { useCallback, useMemo } from 'react';
import type {
  IDevice,
  IEnvironment,
  INotice,
  IQueueTicket,
  IRequest,
  IUsage
} from '../api/types';
import { runElsewhere, type ITarget } from '../kernel';
import type { Answer } from '../notices';
import type { IPreview } from '../preview';
import type { Busy, IRefusal } from '../state';
import { amount, deviceLabel, missing, replacing } from '../view';
import type { IFolds } from '../folds';
import { Attach } from './Attach';
import { Blocked, type IBlockedActions } from './Blocked';
import { GrantState, Swatch } from './GrantState';
import { Heading } from './Heading';
import { Limits } from './Limits';
import { NoticeList } from './NoticeList';
import { Prose } from './Prose';
import { UsageBar } from './UsageBar';

/** What can be done for one notebook. */
export interface INotebookActions {
  attach(request: IRequest): void;
  release(): void;
  restart(): void;
  dismiss(): void;
  /** Say what a request of an environment would get now. */
  place(environment: string, request: IRequest): Promise<IPreview>;
  /** Whether an environment is the reader's. */
  isMine(environment: string): boolean;
  releaseOther(environment: string): void;
  /** Ask those who hold what is needed; returns what came of that. */
  ask(environment: string, request: IRequest): Promise<string>;
  leave(ticket: IQueueTicket): void;
  answer(notice: INotice, action: Answer): void;
}

export interface IThisNotebookProps {
  target: ITarget | null;
  environment: IEnvironment | undefined;
  usage: IUsage | undefined;
  devices: readonly IDevice[];
  busy: Busy | undefined;
  refusal: IRefusal | undefined;
  /** Its place in the queue. */
  ticket: IQueueTicket | undefined;
  notices: readonly INotice[];
  actions: INotebookActions;
  folds: IFolds;
  now: number;
  trans: TranslationBundle;
}

/** What the notebook in front has, and what to do about it. */
export function ThisNotebook(props: IThisNotebookProps): JSX.Element {
  const { target, trans } = props;
  return (
    <section
      className="jp-Genv-section jp-Genv-notebook"
      aria-label={trans.__('This notebook')}
      aria-busy={props.busy !== undefined}
    >
      <Heading
        title={trans.__('This notebook')}
        note={target?.name}
        folds={props.folds}
        name="notebook"
      />
      {!props.folds.has('notebook') && <Body {...props} />}
    </section>
  );
}

function Body(props: IThisNotebookProps): JSX.Element {
  const { target, environment, trans } = props;
  if (!target) {
    return <Quiet>{trans.__('Open a notebook to give it a GPU.')}</Quiet>;
  }
  if (target.id === null || (!environment && target.starting)) {
    return (
      <Quiet>
        {target.starting
          ? trans.__('The kernel is starting.')
          : trans.__('No kernel is running.')}
      </Quiet>
    );
  }
  if (!environment) {
    return (
      <Quiet>
        {runElsewhere()
          ? trans.__(
              'Kernels run elsewhere: this Jupyter server has a gateway start them, so the GPUs of this host are not theirs.'
            )
          : trans.__(
              'This kernel was not started through genv-jupyter, so nothing can be attached from here.'
            )}
      </Quiet>
    );
  }
  return <Managed {...props} environment={environment} />;
}

function Managed(
  props: IThisNotebookProps & { environment: IEnvironment }
): JSX.Element {
  const { environment, usage, refusal, busy, actions, devices, trans } = props;
  const { grants, id } = environment;
  const place = useCallback(
    (request: IRequest) => actions.place(id, request),
    [actions, id]
  );
  const blocked = useMemo(
    () => ({
      own: id,
      isMine: actions.isMine,
      release: actions.releaseOther,
      ask: (request: IRequest) => actions.ask(id, request),
      attach: actions.attach
    }),
    [actions, id]
  );
  const held = grants.some(grant => grant.state !== 'draining');
  const draining = grants.some(grant => grant.state === 'draining');
  const restarting =
    busy === 'restart' || environment.kernel_state === 'restarting';
  return (
    <>
      {grants.length ? (
        <div className="jp-Genv-held">
          <Grants {...props} environment={environment} />
          {held && (
            <button
              type="button"
              className="jp-Genv-button"
              disabled={busy !== undefined || restarting}
              onClick={actions.release}
            >
              {trans.__('Release')}
            </button>
          )}
        </div>
      ) : (
        <Quiet>
          {trans.__(
            'No GPU attached. Attach before CUDA starts, and no restart is needed.'
          )}
        </Quiet>
      )}
      {held && usage && !usage.simulated && (
        <p className="jp-Genv-advice">
          <Prose text={usage.advice} />
        </p>
      )}
      <div role="status">
        {restarting ? (
          <Note>{trans.__('The kernel restarts.')}</Note>
        ) : (
          <State {...props} environment={environment} draining={draining} />
        )}
      </div>
      {props.ticket?.state === 'waiting' && (
        <Note
          action={
            <button
              type="button"
              className="jp-Genv-button"
              disabled={busy !== undefined}
              onClick={() => props.ticket && actions.leave(props.ticket)}
            >
              {trans.__('Leave the queue')}
            </button>
          }
        >
          <Prose text={props.ticket.message} />
        </Note>
      )}
      <NoticeList
        notices={props.notices}
        answer={actions.answer}
        now={props.now}
        trans={trans}
      />
      <div role="alert">
        {refusal && (
          <Refusal
            refusal={refusal}
            blocked={blocked}
            dismiss={actions.dismiss}
            trans={trans}
          />
        )}
      </div>
      <Attach
        key={environment.id}
        devices={devices}
        own={environment.id}
        place={place}
        blocked={blocked}
        holding={held}
        held={held ? environment.request : null}
        disabled={busy !== undefined || restarting}
        refused={refusal !== undefined}
        attach={actions.attach}
        trans={trans}
      />
    </>
  );
}

function Grants(
  props: IThisNotebookProps & { environment: IEnvironment }
): JSX.Element {
  const { environment, usage, devices, now, trans } = props;
  return (
    <ul className="jp-Genv-grants">
      {environment.grants.map(grant => {
        const device = devices.find(one => one.uuid === grant.device);
        const used = usage?.grants.find(one => one.device === grant.device);
        return (
          <li key={grant.device} className="jp-Genv-grant">
            <Swatch state={grant.state} owner="mine" odd={false} />
            <span className="jp-Genv-deviceLabel" title={grant.device}>
              {device ? deviceLabel(device, trans) : grant.device.slice(0, 12)}
            </span>
            <span className="jp-Genv-amount">{amount(grant, trans)}</span>
            {grant.state !== 'draining' && (
              <GrantState state={grant.state} trans={trans} />
            )}
            {used && <UsageBar usage={used} now={now} trans={trans} />}
            {grant.state !== 'draining' && (
              <Limits limits={grant.limits} trans={trans} />
            )}
          </li>
        );
      })}
    </ul>
  );
}

function State(
  props: IThisNotebookProps & { environment: IEnvironment; draining: boolean }
): JSX.Element | null {
  const { environment, draining, actions, busy, trans } = props;
  const button = (label: string) => (
    <button
      type="button"
      className="jp-Genv-button"
      disabled={busy !== undefined}
      onClick={actions.restart}
    >
      {label}
    </button>
  );
  if (replacing(environment) === 'failed') {
    return (
      <Note action={button(trans.__('Restart'))}>
        <Prose text={environment.reason ?? ''} />
      </Note>
    );
  }
  if (draining) {
    return (
      <Note action={button(trans.__('Restart to free'))}>
        {environment.reason ??
          trans.__('Given back; its memory is still in use.')}
      </Note>
    );
  }
  switch (missing(environment)) {
    case 'restart':
      return (
        <Note action={button(trans.__('Restart'))}>
          {trans.__('Takes effect at restart.')}
        </Note>
      );
    case 'pending':
      return <Note>{trans.__('The kernel is being told.')}</Note>;
    case 'unknown':
      return (
        <Note action={button(trans.__('Restart'))}>
          {trans.__('The kernel has not confirmed; a restart makes sure.')}
        </Note>
      );
    default:
      return null;
  }
}

function Refusal(props: {
  refusal: IRefusal;
  blocked: IBlockedActions;
  dismiss: () => void;
  trans: TranslationBundle;
}): JSX.Element {
  const { refusal, trans } = props;
  return (
    <div className="jp-Genv-refusal">
      <button
        type="button"
        className="jp-Genv-dismiss"
        aria-label={trans.__('Dismiss')}
        title={trans.__('Dismiss')}
        onClick={props.dismiss}
      >
        ×
      </button>
      <Blocked
        refusal={refusal}
        request={refusal.request ?? null}
        actions={props.blocked}
        trans={trans}
      />
    </div>
  );
}

function Note(props: {
  children: React.ReactNode;
  action?: React.ReactNode;
}): JSX.Element {
  return (
    <div className="jp-Genv-note">
      <span>{props.children}</span>
      {props.action}
    </div>
  );
}

function Quiet(props: { children: React.ReactNode }): JSX.Element {
  return <p className="jp-Genv-quiet">{props.children}</p>;
}
