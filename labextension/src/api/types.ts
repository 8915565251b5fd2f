/**
 * The types that travel: names for what `npm run types` generates from the OpenAPI document.
 *
 * Memory is an integer of bytes, compute an integer in hundredths of a percent (5000 is 50 %),
 * times are RFC 3339 UTC, unknown values are null.
 */
import type { components } from './schema';

type Schemas = components['schemas'];

export type IAsked = Schemas['Asked'];
export type IAuditEntry = Schemas['AuditEntry'];
export type IDevice = Schemas['Device'];
export type IDeviceGrant = Schemas['DeviceGrant'];
export type IDeviceHistory = Schemas['DeviceHistory'];
export type IDryRun = Schemas['DryRun'];
export type IEnvironment = Schemas['Environment'];
export type IEnvironmentHistory = Schemas['EnvironmentHistory'];
export type IEvent = Schemas['Event'];
export type IGrant = Schemas['Grant'];
export type IGrantUsage = Schemas['GrantUsage'];
export type IHealth = Schemas['BrokerHealth'];
export type ILeftover = Schemas['Leftover'];
export type ILimit = Schemas['Limit'];
export type INotice = Schemas['Notice'];
export type IPastEvent = Schemas['PastEvent'];
export type IPatch = Schemas['EnvironmentPatch'];
export type IQuota = Schemas['QuotaView'];
export type IQuotaLimits = Schemas['QuotaLimits'];
export type IQuotaRule = Schemas['QuotaRule'];
export type IQuotaUse = Schemas['QuotaUse'];
export type IQueueTicket = Schemas['QueueTicket'];
export type IRequest = Schemas['Request'];
export type IUsage = Schemas['EnvironmentUsage'];
export type IUsageReport = Schemas['UsageReport'];
