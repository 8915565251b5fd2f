import type { TranslationBundle } from '@jupyterlab/translation';
import type {
  IDevice,
  IDeviceHistory,
  IEnvironmentHistory,
  IPastEvent,
  IUsageReport
} from '../api/types';
import { deviceLabel } from '../view';

/** Whose past is shown. */
export type Subject =
  { kind: 'device' | 'environment'; id: string } | { kind: 'mine' };

export type Span = '10m' | '1h' | '1d' | '7d';

/** How far back a span reaches, and how far apart its points are, in seconds. */
export const SPANS: Record<Span, { seconds: number; step: number }> = {
  '10m': { seconds: 600, step: 10 },
  '1h': { seconds: 3600, step: 10 },
  '1d': { seconds: 86_400, step: 300 },
  '7d': { seconds: 604_800, step: 1800 }
};

export type Unit = 'bytes' | 'percent' | 'celsius' | 'watts' | 'gpus';

/** One line of a chart; in a stacked chart areas lie upon each other. */
export interface ILine {
  label: string;
  /** A cap, or another bound, is drawn dashed and never stacked. */
  look: 'area' | 'line' | 'cap';
  values: (number | null)[];
}

export interface IChart {
  title: string;
  unit: Unit;
  lines: ILine[];
}

/** Something that happened, as a mark on the charts. */
export interface IMark {
  /** Seconds since the epoch. */
  at: number;
  kind: 'attached' | 'released' | 'warned' | 'refused' | 'ended';
  text: string;
}

/** What a notebook had in all. */
export interface ITotal {
  id: string;
  name: string;
  hours: number;
  /** Part of the time in which nothing was done with it, where that is known. */
  idle: number | null;
  peak: number | null;
}

/** What is drawn: all lines have a value for each of the times. */
export interface IHistory {
  title: string;
  /** Seconds since the epoch. */
  times: number[];
  charts: IChart[];
  marks: IMark[];
  totals: ITotal[];
}

/** The times of a span's points: all are there, also those that nobody has seen. */
export function grid(since: string, until: string, step: number): number[] {
  const first = Math.floor(Date.parse(since) / 1000 / step) * step;
  const last = Date.parse(until) / 1000;
  const times: number[] = [];
  for (let at = first; at <= last; at += step) {
    times.push(at);
  }
  return times;
}

/** Put points at their times; where there is none, nothing is known. */
function column<T extends { at: string }>(
  times: readonly number[],
  points: readonly T[],
  value: (point: T) => number | null
): (number | null)[] {
  const known = new Map(
    points.map(point => [Date.parse(point.at) / 1000, value(point)])
  );
  return times.map(at => known.get(at) ?? null);
}

/** A device: memory by environment, how busy, how warm. */
export function ofDevice(
  device: IDevice | undefined,
  past: IDeviceHistory,
  holders: readonly IEnvironmentHistory[],
  trans: TranslationBundle
): IHistory {
  const { points } = past;
  const times = grid(past.since, past.until, past.step);
  const of = (value: (point: (typeof points)[number]) => number | null) =>
    column(times, points, value);
  const areas = holders.flatMap(holder =>
    holder.devices
      .filter(series => series.device === past.device)
      .map(series => ({
        label: nameOf(holder),
        look: 'area' as const,
        values: column(times, series.points, point => point.memory_used)
      }))
  );
  const used = of(point => point.memory_used);
  const rest = used.map((whole, index) =>
    whole === null
      ? null
      : areas.reduce(
          (left, area) => Math.max(0, left - (area.values[index] ?? 0)),
          whole
        )
  );
  const memory: ILine[] = [
    ...areas,
    {
      label: areas.length ? trans.__('Others') : trans.__('Used'),
      look: 'area',
      values: rest
    },
    {
      label: trans.__('Granted'),
      look: 'cap',
      values: of(point => point.memory_granted)
    }
  ];
  if (device && device.memory_usable !== null) {
    const usable = device.memory_usable;
    memory.push({
      label: trans.__('Can be granted'),
      look: 'cap',
      values: times.map(() => usable)
    });
  }
  const charts: IChart[] = [
    { title: trans.__('Memory'), unit: 'bytes', lines: memory },
    {
      title: trans.__('Utilization'),
      unit: 'percent',
      lines: meanAndPeak(
        of(point => point.utilization),
        of(point => point.utilization_peak),
        trans
      )
    },
    {
      title: trans.__('Temperature'),
      unit: 'celsius',
      lines: meanAndPeak(
        of(point => point.temperature),
        of(point => point.temperature_peak),
        trans
      )
    },
    {
      title: trans.__('Power'),
      unit: 'watts',
      lines: [
        {
          label: trans.__('Mean'),
          look: 'line',
          values: of(({ power }) => (power === null ? null : power / 1000))
        }
      ]
    }
  ];
  return {
    title: device ? deviceLabel(device, trans) : past.device.slice(0, 12),
    times,
    // What a device does not tell has no chart; that its memory is unknown is worth seeing.
    charts: charts.filter(({ unit, lines }) => unit === 'bytes' || told(lines)),
    marks: marksOf(past.events, trans),
    totals: []
  };
}

