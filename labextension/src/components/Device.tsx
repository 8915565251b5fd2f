import type { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';
import type { IDevice } from '../api/types';
import type { IFolds } from '../folds';
import type { ISample } from '../series';
import { formatClock, formatMemory } from '../units';
import { deviceLabel, deviceState, freeMemory } from '../view';
import { DeviceBar } from './DeviceBar';
import { Fold } from './Heading';
import { HistoryLink } from './HistoryLink';
import { Holder } from './Holder';
import { Prose } from './Prose';
import { Sparkline } from './Sparkline';

/** Whose things are the reader's. */
export interface IOwners {
  /** The environment of the notebook in front. */
  own: string | null;
  /** The user that the reader is to the broker; null where that is not known yet. */
  user: string | null;
}

export interface IDeviceProps {
  device: IDevice;
  load: readonly ISample[];
  owners: IOwners;
  /** Under which its fold is remembered. */
  name: string;
  folds: IFolds;
  folded: boolean;
  now: number;
  trans: TranslationBundle;
}

/** One device: what it is, its memory as a bar, how it is, and who holds it. */
export const Device = React.memo(function Device(
  props: IDeviceProps
): JSX.Element {
  const { device, load, owners, folds, folded, now, trans } = props;
  return (
    <>
      <div className="jp-Genv-deviceHead">
        <span className="jp-Genv-deviceLabel">
          <Fold name={props.name} folds={folds} folded={folded}>
            {deviceLabel(device, trans)}
          </Fold>
        </span>
        <HistoryLink
          kind="device"
          id={device.uuid}
          name={deviceLabel(device, trans)}
          className="jp-Genv-deviceName"
          title={`${device.name ?? ''}\n${device.uuid}`}
          trans={trans}
        >
          {device.name ?? trans.__('History')}
        </HistoryLink>
        <span className="jp-Genv-free">{room(device, trans)}</span>
      </div>
      <DeviceBar device={device} owners={owners} trans={trans} />
      <p className="jp-Genv-deviceState">
        <span>{deviceState(device, folded, trans)}</span>
        {device.health !== 'lost' && (
          <Sparkline series={load} now={now} trans={trans} />
        )}
      </p>
      <Trouble device={device} trans={trans} />
      <Maintenance device={device} now={now} trans={trans} />
      {!folded && (
        <ul className="jp-Genv-holders">
          {device.grants.map((grant, index) => (
            <Holder
              key={`${grant.environment} ${grant.since}`}
              grant={grant}
              odd={index % 2 === 1}
              owners={owners}
              now={now}
              trans={trans}
            />
          ))}
          <Outsiders device={device} trans={trans} />
        </ul>
      )}
    </>
  );
});

function room(device: IDevice, trans: TranslationBundle): string {
  if (device.maintenance) {
    return trans.__('under maintenance');
  }
  const free = freeMemory(device);
  if (free === null) {
    return trans.__('memory unknown');
  }
  if (free === 0) {
    return trans.__('nothing free');
  }
  return trans.__('%1 free', formatMemory(free));
}

function Trouble(props: {
  device: IDevice;
  trans: TranslationBundle;
}): JSX.Element | null {
  const { device, trans } = props;
  const words: Record<string, string> = {
    lost: trans.__('This device is lost: the driver does not see it any more.'),
    unreliable: trans.__(
      'What the driver says of this device is not reliable.'
    ),
    unknown: trans.__(
      'The driver does not answer: this is the last that is known.'
    )
  };
  const word = device.trouble ?? words[device.health];
  return word ? (
    <p className="jp-Genv-trouble">
      <Prose text={word} />
    </p>
  ) : null;
}

/** Since when nobody gets anything new here, and why. */
function Maintenance(props: {
  device: IDevice;
  now: number;
  trans: TranslationBundle;
}): JSX.Element | null {
  const { device, now, trans } = props;
  const { maintenance } = device;
  if (!maintenance) {
    return null;
  }
  const { since, by, reason } = maintenance;
  const said = trans.__(
    'Under maintenance since %1 by %2',
    formatClock(since, now),
    by
  );
  return (
    <p className="jp-Genv-trouble">{reason ? `${said}: ${reason}` : said}</p>
  );
}

function Outsiders(props: {
  device: IDevice;
  trans: TranslationBundle;
}): JSX.Element {
  const { device, trans } = props;
  const lines: [string, string, number | null][] = [
    [
      'external',
      trans.__('Processes outside any environment'),
      device.external_memory
    ],
    [
      'unattributed',
      trans.__('Used by no visible process'),
      device.unattributed_memory
    ]
  ];
  return (
    <>
      {lines.map(([kind, label, bytes]) =>
        bytes ? (
          <li key={kind} className="jp-Genv-holder">
            <span
              className={`jp-Genv-swatch jp-mod-${kind}`}
              aria-hidden="true"
            />
            <span className="jp-Genv-holderName" title={label}>
              {label}
            </span>
            <span className="jp-Genv-amount">{formatMemory(bytes)}</span>
          </li>
        ) : null
      )}
    </>
  );
}
