import type { TranslationBundle } from '@jupyterlab/translation';
import type { IQuota, IQuotaUse } from './api/types';
import { formatClock, formatDuration, formatMemory, formatPart } from './units';
import { levelOf, type Level } from './usage';

/** A quota, and when it was asked for, in milliseconds. */
export interface IKnownQuota {
  readonly view: IQuota;
  readonly at: number;
}

const HOUR = 3_600_000;
/** Milliseconds: clocks that are not in step do not make it asked for again and again. */
const PATIENCE = 60_000;

const isTime = ({ quantity }: IQuotaUse) => quantity.startsWith('hours_');

/** What is bounded, as it is now: GPU hours run on with what is held, so nobody has to ask. */
export function boundedOf(quota: IKnownQuota, now: number): IQuotaUse[] {
  const { view, at } = quota;
  const held = view.quantities.find(one => one.quantity === 'devices')?.used;
  const since = ((held ?? 0) * Math.max(0, now - at)) / HOUR;
  return view.quantities
    .filter(one => one.limit !== null)
    .map(one => {
      if (!isTime(one) || one.used === null || one.limit === null) {
        return one;
      }
      const used = one.used + since;
      return { ...one, used, left: Math.max(0, one.limit - used) };
    });
}

/** Whether a period that bounds something is over, and another one has begun. */
export function isOver(quota: IKnownQuota, now: number): boolean {
  return (
    now - quota.at > PATIENCE &&
    quota.view.quantities.some(
      ({ limit, reset }) => limit !== null && reset && Date.parse(reset) <= now
    )
  );
}

/** Whether GPU hours are bounded, and not yet added up. */
export function isUnsummed(quota: IQuota): boolean {
  return quota.quantities.some(
    one => isTime(one) && one.limit !== null && one.used === null
  );
}

/** What a quantity is called. */
export function quantityName(
  quantity: IQuotaUse['quantity'],
  trans: TranslationBundle
): string {
  const names: Record<IQuotaUse['quantity'], string> = {
    devices: trans.__('GPUs'),
    fraction: trans.__('Of one shared GPU'),
    memory: trans.__('Memory'),
    environments: trans.__('Environments'),
    queue: trans.__('Places in the queue'),
    lease: trans.__('Lease'),
    hours_day: trans.__('GPU-hours today'),
    hours_week: trans.__('GPU-hours this week'),
    hours_month: trans.__('GPU-hours this month')
  };
  return names[quantity];
}

/** Whether it is something that is used up, and not a bound of each request for itself. */
export function isCounted({ quantity }: IQuotaUse): boolean {
  return quantity !== 'fraction' && quantity !== 'lease';
}

/** How near to its bound a quantity is. To hold all GPUs that one may have is nothing to mind. */
export function quotaLevel(one: IQuotaUse): Level {
  const level = levelOf(one.used, one.limit ?? 0);
  return level === 'close' && !isTime(one) ? 'fine' : level;
}

/** Say what is used of what may be: `0.5 of 2`, `at most 8 h 00 min`. */
export function quotaText(one: IQuotaUse, trans: TranslationBundle): string {
  const { quantity, used } = one;
  const limit = one.limit ?? 0;
  if (!isCounted(one)) {
    return trans.__('at most %1', amount(quantity, limit, trans));
  }
  if (quantity === 'memory') {
    return formatPart(used, limit, trans.__(' of '));
  }
  const have = used === null ? '?' : amount(quantity, used, trans);
  return `${have}${trans.__(' of ')}${amount(quantity, limit, trans)}`;
}

/** Say what is left, which rule says so, and when more comes. */
export function quotaNote(
  one: IQuotaUse,
  now: number,
  trans: TranslationBundle
): string {
  const { quantity, used, limit, left, reset } = one;
  const over = (used ?? 0) - (limit ?? 0);
  const parts = [
    over > 0
      ? trans.__('%1 too much', amount(quantity, over, trans))
      : left === 0
        ? trans.__('nothing left')
        : left !== null
          ? trans.__('%1 left', amount(quantity, left, trans, Math.floor))
          : '',
    reset ? trans.__('more from %1', formatClock(reset, now)) : '',
    ruleText(one.rule, trans)
  ];
  return parts.filter(part => part).join(' · ');
}

function ruleText(rule: string | null, trans: TranslationBundle): string {
  const [kind, ...rest] = (rule ?? '').split(':');
  switch (kind) {
    case 'default':
      return trans.__('rule for everybody');
    case 'group':
      return trans.__('rule for the group %1', rest.join(':'));
    case 'user':
      return trans.__('rule for you');
    default:
      return rule ? trans.__('rule %1', rule) : '';
  }
}

function amount(
  quantity: IQuotaUse['quantity'],
  value: number,
  trans: TranslationBundle,
  round = Math.round
): string {
  switch (quantity) {
    case 'memory':
      return formatMemory(value);
    case 'lease':
      return formatDuration(value, trans);
    case 'hours_day':
    case 'hours_week':
    case 'hours_month':
      return String(Math.round(value * 10) / 10);
    default:
      return String(round(value * 100) / 100);
  }
}