/** An environment: its memory against its cap, and how busy, on each of its devices. */
export function ofEnvironment(
  past: IEnvironmentHistory,
  devices: readonly IDevice[],
  trans: TranslationBundle
): IHistory {
  const times = grid(past.since, past.until, past.step);
  const charts = past.devices.flatMap(({ device: uuid, points }): IChart[] => {
    const device = devices.find(one => one.uuid === uuid);
    const name = device ? deviceLabel(device, trans) : uuid.slice(0, 12);
    const busy: ILine = {
      label: trans.__('Busy'),
      look: 'line',
      values: column(times, points, ({ idle }) =>
        idle === null ? null : 100 * (1 - idle)
      )
    };
    return [
      {
        title: trans.__('Memory on %1', name),
        unit: 'bytes',
        lines: [
          {
            label: trans.__('Used'),
            look: 'area',
            values: column(times, points, point => point.memory_used)
          },
          {
            label: trans.__('Most'),
            look: 'line',
            values: column(times, points, point => point.memory_peak)
          },
          {
            label: trans.__('Cap'),
            look: 'cap',
            values: column(times, points, point => point.memory)
          }
        ]
      },
      {
        title: trans.__('Time in use of %1', name),
        unit: 'percent',
        lines: [busy]
      }
    ];
  });
  return {
    title: nameOf(past),
    times,
    charts,
    marks: marksOf(past.events, trans),
    totals: []
  };
}

/** All that one has held: GPUs by notebook, memory by notebook, and hours. */
export function ofMine(
  report: IUsageReport,
  pasts: readonly IEnvironmentHistory[],
  step: number,
  trans: TranslationBundle
): IHistory {
  const times = grid(report.since, report.until, step);
  const add = (
    past: IEnvironmentHistory,
    value: (
      point: IEnvironmentHistory['devices'][number]['points'][number]
    ) => number | null
  ) => {
    const columns = past.devices.map(({ points }) =>
      column(times, points, value)
    );
    return times.map((_, index) =>
      columns.reduce<number | null>((sum, one) => {
        const part = one[index];
        return part === null ? sum : (sum ?? 0) + part;
      }, null)
    );
  };
  const areas = (unit: 'gpus' | 'bytes') =>
    pasts.map((past): ILine => ({
      label: nameOf(past),
      look: 'area',
      values: add(past, point =>
        unit === 'bytes'
          ? point.memory_used
          : point.share === null
            ? null
            : (point.share * point.seconds) / step / 10_000
      )
    }));
  return {
    title: trans.__('My GPU-hours'),
    times,
    charts: [
      { title: trans.__('GPUs held'), unit: 'gpus', lines: areas('gpus') },
      { title: trans.__('Memory used'), unit: 'bytes', lines: areas('bytes') }
    ],
    marks: [],
    totals: pasts.flatMap(past => {
      const row = report.rows.find(({ key }) => key === past.environment);
      return row
        ? [
            {
              id: row.key,
              name: nameOf(past),
              hours: row.gpu_seconds / 3600,
              idle: row.known_seconds
                ? row.idle_seconds / row.known_seconds
                : null,
              peak: row.memory_peak
            }
          ]
        : [];
    })
  };
}

function meanAndPeak(
  mean: (number | null)[],
  peak: (number | null)[],
  trans: TranslationBundle
): ILine[] {
  return [
    { label: trans.__('Mean'), look: 'line', values: mean },
    { label: trans.__('Most'), look: 'line', values: peak }
  ];
}

function told(lines: readonly ILine[]): boolean {
  return lines.some(line => line.values.some(value => value !== null));
}

function nameOf(past: IEnvironmentHistory): string {
  return past.name ?? `${past.user} ${past.environment.slice(0, 8)}`;
}

const KINDS: Record<string, IMark['kind']> = {
  GrantAdded: 'attached',
  GrantReleased: 'released',
  GrantDraining: 'released',
  AttachRefused: 'refused',
  EnvironmentEnded: 'ended',
  ContextsLost: 'warned',
  MpsBypassed: 'warned',
  notice: 'warned'
};

/** The marks of what happened; records that concern nobody who looks are left out. */
export function marksOf(
  events: readonly IPastEvent[],
  trans: TranslationBundle
): IMark[] {
  const words: Record<IMark['kind'], string> = {
    attached: trans.__('attached'),
    released: trans.__('released'),
    warned: trans.__('warned'),
    refused: trans.__('refused'),
    ended: trans.__('ended')
  };
  return events.flatMap(event => {
    const kind = KINDS[event.event];
    if (!kind) {
      return [];
    }
    const who = event.name ?? event.user ?? trans.__('a kernel');
    const said = event.reason ? `: ${event.reason}` : '';
    return [
      {
        at: Date.parse(event.at) / 1000,
        kind,
        text: `${who} ${words[kind]}${said}`
      }
    ];
  });
}
