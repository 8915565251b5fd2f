import type { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';
import type { IDevice } from '../api/types';
import { formatMemory } from '../units';
import { deviceLabel, freeMemory, segments } from '../view';
import type { IOwners } from './Device';

export interface IDeviceBarProps {
  device: IDevice;
  owners: IOwners;
  trans: TranslationBundle;
}

/** The memory of a device as one bar: grants, outsiders, and what is free. */
export function DeviceBar(props: IDeviceBarProps): JSX.Element {
  const { device, owners, trans } = props;
  const parts = segments(device, owners, trans);
  const free = trans.__('free: %1', formatMemory(freeMemory(device)));
  const said = [...parts.map(part => part.label), free].join('; ');
  return (
    <div
      className="jp-Genv-bar"
      role="img"
      aria-label={`${deviceLabel(device, trans)}: ${said}`}
    >
      {parts.map(part => (
        <span
          key={part.key}
          className={`jp-Genv-segment jp-mod-${part.kind}`}
          data-own={part.own}
          data-odd={part.odd}
          style={{ width: `${part.share}%` }}
          title={part.label}
        />
      ))}
    </div>
  );
}
