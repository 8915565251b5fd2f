import uPlot from 'uplot';
import { formatMemory } from '../units';
import type { IChart, IMark, Unit } from './data';

/** Colours as the page has them at present. */
export interface IPalette {
  series: string[];
  axis: string;
  grid: string;
  cap: string;
  mark: string;
  background: string;
}

const HEIGHT = 180;
const COLOURS = 8;
const NEAR = 6;
const DAY = 86_400;

/** Read the colours of the theme: a canvas knows no CSS variables. */
export function paletteOf(node: HTMLElement): IPalette {
  const probe = document.createElement('span');
  node.appendChild(probe);
  const colour = (name: string) => {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
  };
  const palette = {
    series: Array.from({ length: COLOURS }, (_, index) =>
      colour(`--jp-genv-series${index + 1}`)
    ),
    axis: colour('--jp-ui-font-color2'),
    grid: colour('--jp-genv-faint'),
    cap: colour('--jp-ui-font-color1'),
    mark: colour('--jp-ui-font-color2'),
    background: colour('--jp-layout-color1')
  };
  probe.remove();
  return palette;
}

/** Write a value as its axis and its legend show it. */
export function formatValue(value: number | null, unit: Unit): string {
  if (value === null || value === undefined) {
    return '–';
  }
  switch (unit) {
    case 'bytes':
      return formatMemory(Math.round(value));
    case 'percent':
      return `${round(value, 0)} %`;
    case 'celsius':
      return `${round(value, 0)} °C`;
    case 'watts':
      return `${round(value, 0)} W`;
    case 'gpus':
      return round(value, 2);
  }
}

/** What lies below each line, itself included; areas are stacked in their order. */
export function stacked(chart: IChart): (number | null)[][] {
  let below: (number | null)[] | null = null;
  return chart.lines.map(line => {
    if (line.look !== 'area') {
      return line.values;
    }
    const base: (number | null)[] | null = below;
    below = line.values.map((value, index) => {
      const under = base?.[index] ?? null;
      return value === null ? under : (under ?? 0) + value;
    });
    return below;
  });
}

export interface IPlotOptions {
  chart: IChart;
  /** The chart as it is when something is read from it: its data may be newer. */
  present(): IChart;
  times: readonly number[];
  marks: readonly IMark[];
  palette: IPalette;
  width: number;
  /** The name of the time in the legend. */
  timeLabel: string;
  /** Charts with one key share the cursor. */
  sync: string;
  /** The mark that the pointer is at. */
  onMark(mark: IMark | null): void;
}

/** Make a chart in an element. */
export function makePlot(node: HTMLElement, options: IPlotOptions): uPlot {
  const { chart, palette, width } = options;
  const { values, order } = arranged(chart);
  const series = order.map(index => seriesOf(options, index));
  const plot = new uPlot(
    {
      width,
      height: HEIGHT,
      series: [
        {
          label: options.timeLabel,
          value: (_, at) => (at === null || at === undefined ? '–' : clock(at))
        },
        ...series
      ],
      cursor: { sync: { key: options.sync }, drag: { x: false, y: false } },
      legend: { live: true },
      scales: {
        x: { time: true },
        y: { range: (_, _low, high) => [0, top(chart.unit, high)] }
      },
      axes: [
        axis(palette, { space: 72, values: (_, ticks) => ticksOf(ticks) }),
        axis(palette, {
          size: 68,
          values: (_, ticks) =>
            ticks.map(tick => formatValue(tick, chart.unit)),
          ...(chart.unit === 'bytes' ? { incrs: BYTES } : {})
        })
      ],
      hooks: {
        draw: [self => drawMarks(self, options.marks, palette.mark)],
        setCursor: [self => options.onMark(nearest(self, options.marks))]
      }
    },
    [[...options.times], ...values] as uPlot.AlignedData,
    node
  );
  return plot;
}

/** The data of a chart in the order of its series, for a plot that exists. */
export function dataOf(
  chart: IChart,
  times: readonly number[]
): uPlot.AlignedData {
  return [[...times], ...arranged(chart).values] as uPlot.AlignedData;
}

/** Higher areas are drawn first, so that the lower ones lie upon them; lines come last. */
function arranged(chart: IChart): {
  values: (number | null)[][];
  order: number[];
} {
  const sums = stacked(chart);
  const indices = chart.lines.map((_, index) => index);
  const area = (index: number) => chart.lines[index].look === 'area';
  const order = [
    ...indices.filter(area).reverse(),
    ...indices.filter(index => !area(index))
  ];
  return { values: order.map(index => sums[index]), order };
}

