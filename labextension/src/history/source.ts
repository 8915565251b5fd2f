import type { TranslationBundle } from '@jupyterlab/translation';
import { ApiError, type GpuClient } from '../api/client';
import type { IDevice, IEnvironmentHistory, IUsageReport } from '../api/types';
import {
  ofDevice,
  ofEnvironment,
  ofMine,
  SPANS,
  type IHistory,
  type Span,
  type Subject
} from './data';

/** So many environments have a colour of their own; those that had least are among the others. */
const MOST = 8;

/** Fetch what is drawn of a subject. */
export async function fetchHistory(
  client: Pick<GpuClient, 'deviceHistory' | 'environmentHistory' | 'report'>,
  devices: readonly IDevice[],
  subject: Subject,
  span: Span,
  trans: TranslationBundle,
  now = Date.now()
): Promise<IHistory> {
  const { seconds, step } = SPANS[span];
  const since = new Date(now - 1000 * seconds).toISOString();
  if (subject.kind === 'environment') {
    const past = await client.environmentHistory(subject.id, since, step);
    return ofEnvironment(past, devices, trans);
  }
  const report = await client.report(since);
  const pasts = await holders(client, report, since, step);
  if (subject.kind === 'mine') {
    return ofMine(report, pasts, pasts[0]?.step ?? step, trans);
  }
  const past = await client.deviceHistory(subject.id, since, step);
  const device = devices.find(one => one.uuid === subject.id);
  return ofDevice(device, past, pasts, trans);
}

/** The pasts of one's own environments, those that had most first. */
async function holders(
  client: Pick<GpuClient, 'environmentHistory'>,
  report: IUsageReport,
  since: string,
  step: number
): Promise<IEnvironmentHistory[]> {
  // Only one's own have a name, or are told of at all; a kernel that was never named has its id.
  const mine = report.rows.filter(row => row.name !== null).slice(0, MOST);
  const found = await Promise.all(
    mine.map(row =>
      client.environmentHistory(row.key, since, step).catch(error => {
        if (error instanceof ApiError && error.status < 500 && error.status) {
          return null; // it ended so long ago that it is forgotten meanwhile
        }
        throw error;
      })
    )
  );
  return found.filter(past => past !== null);
}
