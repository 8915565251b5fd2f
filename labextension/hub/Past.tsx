import React, { useEffect, useMemo, useRef, useState } from 'react';
import type { IUsageReport } from '../src/api/types';
import { saveCsv, savePng } from '../src/history/export';
import { HistoryView } from '../src/history/HistoryView';
import { HistoryModel } from '../src/history/model';
import { fetchHistory } from '../src/history/source';
import type { Subject } from '../src/history/data';
import type { IState } from '../src/state';
import { formatMemory } from '../src/units';
import { deviceLabel } from '../src/view';
import type { By } from './client';
import type { Gpu } from './gpu';
import { useFetched, useSignal } from './hooks';
import { Spans, sinceOf, type Span } from './Spans';
import { trans } from './trans';
import { Loading } from '../src/components/Message';
import { Refusal } from './Way';

/** Seconds between two updates of the charts. */
const INTERVAL = 15;
const HOUR = 3600;
const MOST = 100;

export interface IPastProps {
  gpu: Gpu;
  state: IState;
  /** What is looked at: `device/UUID`, `environment/ID`, or nothing in particular. */
  subject: string;
  admin: boolean;
  theme: string;
}

/** Charts of a device or an environment, and what everybody had. */
export function Past(props: IPastProps): JSX.Element {
  const { state } = props;
  const first = state.devices[0]?.uuid;
  const [kind, id] = props.subject.split('/');
  const chosen: Subject | null =
    (kind === 'device' || kind === 'environment') && id
      ? { kind, id: decodeURIComponent(id) }
      : first
        ? { kind: 'device', id: first }
        : null;
  return (
    <>
      {chosen && <Charts {...props} chosen={chosen} />}
      <Report {...props} />
    </>
  );
}

function Charts(props: IPastProps & { chosen: Subject }): JSX.Element {
  const { gpu, state, chosen, theme } = props;
  const key = chosen.kind === 'mine' ? '' : `${chosen.kind}/${chosen.id}`;
  const model = useMemo(
    () =>
      new HistoryModel(
        chosen,
        (subject, span) =>
          fetchHistory(
            gpu.client,
            gpu.store.state.devices,
            subject,
            span,
            trans
          ),
        () => INTERVAL
      ),
    // eslint-disable-next-line react-hooks/exhaustive-deps -- the subject is what the key says
    [gpu, key]
  );
  const node = useRef<HTMLElement>(null);
  useSignal(model.changed);
  useEffect(() => {
    const look = () => (document.hidden ? model.stop() : model.start());
    look();
    document.addEventListener('visibilitychange', look);
    return () => {
      document.removeEventListener('visibilitychange', look);
      model.dispose();
    };
  }, [model]);
  const name = () => `${model.history?.title ?? 'gpu'} ${model.span}`;
  const named = state.devices.some(it => `device/${it.uuid}` === key);
  return (
    <section ref={node} className="jp-Genv-section" aria-label="History">
      <label className="jp-Genv-hubField">
        Of
        <select
          className="jp-Genv-input"
          value={key}
          onChange={event => {
            location.hash = `history/${event.target.value}`;
          }}
        >
          {!named && (
            <option value={key}>{model.history?.title ?? 'Environment'}</option>
          )}
          {state.devices.map(device => (
            <option key={device.uuid} value={`device/${device.uuid}`}>
              {deviceLabel(device, trans)} {device.name}
            </option>
          ))}
        </select>
      </label>
      <HistoryView
        model={model}
        look={theme}
        simulated={state.devices.some(device => device.simulated)}
        saveCsv={() => {
          if (model.history) {
            saveCsv(model.history, `${name()}.csv`);
          }
        }}
        savePng={() => {
          if (model.history && node.current) {
            void savePng(node.current, model.history, `${name()}.png`);
          }
        }}
        trans={trans}
      />
    </section>
  );
}

/** GPU-hours of users, devices or environments. */
function Report(props: IPastProps): JSX.Element {
  const { gpu, state } = props;
  const [span, setSpan] = useState<Span>('7d');
  const [by, setBy] = useState<By>('user');
  const report = useFetched(
    () => gpu.client.reportBy(sinceOf(span), by),
    [gpu, span, by]
  );
  const rows = report.value?.by === by ? report.value.rows : [];
  const names = new Map(
    state.devices.map(it => [it.uuid, deviceLabel(it, trans)])
  );
  const kinds: Record<By, string> = {
    user: 'By user',
    device: 'By device',
    environment: 'By environment'
  };
  return (
    <section className="jp-Genv-section" aria-label="GPU-hours">
      <div className="jp-Genv-hubBar">
        <h2 className="jp-Genv-heading">GPU-hours</h2>
        <span className="jp-Genv-choices" role="group" aria-label="Rows">
          {(Object.keys(kinds) as By[]).map(kind => (
            <button
              key={kind}
              type="button"
              className="jp-Genv-button"
              aria-pressed={kind === by}
              onClick={() => setBy(kind)}
            >
              {kinds[kind]}
            </button>
          ))}
        </span>
        <Spans span={span} choose={setSpan} />
      </div>
      <Refusal refusal={report.refusal} />
      {report.value === null && !report.refusal && <Loading label="Loading" />}
      {report.value?.by === by && !rows.length && (
        <p className="jp-Genv-quiet">Nothing was held in this time.</p>
      )}
      {rows.length > 0 && (
        <table className="jp-Genv-hubTable" aria-busy={report.busy}>
          <thead>
            <tr>
              <th scope="col">{kinds[by].slice(3)}</th>
              <th scope="col">GPU-hours</th>
              <th scope="col">Held</th>
              <th scope="col">Idle</th>
              <th scope="col">Peak</th>
            </tr>
          </thead>
          <tbody>
            {rows.slice(0, MOST).map(row => (
              <tr key={row.key}>
                <th scope="row">{labelOf(row, by, names)}</th>
                <td data-label="GPU-hours">
                  {(row.gpu_seconds / HOUR).toFixed(2)}
                </td>
                <td data-label="Held">
                  {(row.held_seconds / HOUR).toFixed(2)} h
                </td>
                <td data-label="Idle">
                  {row.known_seconds
                    ? `${Math.round((100 * row.idle_seconds) / row.known_seconds)} %`
                    : '?'}
                </td>
                <td data-label="Peak">{formatMemory(row.memory_peak)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      {rows.length > MOST && (
        <p className="jp-Genv-quiet">
          And {rows.length - MOST} more: `jupyter gpu report` lists them all.
        </p>
      )}
    </section>
  );
}

function labelOf(
  row: IUsageReport['rows'][number],
  by: By,
  devices: ReadonlyMap<string, string>
): string {
  switch (by) {
    case 'user':
      return row.user ?? row.key;
    case 'device':
      return devices.get(row.key) ?? row.key.slice(0, 12);
    case 'environment': {
      const name = row.name ?? row.key.slice(0, 8);
      return row.user ? `${name} of ${row.user}` : name;
    }
  }
}
