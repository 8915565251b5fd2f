import type { IHistory } from './data';

/** Write all that is drawn as a table of commas, a row for each time. */
export function csvOf(history: IHistory): string {
  const lines = history.charts.flatMap(chart =>
    chart.lines.map(line => ({
      head: `${chart.title}: ${line.label} (${chart.unit})`,
      values: line.values
    }))
  );
  const marks = new Map<number, string[]>();
  for (const mark of history.marks) {
    const at = history.times.reduce(
      (found, time) => (time <= mark.at ? time : found),
      history.times[0]
    );
    marks.set(at, [...(marks.get(at) ?? []), mark.text]);
  }
  const head = ['time', ...lines.map(line => line.head), 'events'];
  const rows = history.times.map((at, index) => [
    new Date(1000 * at).toISOString(),
    ...lines.map(line => number(line.values[index])),
    (marks.get(at) ?? []).join('; ')
  ]);
  return [head, ...rows].map(row => row.map(cell).join(',') + '\r\n').join('');
}

function number(value: number | null): string {
  return value === null ? '' : String(Math.round(value * 1000) / 1000);
}

/** A cell; what a spreadsheet would take for a formula is text. */
function cell(text: string): string {
  const safe = /^[=+\-@\t\r]/.test(text) && !/^-?[\d.]+$/.test(text);
  const said = safe ? `'${text}` : text;
  return /[",\r\n]/.test(said) ? `"${said.replace(/"/g, '""')}"` : said;
}
