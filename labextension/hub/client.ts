import { GpuClient } from '../src/api/client';
import type {
  IAuditEntry,
  IDevice,
  IQuota,
  IQuotaLimits,
  IQuotaRule,
  IUsageReport
} from '../src/api/types';

/** Who looks at the page, as the service says. */
export interface IMe {
  name: string;
  /** Null while the daemon does not say. */
  admin: boolean | null;
  /** Where the Hub is, and where one logs out. */
  hub: string;
  logout: string;
}

export type By = IUsageReport['by'];

/** The REST API with what administrators do. */
export class HubClient extends GpuClient {
  me(): Promise<IMe> {
    return this.call('GET', ['me']);
  }

  /** Drain a device for maintenance, or put it back. */
  maintain(
    device: string,
    maintenance: boolean,
    reason = ''
  ): Promise<IDevice> {
    return this.call('PATCH', ['devices', device], {
      body: { maintenance, reason }
    });
  }

  /** What somebody may have, has, and has left. */
  quotaOf(user: string): Promise<IQuota> {
    return this.call('GET', ['quota'], { query: { user } });
  }

  rules(): Promise<IQuotaRule[]> {
    return this.call('GET', ['quotas']);
  }

  setRule(scope: string, limits: IQuotaLimits): Promise<unknown> {
    return this.call('PUT', ['quotas', scope], { body: limits });
  }

  unsetRule(scope: string): Promise<unknown> {
    return this.call('DELETE', ['quotas', scope]);
  }

  reportBy(since: string, by: By): Promise<IUsageReport> {
    return this.call('GET', ['usage', 'report'], { query: { since, by } });
  }

  audit(search: string, limit: number): Promise<IAuditEntry[]> {
    const query: Record<string, string> = { limit: String(limit) };
    if (search) {
      query['search'] = search;
    }
    return this.call('GET', ['audit'], { query });
  }
}
