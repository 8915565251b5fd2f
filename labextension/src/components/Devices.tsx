import type { TranslationBundle } from '@jupyterlab/translation';
import React, { useMemo } from 'react';
import type { IDevice } from '../api/types';
import type { IFolds } from '../folds';
import type { ISample } from '../series';
import { inTree } from '../view';
import { Device, type IOwners } from './Device';
import { Heading } from './Heading';
import { VirtualList } from './VirtualList';

export interface IDevicesProps {
  devices: readonly IDevice[];
  loads: ReadonlyMap<string, readonly ISample[]>;
  owners: IOwners;
  folds: IFolds;
  now: number;
  trans: TranslationBundle;
}

/** So many devices have their holders in sight; of more a click opens them. */
const FEW = 8;
const HEIGHT = 62;
const NONE: readonly ISample[] = [];

/** All devices of the pool, MIG instances after their device, each with its bar and holders. */
export function Devices(props: IDevicesProps): JSX.Element {
  const { devices, loads, owners, folds, now, trans } = props;
  const rows = useMemo(() => inTree(devices), [devices]);
  const many = devices.length > FEW;
  return (
    <section className="jp-Genv-section" aria-label={trans.__('Devices')}>
      <Heading
        title={trans.__('Devices')}
        note={many ? String(devices.length) : undefined}
        name="devices"
        folds={folds}
      />
      {!folds.has('devices') && (
        <VirtualList
          items={rows}
          className="jp-Genv-devices"
          label={trans.__('Devices')}
          height={HEIGHT}
          keyOf={row => (row.kind === 'device' ? row.device.uuid : row.uuid)}
          attributes={row =>
            row.kind === 'device'
              ? {
                  className: `jp-Genv-device${row.within ? ' jp-mod-within' : ''}`,
                  'data-uuid': row.device.uuid
                }
              : { className: 'jp-Genv-device' }
          }
          render={row => {
            if (row.kind === 'divided') {
              return <Divided {...row} trans={trans} />;
            }
            const { device } = row;
            // What is remembered is what somebody has changed.
            const name = many ? `${device.uuid} open` : device.uuid;
            return (
              <Device
                device={device}
                load={loads.get(device.uuid) ?? NONE}
                owners={owners}
                name={name}
                folds={folds}
                folded={many !== folds.has(name)}
                now={now}
                trans={trans}
              />
            );
          }}
        />
      )}
    </section>
  );
}

/** A GPU that is divided: what can be had are its instances, below it. */
function Divided(props: {
  uuid: string;
  parts: readonly IDevice[];
  trans: TranslationBundle;
}): JSX.Element {
  const { uuid, parts, trans } = props;
  return (
    <div className="jp-Genv-deviceHead">
      <span className="jp-Genv-deviceLabel" title={uuid}>
        {trans.__('GPU %1…', uuid.replace(/^GPU-/, '').slice(0, 8))}
      </span>
      <span className="jp-Genv-deviceName">
        {trans._n('1 MIG instance', '%1 MIG instances', parts.length)}
      </span>
    </div>
  );
}
