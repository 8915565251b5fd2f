import type { TranslationBundle } from '@jupyterlab/translation';
import React, { useEffect, useId, useRef, useState } from 'react';
import type { IDevice, IRequest } from '../api/types';
import { otherUnit } from '../units';
import { deviceLabel, requestOf, type IDraft } from '../view';

export interface IAttachProps {
  devices: readonly IDevice[];
  /** Whether something is held already: attaching then replaces it. */
  holding: boolean;
  disabled: boolean;
  /** Whether the last request was refused: what was typed then stays to be mended. */
  refused: boolean;
  attach(request: IRequest): void;
  trans: TranslationBundle;
}

const EMPTY: IDraft = { share: '', memory: '', device: '' };

/** Quick choices, and a small form for everything else. */
export function Attach(props: IAttachProps): JSX.Element {
  const { holding, disabled, trans } = props;
  const [open, setOpen] = useState(false);
  const quick = (label: string, request: IRequest) => (
    <button
      type="button"
      className="jp-Genv-button"
      disabled={disabled}
      aria-label={trans.__('Attach %1', label)}
      onClick={() => props.attach(request)}
    >
      {label}
    </button>
  );
  return (
    <>
      <div
        className="jp-Genv-actions"
        role="group"
        aria-label={holding ? trans.__('Change to') : trans.__('Attach')}
      >
        <span className="jp-Genv-actionsLabel" aria-hidden="true">
          {holding ? trans.__('Change to') : trans.__('Attach')}
        </span>
        <span className="jp-Genv-choices">
          {quick(trans.__('½ GPU'), { fraction: 0.5 })}
          {quick(trans.__('1 GPU'), { gpus: 1 })}
          <button
            type="button"
            className="jp-Genv-button"
            disabled={disabled}
            aria-expanded={open}
            onClick={() => setOpen(!open)}
          >
            {trans.__('Other…')}
          </button>
        </span>
      </div>
      {open && <Form {...props} close={() => setOpen(false)} />}
    </>
  );
}

function Form(props: IAttachProps & { close(): void }): JSX.Element {
  const { devices, disabled, refused, close, trans } = props;
  const [draft, setDraft] = useState(EMPTY);
  const asked = useRef<'no' | 'sent' | 'running'>('no');
  const id = useId();
  const request = requestOf(draft);
  const odd = !request && draft.share.trim() !== '';
  useEffect(() => {
    if (asked.current === 'sent' && disabled) {
      asked.current = 'running';
    } else if (asked.current === 'running' && !disabled) {
      asked.current = 'no';
      if (!refused) {
        close();
      }
    }
  }, [disabled, refused, close]);
  const change =
    (field: keyof IDraft) =>
    (event: React.ChangeEvent<HTMLInputElement | HTMLSelectElement>) =>
      setDraft({ ...draft, [field]: event.target.value });
  return (
    <form
      className="jp-Genv-form"
      data-lm-suppress-shortcuts="true"
      onSubmit={event => {
        event.preventDefault();
        if (request) {
          asked.current = 'sent';
          props.attach(request);
        }
      }}
      onKeyDown={event => {
        if (event.key === 'Escape') {
          event.stopPropagation();
          props.close();
        }
      }}
    >
      <label htmlFor={`${id}-memory`}>{trans.__('Memory')}</label>
      <span className="jp-Genv-field">
        <input
          id={`${id}-memory`}
          className="jp-Genv-input"
          placeholder={trans.__('4G or 4GiB')}
          autoFocus
          autoComplete="off"
          spellCheck={false}
          value={draft.memory}
          onChange={change('memory')}
        />
        <span className="jp-Genv-unit">{otherUnit(draft.memory)}</span>
      </span>
      <label htmlFor={`${id}-share`}>{trans.__('GPUs')}</label>
      <span className="jp-Genv-field">
        <input
          id={`${id}-share`}
          className="jp-Genv-input"
          placeholder={trans.__('0.5 or 2')}
          inputMode="decimal"
          autoComplete="off"
          aria-invalid={odd}
          value={draft.share}
          onChange={change('share')}
        />
        <span className="jp-Genv-unit" role="status">
          {odd && trans.__('not a number')}
        </span>
      </span>
      <label htmlFor={`${id}-device`}>{trans.__('Device')}</label>
      <span className="jp-Genv-field">
        <select
          id={`${id}-device`}
          className="jp-Genv-input"
          value={draft.device}
          onChange={change('device')}
        >
          <option value="">{trans.__('any')}</option>
          {devices.map(device => (
            <option key={device.uuid} value={device.uuid}>
              {deviceLabel(device, trans)}
            </option>
          ))}
        </select>
      </span>
      <span className="jp-Genv-formActions">
        <button type="button" className="jp-Genv-button" onClick={props.close}>
          {trans.__('Cancel')}
        </button>
        <button
          type="submit"
          className="jp-Genv-button jp-mod-main"
          disabled={disabled || !request}
        >
          {trans.__('Attach')}
        </button>
      </span>
    </form>
  );
}
