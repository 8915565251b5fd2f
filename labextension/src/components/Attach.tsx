import type { TranslationBundle } from '@jupyterlab/translation';
import React, { useState } from 'react';
import type { IDevice, IRequest } from '../api/types';
import { landings } from '../draft';
import { usePreview, type IPreview, type Place } from '../preview';
import { formatMemory } from '../units';
import { lasting } from '../wanted';
import { amount, deviceLabel, freeMemory } from '../view';
import { AttachForm } from './AttachForm';
import { Blocked, type IBlockedActions } from './Blocked';

export interface IAttachProps {
  devices: readonly IDevice[];
  /** The environment that is to have something. */
  own: string;
  /** Whether something is held already: attaching then replaces it. */
  holding: boolean;
  /** What is held was asked for so; null where nothing is. */
  held: IRequest | null;
  disabled: boolean;
  /** Whether the last request was refused: what was typed then stays to be mended. */
  refused: boolean;
  attach(request: IRequest): void;
  place: Place;
  blocked: IBlockedActions;
  trans: TranslationBundle;
}

/** What is free, in a word: when it changes, what was tried is tried again. */
export function stampOf(devices: readonly IDevice[]): string {
  return devices
    .map(device => `${device.grants.length}:${freeMemory(device)}`)
    .join();
}

/** Quick choices, which tell beforehand what comes of them, and a form for everything else. */
export function Attach(props: IAttachProps): JSX.Element {
  const { devices, own, holding, disabled, place, blocked, trans } = props;
  const [open, setOpen] = useState(false);
  const [near, setNear] = useState<INear | null>(null);
  const leave = (by: INear['by']) =>
    setNear(now => (now?.by === by ? null : now));
  const { preview, fresh } = usePreview(
    place,
    open || disabled || !near ? null : near.request,
    stampOf(devices)
  );
  const quick = (label: string, request: IRequest) => (
    <button
      type="button"
      className="jp-Genv-button"
      disabled={disabled}
      aria-label={trans.__('Attach %1', label)}
      onPointerEnter={() => setNear({ request, by: 'pointer' })}
      onFocus={event => {
        // Not when the panel is opened by a click: nobody has chosen anything then.
        if (event.target.matches(':focus-visible')) {
          setNear({ request, by: 'focus' });
        }
      }}
      onClick={() => {
        setNear(null);
        props.attach(request);
      }}
    >
      {label}
    </button>
  );
  return (
    <div
      onPointerLeave={() => leave('pointer')}
      onBlur={event => {
        if (!event.currentTarget.contains(event.relatedTarget)) {
          leave('focus');
        }
      }}
    >
      <div
        className="jp-Genv-actions"
        role="group"
        aria-label={holding ? trans.__('Change to') : trans.__('Attach')}
      >
        <span className="jp-Genv-actionsLabel" aria-hidden="true">
          {holding ? trans.__('Change to') : trans.__('Attach')}
        </span>
        <span className="jp-Genv-choices">
          {!isSame(props.held, HALF_OF_ONE) &&
            quick(trans.__('½ GPU'), HALF_OF_ONE)}
          {!isSame(props.held, ONE) && quick(trans.__('1 GPU'), ONE)}
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
      {open ? (
        <AttachForm {...props} close={() => setOpen(false)} />
      ) : (
        <div className="jp-Genv-outlook" role="status" data-fresh={fresh}>
          {preview && fresh && (
            <Outlook
              preview={preview}
              request={near?.request ?? null}
              devices={devices}
              own={own}
              blocked={blocked}
              trans={trans}
            />
          )}
        </div>
      )}
    </div>
  );
}

/** The quick choice that somebody is about to take, and how they show it. */
interface INear {
  request: IRequest;
  by: 'pointer' | 'focus';
}

const HALF_OF_ONE: IRequest = { fraction: 0.5 };
const ONE: IRequest = { gpus: 1 };

/** Whether that is held which a choice would ask for. */
function isSame(held: IRequest | null, choice: IRequest): boolean {
  return (
    held !== null &&
    JSON.stringify(lasting(held)) === JSON.stringify(lasting(choice))
  );
}

/** What would come of a quick choice, in a line; or why nothing would. */
function Outlook(props: {
  preview: IPreview;
  request: IRequest | null;
  devices: readonly IDevice[];
  own: string;
  blocked: IBlockedActions;
  trans: TranslationBundle;
}): JSX.Element | null {
  const { preview, devices, own, blocked, trans } = props;
  if (preview.kind === 'refused') {
    return (
      <Blocked
        refusal={preview.refusal}
        request={props.request}
        actions={blocked}
        trans={trans}
      />
    );
  }
  if (preview.kind === 'unknown') {
    return null;
  }
  const said = landings(devices, own, preview.grants).flatMap(
    ({ device, grant, left }) =>
      grant
        ? [
            trans.__(
              '%1: %2, leaves %3',
              deviceLabel(device, trans),
              amount(grant, trans),
              formatMemory(left)
            )
          ]
        : []
  );
  return <p>{said.join('; ')}</p>;
}
