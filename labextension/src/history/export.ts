import { csvOf } from './csv';
import type { IHistory } from './data';

const LINE = 18;
const GAP = 12;

/** Save the history as a table. */
export function saveCsv(history: IHistory, name: string): void {
  save(new Blob([csvOf(history)], { type: 'text/csv;charset=utf-8' }), name);
}

/** Save the charts below each other as one picture, with what their lines are called. */
export async function savePng(
  root: HTMLElement,
  history: IHistory,
  name: string
): Promise<void> {
  const style = getComputedStyle(root);
  const charts = [...root.querySelectorAll<HTMLElement>('.jp-Genv-chart')];
  const canvases = charts.map(chart => chart.querySelector('canvas'));
  const ratio = devicePixelRatio;
  const width = Math.max(...canvases.map(canvas => canvas?.width ?? 0));
  const heights = canvases.map(
    canvas => (canvas?.height ?? 0) + ratio * (2 * LINE + GAP)
  );
  const picture = document.createElement('canvas');
  picture.width = width;
  picture.height =
    ratio * (LINE + 2 * GAP) + heights.reduce((sum, one) => sum + one, 0);
  const ctx = picture.getContext('2d');
  if (!ctx) {
    throw new Error('This browser draws no pictures.');
  }
  ctx.fillStyle = style.backgroundColor;
  ctx.fillRect(0, 0, picture.width, picture.height);
  ctx.fillStyle = style.color;
  const write = (text: string, y: number, weight: string) => {
    ctx.font = `${weight} ${13 * ratio}px ${style.fontFamily}`;
    ctx.fillText(text, GAP * ratio, y);
  };
  let y = ratio * (LINE + GAP);
  write(history.title, y, '600');
  y += ratio * GAP;
  canvases.forEach((canvas, index) => {
    const chart = history.charts[index];
    if (canvas && chart) {
      write(chart.title, y + ratio * LINE, '600');
      legend(ctx, charts[index], y + ratio * 2 * LINE, ratio, style);
      ctx.drawImage(canvas, 0, y + ratio * (2 * LINE + GAP / 2));
      y += heights[index];
    }
  });
  const blob = await new Promise<Blob | null>(resolve =>
    picture.toBlob(resolve, 'image/png')
  );
  if (blob) {
    save(blob, name);
  }
}

function legend(
  ctx: CanvasRenderingContext2D,
  chart: HTMLElement,
  y: number,
  ratio: number,
  style: CSSStyleDeclaration
): void {
  let x = GAP * ratio;
  ctx.save();
  ctx.font = `${12 * ratio}px ${style.fontFamily}`;
  // The first is the time.
  const rows = [...chart.querySelectorAll('.u-series')].slice(1);
  for (const row of rows) {
    const marker = row.querySelector<HTMLElement>('.u-marker');
    const text = row.querySelector('.u-label')?.textContent ?? '';
    const look = marker ? getComputedStyle(marker) : null;
    ctx.fillStyle = look?.borderTopColor ?? style.color;
    ctx.fillRect(x, y - 9 * ratio, 9 * ratio, 9 * ratio);
    x += 13 * ratio;
    ctx.fillStyle = style.color;
    ctx.fillText(text, x, y);
    x += ctx.measureText(text).width + 16 * ratio;
  }
  ctx.restore();
}

function save(blob: Blob, name: string): void {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  // The browser has taken it by then.
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
