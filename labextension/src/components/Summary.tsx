import type { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';
import { gpuIcon } from '../icons';
import { runElsewhere, type ITarget } from '../kernel';
import type { IEnvironment } from '../api/types';
import type { IState } from '../state';
import { formatPart } from '../units';
import { levelOf, totalOf } from '../usage';
import { missing, replacing, summary, where } from '../view';

export interface ISummaryProps {
  state: IState;
  target: ITarget | null;
  className: string;
  /** Whether there is room to say what is used. */
  detailed: boolean;
  open(): void;
  trans: TranslationBundle;
}

/** What a notebook has, in a button; nothing where there is nothing to say. */
export function Summary(props: ISummaryProps): JSX.Element | null {
  const { state, target, trans } = props;
  if (!state.loaded || state.connection.kind === 'absent' || !target?.id) {
    return null;
  }
  const environment = state.environments.get(target.id);
  if (!environment) {
    return runElsewhere() ? (
      <button
        type="button"
        className={props.className}
        data-mode="none"
        title={trans.__('A gateway starts the kernels of this Jupyter server.')}
        onClick={props.open}
      >
        <gpuIcon.react tag="span" className="jp-Genv-icon" />
        <span className="jp-Genv-buttonText">
          {trans.__('Kernels run elsewhere')}
        </span>
      </button>
    ) : null;
  }
  const mode = environment.grants.some(grant => grant.state === 'draining')
    ? 'draining'
    : missing(environment) || replacing(environment)
      ? 'late'
      : environment.grants.length
        ? 'held'
        : 'none';
  const used = props.detailed
    ? totalOf(environment, state.usage.get(environment.id))
    : null;
  const text = used
    ? `${where(environment, state.devices, trans)} · ${formatPart(used.used, used.cap, '/')}`
    : trans.__('GPU: %1', summary(environment, trans));
  const said = qualified(environment, text, trans);
  const simulated = state.devices.some(device => device.simulated);
  return (
    <button
      type="button"
      className={props.className}
      data-mode={mode}
      data-level={used ? levelOf(used.used, used.cap) : undefined}
      title={
        simulated
          ? trans.__('%1 (SIMULATED). Open the GPU panel', said)
          : trans.__('%1. Open the GPU panel', said)
      }
      onClick={props.open}
    >
      <gpuIcon.react tag="span" className="jp-Genv-icon" />
      <span className="jp-Genv-buttonText">{said}</span>
    </button>
  );
}

/** Add to what a notebook has what keeps its process from having it. */
function qualified(
  environment: IEnvironment,
  text: string,
  trans: TranslationBundle
): string {
  if (!environment.grants.length) {
    return text;
  }
  switch (replacing(environment)) {
    case 'restarting':
      return trans.__('%1, restarting', text);
    case 'failed':
      return trans.__('%1, not started', text);
    default:
      return missing(environment) === 'restart'
        ? trans.__('%1, at restart', text)
        : text;
  }
}
