import type { TranslationBundle } from '@jupyterlab/translation';
import React, { useId } from 'react';
import type { IDevice, IGrant } from '../api/types';
import { landings, type ILanding } from '../draft';
import { formatMemory } from '../units';
import { amount, deviceLabel, freeMemory } from '../view';

export interface ILandingsProps {
  devices: readonly IDevice[];
  own: string;
  /** What the request would get now. */
  grants: readonly IGrant[];
  /** UUIDs of the devices that are asked for; empty: any. */
  chosen: readonly string[];
  /** Ask for a device too, or not any more. */
  toggle(uuid: string): void;
  /** Ask for one device only; empty: for any. */
  choose(uuid: string): void;
  trans: TranslationBundle;
}

/** So many devices are shown one by one; of more those that matter, and a list to choose from. */
const FEW = 6;

/** Where a request would land, what that leaves, and the choice to have it elsewhere. */
export function Landings(props: ILandingsProps): JSX.Element {
  const { devices, own, grants, chosen, trans } = props;
  const few = devices.length <= FEW;
  const all = landings(devices, own, grants);
  const shown = few
    ? all
    : all.filter(
        ({ device, grant }) => grant !== null || chosen.includes(device.uuid)
      );
  return (
    <fieldset className="jp-Genv-landings">
      <legend>
        {chosen.length
          ? trans._n('On this device', 'On these devices', chosen.length)
          : trans.__('On any device')}
      </legend>
      {!few && <Choice {...props} />}
      {shown.slice(0, FEW).map(landing => (
        <Landing
          key={landing.device.uuid}
          {...props}
          landing={landing}
          fixed={!few}
        />
      ))}
      {shown.length > FEW && (
        <p className="jp-Genv-quiet">
          {trans.__('And %1 more.', shown.length - FEW)}
        </p>
      )}
    </fieldset>
  );
}

function Choice(props: ILandingsProps): JSX.Element {
  const { devices, chosen, trans } = props;
  return (
    <select
      className="jp-Genv-input"
      aria-label={trans.__('Device')}
      value={chosen[0] ?? ''}
      onChange={event => props.choose(event.target.value)}
    >
      <option value="">{trans.__('any')}</option>
      {devices.map(device => (
        <option key={device.uuid} value={device.uuid}>
          {trans.__(
            '%1, %2 free',
            deviceLabel(device, trans),
            formatMemory(freeMemory(device))
          )}
        </option>
      ))}
    </select>
  );
}

function Landing(
  props: ILandingsProps & { landing: ILanding; fixed: boolean }
): JSX.Element {
  const { chosen, toggle, landing, fixed, trans } = props;
  const { device, grant, left } = landing;
  const id = useId();
  const label = deviceLabel(device, trans);
  const total = device.memory_usable ?? 0;
  const share = (bytes: number) =>
    `${Math.min(100, (100 * bytes) / Math.max(1, total))}%`;
  const taken = Math.max(0, total - (left ?? 0) - (grant?.memory ?? 0));
  return (
    <div className="jp-Genv-landing" data-lands={grant !== null}>
      {fixed ? (
        <span className="jp-Genv-deviceLabel">{label}</span>
      ) : (
        <label className="jp-Genv-deviceLabel">
          <input
            type="checkbox"
            checked={chosen.includes(device.uuid)}
            aria-describedby={id}
            onChange={() => toggle(device.uuid)}
          />
          {label}
        </label>
      )}
      <span id={id} className="jp-Genv-amount">
        {grant
          ? trans.__('%1, leaves %2', amount(grant, trans), formatMemory(left))
          : trans.__('%1 free', formatMemory(left))}
      </span>
      {left !== null && (
        <span className="jp-Genv-bar" aria-hidden="true">
          {taken > 0 && (
            <span
              className="jp-Genv-segment jp-mod-other"
              style={{ width: share(taken) }}
            />
          )}
          {grant && (
            <span
              className="jp-Genv-segment jp-mod-mine"
              style={{ width: share(grant.memory) }}
            />
          )}
        </span>
      )}
    </div>
  );
}
