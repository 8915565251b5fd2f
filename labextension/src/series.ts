/** One reading of how busy a device is. */
export interface ISample {
  /** When, in milliseconds since the epoch. */
  at: number;
  /** Percent; null while the driver does not tell. */
  value: number | null;
}

/** How far back a series reaches, in milliseconds. */
export const WINDOW = 120_000;
/** Readings closer together than this are one: the bound on what is kept of a device. */
const STEP = 1000;

/** Add a reading; what is older than the window goes, but for the one that holds at its edge. */
export function withSample(
  series: readonly ISample[],
  sample: ISample
): readonly ISample[] {
  const last = series[series.length - 1];
  const close = last !== undefined && sample.at - last.at < STEP / 2;
  const kept = close ? series.slice(0, -1) : series;
  const edge = sample.at - WINDOW;
  let first = 0;
  while (first + 1 < kept.length && kept[first + 1].at <= edge) {
    first++;
  }
  return [...kept.slice(first), sample];
}

/**
 * Draw a series as steps, each holding until the next reading.
 *
 * Returns the `d` of an SVG path in a box of this size, and of the area below it; empty strings
 * where nothing is known.
 */
export function stepPath(
  series: readonly ISample[],
  now: number,
  width: number,
  height: number
): { line: string; area: string } {
  const right = Math.max(now, series[series.length - 1]?.at ?? now);
  const x = (at: number) =>
    round(Math.max(0, width * (1 - (right - at) / WINDOW)));
  const y = (value: number) =>
    round(height * (1 - Math.min(100, Math.max(0, value)) / 100));
  const lines: string[] = [];
  const areas: string[] = [];
  let run: string[] = [];
  let begun = 0;
  const end = (at: number) => {
    if (run.length) {
      const steps = `${run.join('')}H${x(at)}`;
      lines.push(steps);
      areas.push(`${steps}V${height}H${begun}Z`);
      run = [];
    }
  };
  for (const { at, value } of series) {
    if (value === null) {
      end(at);
    } else if (run.length) {
      run.push(`H${x(at)}V${y(value)}`);
    } else {
      begun = x(at);
      run.push(`M${begun} ${y(value)}`);
    }
  }
  end(right);
  return { line: lines.join(''), area: areas.join('') };
}

function round(value: number): number {
  return Math.round(value * 10) / 10;
}
