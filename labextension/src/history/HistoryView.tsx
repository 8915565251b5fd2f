import type { TranslationBundle } from '@jupyterlab/translation';
import React, { useEffect, useRef, useState } from 'react';
import type uPlot from 'uplot';
import { Prose } from '../components/Prose';
import { formatMemory } from '../units';
import {
  SPANS,
  type IChart,
  type IHistory,
  type IMark,
  type Span
} from './data';
import type { HistoryModel } from './model';
import { clock, dataOf, makePlot, paletteOf } from './plot';

export interface IHistoryViewProps {
  model: HistoryModel;
  /** Changes with the theme and the settings: then the charts are made anew. */
  look: string;
  simulated: boolean;
  savePng(): void;
  saveCsv(): void;
  trans: TranslationBundle;
}

const MOST_MARKS = 100;

/** The past of a device, an environment, or of all that one has. */
export function HistoryView(props: IHistoryViewProps): JSX.Element {
  const { model, simulated, trans } = props;
  const { history, refusal } = model;
  const names: Record<Span, string> = {
    '10m': trans.__('10 min'),
    '1h': trans.__('1 h'),
    '1d': trans.__('1 day'),
    '7d': trans.__('7 days')
  };
  const nothing = history && !history.charts.length;
  return (
    <div className="jp-Genv-history" aria-busy={model.loading}>
      <div className="jp-Genv-historyBar">
        <h2>
          {history?.title ?? trans.__('History')}
          {simulated && <strong> {trans.__('SIMULATED')}</strong>}
        </h2>
        <span
          className="jp-Genv-choices"
          role="group"
          aria-label={trans.__('Span')}
        >
          {(Object.keys(SPANS) as Span[]).map(span => (
            <button
              key={span}
              type="button"
              className="jp-Genv-button"
              aria-pressed={span === model.span}
              onClick={() => model.show(span)}
            >
              {names[span]}
            </button>
          ))}
        </span>
        <span className="jp-Genv-choices">
          <button
            type="button"
            className="jp-Genv-button"
            disabled={!history?.charts.length}
            onClick={props.savePng}
          >
            {trans.__('Save PNG')}
          </button>
          <button
            type="button"
            className="jp-Genv-button"
            disabled={!history?.charts.length}
            onClick={props.saveCsv}
          >
            {trans.__('Save CSV')}
          </button>
        </span>
      </div>
      <div role="status">
        {refusal && (
          <p className="jp-Genv-trouble">
            <Prose text={`${refusal.message} ${refusal.hint}`.trim()} />
          </p>
        )}
        {!history && !refusal && (
          <p className="jp-Genv-quiet">{trans.__('Loading')}</p>
        )}
        {nothing && (
          <p className="jp-Genv-quiet">
            {trans.__('Nothing was held in this time.')}
          </p>
        )}
      </div>
      {history && (
        <>
          <Charts history={history} look={props.look} trans={trans} />
          <Totals history={history} trans={trans} />
          <Marks marks={history.marks} trans={trans} />
        </>
      )}
    </div>
  );
}

function Charts(props: {
  history: IHistory;
  look: string;
  trans: TranslationBundle;
}): JSX.Element {
  const { history, look, trans } = props;
  const [mark, setMark] = useState<IMark | null>(null);
  return (
    <>
      {history.charts.map(chart => (
        <Chart
          // Another set of lines is another chart.
          key={`${look} ${chart.title} ${chart.lines.map(it => it.label).join()}`}
          chart={chart}
          history={history}
          onMark={setMark}
          trans={trans}
        />
      ))}
      <p className="jp-Genv-markText" aria-live="polite">
        {mark && `${clock(mark.at)} ${mark.text}`}
      </p>
    </>
  );
}

function Chart(props: {
  chart: IChart;
  history: IHistory;
  onMark(mark: IMark | null): void;
  trans: TranslationBundle;
}): JSX.Element {
  const { chart, history, onMark, trans } = props;
  const node = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const marks = useRef<IMark[]>([]);
  const present = useRef(chart);
  useEffect(() => {
    const place = node.current;
    if (!place) {
      return;
    }
    const made = makePlot(place, {
      chart,
      present: () => present.current,
      times: history.times,
      marks: marks.current,
      palette: paletteOf(place),
      width: Math.max(1, place.clientWidth),
      timeLabel: trans.__('Time'),
      sync: 'genv-jupyter',
      onMark
    });
    plot.current = made;
    const observer = new ResizeObserver(() => {
      if (place.clientWidth) {
        made.setSize({ width: place.clientWidth, height: made.height });
      }
    });
    observer.observe(place);
    return () => {
      observer.disconnect();
      made.destroy();
      plot.current = null;
    };
    // The data of a chart that is there is replaced below.
    // eslint-disable-next-line react-hooks/exhaustive-deps
  }, []);
  useEffect(() => {
    present.current = chart;
    marks.current.splice(0, Infinity, ...history.marks);
    plot.current?.setData(dataOf(chart, history.times));
  }, [chart, history]);
  return (
    <figure className="jp-Genv-chart">
      <figcaption>{chart.title}</figcaption>
      <div ref={node} />
    </figure>
  );
}

function Totals(props: {
  history: IHistory;
  trans: TranslationBundle;
}): JSX.Element | null {
  const { history, trans } = props;
  const { totals } = history;
  if (!totals.length) {
    return null;
  }
  const sum = totals.reduce((hours, one) => hours + one.hours, 0);
  return (
    <table className="jp-Genv-totals">
      <caption>{trans.__('GPU-hours: %1', sum.toFixed(2))}</caption>
      <thead>
        <tr>
          <th scope="col">{trans.__('Notebook')}</th>
          <th scope="col">{trans.__('GPU-hours')}</th>
          <th scope="col">{trans.__('Idle')}</th>
          <th scope="col">{trans.__('Peak')}</th>
        </tr>
      </thead>
      <tbody>
        {totals.map(one => (
          <tr key={one.id}>
            <th scope="row">{one.name}</th>
            <td>{one.hours.toFixed(2)}</td>
            <td>
              {one.idle === null ? '?' : `${Math.round(100 * one.idle)} %`}
            </td>
            <td>{formatMemory(one.peak)}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function Marks(props: {
  marks: readonly IMark[];
  trans: TranslationBundle;
}): JSX.Element | null {
  const { marks, trans } = props;
  if (!marks.length) {
    return null;
  }
  const newest = [...marks].reverse().slice(0, MOST_MARKS);
  return (
    <details className="jp-Genv-events">
      <summary>{trans._n('1 event', '%1 events', marks.length)}</summary>
      <ol>
        {newest.map((mark, index) => (
          <li key={index}>
            <time dateTime={new Date(1000 * mark.at).toISOString()}>
              {clock(mark.at)}
            </time>{' '}
            {mark.text}
          </li>
        ))}
      </ol>
    </details>
  );
}
