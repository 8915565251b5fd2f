import type { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';
import type { IDevice } from '../api/types';
import type { IFolds } from '../folds';
import { formatMemory } from '../units';
import { deviceLabel, deviceState, freeMemory } from '../view';
import { DeviceBar } from './DeviceBar';
import { Fold, Heading } from './Heading';
import { Holder } from './Holder';

export interface IDevicesProps {
  devices: readonly IDevice[];
  own: string | null;
  folds: IFolds;
  now: number;
  trans: TranslationBundle;
}

/** All devices of the pool, each with its bar and its holders. */
export function Devices(props: IDevicesProps): JSX.Element {
  const { devices, own, folds, now, trans } = props;
  return (
    <section className="jp-Genv-section" aria-label={trans.__('Devices')}>
      <Heading title={trans.__('Devices')} name="devices" folds={folds} />
      {!folds.has('devices') && (
        <ul className="jp-Genv-devices">
          {devices.map(device => (
            <Device
              key={device.uuid}
              device={device}
              own={own}
              folds={folds}
              folded={folds.has(device.uuid)}
              now={now}
              trans={trans}
            />
          ))}
        </ul>
      )}
    </section>
  );
}

interface IDeviceProps {
  device: IDevice;
  own: string | null;
  folds: IFolds;
  folded: boolean;
  now: number;
  trans: TranslationBundle;
}

const Device = React.memo(function Device(props: IDeviceProps): JSX.Element {
  const { device, own, folds, folded, now, trans } = props;
  return (
    <li className="jp-Genv-device" data-uuid={device.uuid}>
      <div className="jp-Genv-deviceHead">
        <span className="jp-Genv-deviceLabel">
          <Fold name={device.uuid} folds={folds}>
            {deviceLabel(device, trans)}
          </Fold>
        </span>
        <span
          className="jp-Genv-deviceName"
          title={`${device.name ?? ''}\n${device.uuid}`}
        >
          {device.name}
        </span>
        <span className="jp-Genv-free">{room(device, trans)}</span>
      </div>
      <DeviceBar device={device} own={own} trans={trans} />
      <p className="jp-Genv-deviceState">
        {deviceState(device, folded, trans)}
      </p>
      <Trouble device={device} trans={trans} />
      {!folded && (
        <ul className="jp-Genv-holders">
          {device.grants.map((grant, index) => (
            <Holder
              key={`${grant.environment} ${grant.since}`}
              grant={grant}
              odd={index % 2 === 1}
              own={grant.environment === own}
              now={now}
              trans={trans}
            />
          ))}
          <Outsiders device={device} trans={trans} />
        </ul>
      )}
    </li>
  );
});

function room(device: IDevice, trans: TranslationBundle): string {
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
  const word = words[device.health];
  return word ? <p className="jp-Genv-trouble">{word}</p> : null;
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
