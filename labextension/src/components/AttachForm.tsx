import React, { useEffect, useId, useRef, useState } from 'react';
import type { IRequest } from '../api/types';
import { draftOf, requestOf, withDevice, type IDraft } from '../draft';
import { usePreview } from '../preview';
import { formatMemory, otherUnit } from '../units';
import { Amount } from './Amount';
import { stampOf, type IAttachProps } from './Attach';
import { Blocked } from './Blocked';
import { Landings } from './Landings';

/** Everything that can be asked for, with what it would come to before it is asked. */
export function AttachForm(
  props: IAttachProps & { close(): void }
): JSX.Element {
  const { devices, own, disabled, place, close, trans } = props;
  const [draft, setDraft] = useState(() => draftOf(props.held, devices));
  const asked = useRef<'no' | 'sent' | 'running'>('no');
  const id = useId();
  const request = requestOf(draft);
  const { preview, fresh } = usePreview(place, request, stampOf(devices));
  useEffect(() => {
    if (asked.current === 'sent' && disabled) {
      asked.current = 'running';
    } else if (asked.current === 'running' && !disabled) {
      asked.current = 'no';
      if (!props.refused) {
        close();
      }
    }
  }, [disabled, props.refused, close]);
  const grants = preview?.kind === 'fits' ? preview.grants : [];
  const refused = preview?.kind === 'refused' && fresh;
  // Whoever waits asks for what is not there yet.
  const waits = refused && preview.refusal.taken && !!request?.wait;
  const blocked = refused && !waits;
  const send = (what: IRequest) => {
    asked.current = 'sent';
    props.attach(what);
  };
  const change = (field: keyof IDraft) => (value: string) =>
    setDraft({ ...draft, [field]: value });
  return (
    <form
      className="jp-Genv-form"
      data-lm-suppress-shortcuts="true"
      aria-label={trans.__('Attach')}
      onSubmit={event => {
        event.preventDefault();
        if (request && !blocked) {
          send(request);
        }
      }}
      onKeyDown={event => {
        if (event.key === 'Escape') {
          event.stopPropagation();
          close();
        }
      }}
    >
      <Amount
        draft={draft}
        most={devices.length}
        change={setDraft}
        trans={trans}
      />
      <Text
        id={`${id}-memory`}
        label={trans.__('Memory')}
        placeholder={
          grants.length && !draft.memory
            ? formatMemory(grants[0].memory)
            : trans.__('4G or 4GiB')
        }
        note={otherUnit(draft.memory)}
        value={draft.memory}
        change={change('memory')}
      />
      <Landings
        devices={devices}
        own={own}
        grants={grants}
        chosen={draft.devices}
        toggle={uuid => setDraft(withDevice(draft, uuid))}
        choose={uuid => setDraft({ ...draft, devices: uuid ? [uuid] : [] })}
        trans={trans}
      />
      <div className="jp-Genv-outlook" role="status">
        {refused && (
          <Blocked
            refusal={preview.refusal}
            request={request}
            actions={{ ...props.blocked, attach: send }}
            trans={trans}
          />
        )}
      </div>
      <details className="jp-Genv-extras">
        <summary>{trans.__('Duration, name, wait')}</summary>
        <div className="jp-Genv-fields">
          <Text
            id={`${id}-duration`}
            label={trans.__('Duration')}
            placeholder={trans.__('no end; 2h30m')}
            value={draft.duration}
            change={change('duration')}
          />
          <Text
            id={`${id}-name`}
            label={trans.__('Name')}
            placeholder={trans.__('what others see')}
            value={draft.name}
            change={change('name')}
          />
          <Text
            id={`${id}-wait`}
            label={trans.__('Wait')}
            placeholder={trans.__('not at all; 30m')}
            value={draft.wait}
            change={change('wait')}
          />
        </div>
      </details>
      <span className="jp-Genv-formActions">
        <button type="button" className="jp-Genv-button" onClick={close}>
          {trans.__('Cancel')}
        </button>
        <button
          type="submit"
          className="jp-Genv-button jp-mod-main"
          disabled={disabled || !request || blocked}
        >
          {waits ? trans.__('Wait for it') : trans.__('Attach')}
        </button>
      </span>
    </form>
  );
}

function Text(props: {
  id: string;
  label: string;
  placeholder: string;
  note?: string;
  value: string;
  change(value: string): void;
}): JSX.Element {
  const { id, label, placeholder, note, value, change } = props;
  return (
    <>
      <label htmlFor={id}>{label}</label>
      <span className="jp-Genv-field">
        <input
          id={id}
          className="jp-Genv-input"
          placeholder={placeholder}
          autoComplete="off"
          spellCheck={false}
          value={value}
          onChange={event => change(event.target.value)}
        />
        {note && <span className="jp-Genv-unit">{note}</span>}
      </span>
    </>
  );
}