function seriesOf(options: IPlotOptions, index: number): uPlot.Series {
  const { chart, palette } = options;
  const line = chart.lines[index];
  const colour = palette.series[index % palette.series.length];
  const look: Partial<uPlot.Series> =
    line.look === 'area'
      ? { stroke: colour, fill: colour, width: 1 }
      : line.look === 'cap'
        ? { stroke: palette.cap, dash: [6, 4], width: 1 }
        : { stroke: colour, width: 1.5 };
  return {
    label: line.label,
    points: { show: false },
    // What the cursor is at is the part itself, not what it is stacked upon.
    value: (_, _value, _series, at) =>
      formatValue(
        at === null ? null : options.present().lines[index].values[at],
        chart.unit
      ),
    ...look
  };
}

function axis(palette: IPalette, more: uPlot.Axis): uPlot.Axis {
  return {
    stroke: palette.axis,
    grid: { stroke: palette.grid, width: 1 },
    ticks: { stroke: palette.grid, width: 1 },
    ...more
  };
}

/** Steps between the ticks of an axis of bytes: they are round in GiB. */
const BYTES = [1, 2, 5, 10, 20, 50, 100, 200, 500]
  .flatMap(many => [many * 2 ** 20, many * 2 ** 30])
  .sort((one, other) => one - other);

const LEAST: Record<Unit, number> = {
  bytes: 2 ** 30,
  percent: 100,
  celsius: 100,
  watts: 100,
  gpus: 1
};

function top(unit: Unit, high: number | null): number {
  return Math.max(LEAST[unit], 1.05 * (high ?? 0));
}

function drawMarks(plot: uPlot, marks: readonly IMark[], colour: string): void {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = colour;
  ctx.lineWidth = devicePixelRatio;
  ctx.setLineDash([2 * devicePixelRatio, 3 * devicePixelRatio]);
  for (const mark of marks) {
    const x = Math.round(plot.valToPos(mark.at, 'x', true));
    if (x < bbox.left || x > bbox.left + bbox.width) {
      continue;
    }
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    drawSign(ctx, mark.kind, x, bbox.top, 5 * devicePixelRatio);
  }
  ctx.restore();
}

/** Kinds differ by their shape, and not by colour: up, down, a square, a line. */
function drawSign(
  ctx: CanvasRenderingContext2D,
  kind: IMark['kind'],
  x: number,
  y: number,
  size: number
): void {
  ctx.beginPath();
  switch (kind) {
    case 'attached':
      ctx.moveTo(x - size, y + 1.5 * size);
      ctx.lineTo(x + size, y + 1.5 * size);
      ctx.lineTo(x, y);
      break;
    case 'released':
      ctx.moveTo(x - size, y);
      ctx.lineTo(x + size, y);
      ctx.lineTo(x, y + 1.5 * size);
      break;
    case 'ended':
      ctx.rect(x - 0.8 * size, y, 1.6 * size, 1.6 * size);
      break;
    default:
      ctx.arc(x, y + size, 0.8 * size, 0, 2 * Math.PI);
  }
  ctx.fill();
}

function nearest(plot: uPlot, marks: readonly IMark[]): IMark | null {
  const { left } = plot.cursor;
  if (left === undefined || left < 0) {
    return null;
  }
  let best: IMark | null = null;
  let distance = NEAR;
  for (const mark of marks) {
    const away = Math.abs(plot.valToPos(mark.at, 'x') - left);
    if (away <= distance) {
      best = mark;
      distance = away;
    }
  }
  return best;
}

/** Write ticks on the reader's clock, the day where it begins or where days are all there is. */
function ticksOf(ticks: readonly number[]): string[] {
  const days = ticks.length > 1 && ticks[1] - ticks[0] >= DAY;
  return ticks.map((tick, index) => {
    const date = new Date(1000 * tick);
    const midnight = date.getHours() + date.getMinutes() === 0;
    const seconds = ticks.length > 1 && ticks[1] - ticks[0] < 60;
    return days || (midnight && index > 0)
      ? date.toLocaleDateString([], { day: 'numeric', month: 'short' })
      : date.toLocaleTimeString([], {
          hour: '2-digit',
          minute: '2-digit',
          second: seconds ? '2-digit' : undefined,
          hourCycle: 'h23'
        });
  });
}

/** Write a moment on the reader's clock. */
export function clock(at: number): string {
  return new Date(1000 * at).toLocaleString([], {
    day: 'numeric',
    month: 'short',
    hour: '2-digit',
    minute: '2-digit',
    second: '2-digit',
    hourCycle: 'h23'
  });
}

function round(value: number, digits: number): string {
  return String(Number(value.toFixed(digits)));
}
