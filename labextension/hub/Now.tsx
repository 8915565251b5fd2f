import React, { useMemo } from 'react';
import type { IDevice } from '../src/api/types';
import { Device } from '../src/components/Device';
import { Environments } from '../src/components/Environments';
import { Heading } from '../src/components/Heading';
import { Leftovers } from '../src/components/Leftovers';
import { Prose } from '../src/components/Prose';
import { Queue } from '../src/components/Queue';
import { Quota } from '../src/components/Quota';
import { nameOf } from '../src/listing';
import type { IState } from '../src/state';
import { deviceLabel } from '../src/view';
import type { IQuestion } from './Confirm';
import type { Gpu } from './gpu';
import { useFetched, useSlowly } from './hooks';
import { trans } from './trans';
import { Refusal } from './Way';

/** So many devices have their holders in sight; of more a click opens them. */
const FEW = 8;
/** Milliseconds between two looks at the quota. */
const PAUSE = 5000;

export interface INowProps {
  gpu: Gpu;
  state: IState;
  admin: boolean;
  user: string | null;
  now: number;
  ask(question: IQuestion): void;
}

/** Who holds what at this moment. */
export function Now(props: INowProps): JSX.Element {
  const { gpu, state, admin, now, ask } = props;
  const { folds } = gpu;
  const rows = {
    pathOf: () => null,
    open: () => undefined,
    release: (id: string) => ask(releaseOf(gpu, state, id))
  };
  return (
    <div className="jp-Genv-hubColumns">
      <div>
        <Devices {...props} />
        {state.queue.length > 0 && (
          <Queue
            state={state}
            isMine={id => isMine(state, id)}
            leave={ticket => void gpu.leave(ticket)}
            folds={folds}
            now={now}
            trans={trans}
          />
        )}
      </div>
      <div>
        <Environments
          state={state}
          own={null}
          actions={rows}
          folds={folds}
          now={now}
          trans={trans}
        />
        {state.leftovers.length > 0 && (
          <Leftovers
            state={state}
            end={leftover =>
              ask({
                title: `End process ${leftover.pid}?`,
                text: `${leftover.command ?? 'A program'} of ${leftover.user} is left of ${leftover.name ?? 'a kernel'}. What it computes is lost.`,
                label: 'End it',
                act: () => gpu.end(leftover)
              })
            }
            folds={folds}
            now={now}
            trans={trans}
          />
        )}
        {!admin && <Mine {...props} />}
        <Told {...props} />
        {state.health?.notices.map(line => (
          <p key={line} className="jp-Genv-hubSaid jp-Genv-quiet">
            <Prose text={line} />
          </p>
        ))}
      </div>
    </div>
  );
}

function isMine(state: IState, id: string): boolean {
  const environment = state.environments.get(id);
  return !!environment && environment.processes !== null;
}

function releaseOf(gpu: Gpu, state: IState, id: string): IQuestion {
  const environment = state.environments.get(id);
  const name = environment ? nameOf(environment, trans) : 'It';
  const user = environment?.user ?? '?';
  const busy =
    environment?.kernel_state === 'busy' ? ' It computes something now.' : '';
  return {
    title: `Release what ${name} has?`,
    text: `${name} of ${user} loses its GPUs; its process goes on, and what it has in GPU memory is free when it lets go of it or ends.${busy}`,
    label: 'Release',
    act: () => gpu.release(id)
  };
}

function Devices(props: INowProps): JSX.Element {
  const { gpu, state, user, now } = props;
  const { folds } = gpu;
  const owners = useMemo(() => ({ own: null, user }), [user]);
  const { devices } = state;
  const many = devices.length > FEW;
  return (
    <section className="jp-Genv-section" aria-label="Devices">
      <Heading
        title="Devices"
        note={String(devices.length)}
        name="devices"
        folds={folds}
      />
      {!folds.has('devices') && (
        <ul className="jp-Genv-devices" aria-label="Devices">
          {devices.map(device => {
            // What is remembered is what somebody has changed.
            const name = many ? `${device.uuid} open` : device.uuid;
            return (
              <li
                key={device.uuid}
                className="jp-Genv-device"
                data-uuid={device.uuid}
              >
                <Device
                  device={device}
                  load={state.loads.get(device.uuid) ?? []}
                  owners={owners}
                  name={name}
                  folds={folds}
                  folded={many !== folds.has(name)}
                  now={now}
                  trans={trans}
                />
                <Drain {...props} device={device} />
                <Refusal refusal={state.refusals.get(device.uuid)} />
              </li>
            );
          })}
        </ul>
      )}
      {!devices.length && <p className="jp-Genv-quiet">No GPU here.</p>}
    </section>
  );
}

/** Take a device out of use for maintenance, and put it back. */
function Drain(props: INowProps & { device: IDevice }): JSX.Element | null {
  const { gpu, state, admin, ask, device } = props;
  if (!admin) {
    return null;
  }
  const label = deviceLabel(device, trans);
  const busy = state.busy.has(device.uuid);
  return (
    <p className="jp-Genv-hubDevice">
      {device.maintenance ? (
        <button
          type="button"
          className="jp-Genv-link"
          disabled={busy}
          aria-label={`Put ${label} back`}
          onClick={() => void gpu.maintain(device.uuid, false)}
        >
          Put back
        </button>
      ) : (
        <button
          type="button"
          className="jp-Genv-link"
          disabled={busy}
          aria-label={`Drain ${label}`}
          onClick={() =>
            ask({
              title: `Drain ${label} for maintenance?`,
              text: 'Nobody gets anything new there. Those who hold something are told, and keep it.',
              reason: 'Reason, told to everybody',
              label: 'Drain',
              act: reason => gpu.maintain(device.uuid, true, reason)
            })
          }
        >
          Drain…
        </button>
      )}
    </p>
  );
}

/** What somebody who is no administrator may have. */
function Mine(props: INowProps): JSX.Element {
  const { gpu, state, now } = props;
  const held = useSlowly(
    [...state.environments.values()].map(it => it.grants.length).join(),
    PAUSE
  );
  const quota = useFetched(async () => {
    const view = await gpu.client.quota();
    return { view, at: Date.now() };
  }, [gpu, held]);
  return (
    <>
      {quota.value && (
        <Quota quota={quota.value} folds={gpu.folds} now={now} trans={trans} />
      )}
      <Refusal refusal={quota.refusal} />
    </>
  );
}

/** What owners are told at present; administrators see it of everybody. */
function Told(props: INowProps): JSX.Element | null {
  const { gpu, state, admin } = props;
  const { notices, environments } = state;
  const { folds } = gpu;
  if (!notices.length) {
    return null;
  }
  return (
    <section className="jp-Genv-section" aria-label="Notices">
      <Heading
        title="Notices"
        note={String(notices.length)}
        name="notices"
        folds={folds}
      />
      {!folds.has('notices') && (
        <ul>
          {notices.map(notice => {
            const about = environments.get(notice.environment ?? '');
            const name = about ? nameOf(about, trans) : '';
            const whose = [name, admin ? notice.user : ''].filter(it => it);
            return (
              <li
                key={notice.id}
                className="jp-Genv-note jp-Genv-notice"
                data-level={notice.level}
              >
                <span>
                  {whose.length > 0 && <b>{whose.join(' · ')}: </b>}
                  <Prose text={notice.message} />
                </span>
              </li>
            );
          })}
        </ul>
      )}
    </section>
  );
}
