import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';
import type {
  IAsked,
  IDevice,
  IDeviceHistory,
  IDryRun,
  IEnvironment,
  IEnvironmentHistory,
  IEvent,
  IHealth,
  ILeftover,
  INotice,
  IPatch,
  IQueueTicket,
  IQuota,
  IRequest,
  IUsage,
  IUsageReport
} from './types';

const NAMESPACE = 'genv-jupyter/v1';

/** An answer that is a refusal, or no answer at all (`status` 0). */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly hint: string,
    readonly details: Readonly<Record<string, unknown>> = {}
  ) {
    super(message);
  }
}

/** The REST API, as the Jupyter server relays it to the broker. */
export class GpuClient {
  constructor(readonly settings: ServerConnection.ISettings) {}

  health(): Promise<IHealth> {
    return this.call('GET', ['health']);
  }

  /** Attach. With `restart` the caller promises to restart the kernel, so it is never too late. */
  attach(
    id: string,
    request: IRequest,
    options: { restart?: boolean } = {}
  ): Promise<IEnvironment> {
    const query = options.restart ? { restart: 'true' } : undefined;
    return this.call('PUT', ['environments', id], { body: request, query });
  }

  /** What a request of an environment would get now. */
  place(environment: string, request: IRequest): Promise<IDryRun> {
    return this.call('POST', ['placements'], {
      body: request,
      query: { environment }
    });
  }

  /** Ask those who hold what an environment needs. */
  ask(id: string, request: IRequest): Promise<IAsked> {
    return this.call('POST', ['environments', id, 'ask'], {
      body: { request }
    });
  }

  /** Give up a place in the queue. */
  leave(ticket: string): Promise<unknown> {
    return this.call('DELETE', ['queue', ticket]);
  }

  /** What the caller may have, has, and has left. */
  quota(): Promise<IQuota> {
    return this.call('GET', ['quota']);
  }

  detach(id: string): Promise<IEnvironment> {
    return this.call('DELETE', ['environments', id]);
  }

  /** Restart the kernel; its grants are kept. */
  restart(id: string): Promise<unknown> {
    return this.call('POST', ['environments', id, 'restart']);
  }

  /** Change a name or a duration, or have the idle countdown start anew. */
  patch(id: string, body: IPatch): Promise<IEnvironment> {
    return this.call('PATCH', ['environments', id], { body });
  }

  /** End a process that is left of a kernel or command. */
  end(leftover: ILeftover): Promise<unknown> {
    const { pid, start } = leftover;
    return this.call('DELETE', ['processes', `${pid}-${start}`]);
  }

  /** Do not show a notice any more. */
  dismiss(notice: string): Promise<unknown> {
    return this.call('DELETE', ['notices', notice]);
  }

  /** The past of a device, in points of `step` seconds. */
  deviceHistory(
    device: string,
    since: string,
    step: number
  ): Promise<IDeviceHistory> {
    const query = { device, since, step: String(step) };
    return this.call('GET', ['usage'], { query });
  }

  /** The past of an environment, on each of its devices. */
  environmentHistory(
    environment: string,
    since: string,
    step: number
  ): Promise<IEnvironmentHistory> {
    const query = { environment, since, step: String(step) };
    return this.call('GET', ['usage'], { query });
  }

  /** What each environment had. */
  report(since: string): Promise<IUsageReport> {
    return this.call('GET', ['usage', 'report'], {
      query: { since, by: 'environment' }
    });
  }

  /** What a stream of events begins with, where there can be none. */
  async snapshot(): Promise<IEvent> {
    const [health, devices, environments, notices, leftovers, queue] =
      await Promise.all([
        this.health(),
        this.call<IDevice[]>('GET', ['devices']),
        this.call<IEnvironment[]>('GET', ['environments']),
        this.call<INotice[]>('GET', ['notices']),
        this.call<ILeftover[]>('GET', ['leftovers']),
        this.call<IQueueTicket[]>('GET', ['queue'])
      ]);
    // Processes are told of one's own environments only, and so is usage.
    const seen = environments.filter(it => it.processes && it.grants.length);
    const usage = await Promise.all(
      seen.map(({ id }) =>
        this.call<IUsage>('GET', ['usage'], {
          query: { environment: id }
        }).catch(gone)
      )
    );
    return {
      revision: health.revision,
      snapshot: true,
      devices,
      environments,
      usage: usage.filter(it => it !== null),
      removed: [],
      wants: [],
      health,
      notices,
      leftovers,
      queue,
      figures: null
    };
  }

  /** Open the stream of events: a snapshot, then changes. */
  events(): WebSocket {
    const { settings } = this;
    let url = URLExt.join(settings.wsUrl, NAMESPACE, 'events');
    if (settings.appendToken && settings.token) {
      url += URLExt.objectToQueryString({ token: settings.token });
    }
    return new settings.WebSocket(url);
  }

  protected async call<T>(
    method: string,
    parts: string[],
    options: { body?: unknown; query?: Record<string, string> } = {}
  ): Promise<T> {
    const { body, query } = options;
    const path = parts.map(encodeURIComponent).join('/');
    const url =
      URLExt.join(this.settings.baseUrl, NAMESPACE, path) +
      (query ? URLExt.objectToQueryString(query) : '');
    const init: RequestInit = { method };
    if (body !== undefined) {
      init.body = JSON.stringify(body);
    }
    let response: Response;
    try {
      response = await ServerConnection.makeRequest(url, init, this.settings);
    } catch (error) {
      throw new ApiError(0, 'disconnected', String(error), '');
    }
    const text = await response.text();
    const data = parse(text);
    if (!response.ok) {
      throw refusal(response.status, data);
    }
    return data as T;
  }
}

/** An environment that ended while it was asked for has no usage. */
function gone(error: unknown): null {
  if (error instanceof ApiError && error.status >= 400 && error.status < 500) {
    return null;
  }
  throw error;
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null; // an error page of a proxy: its status says enough
  }
}

function refusal(status: number, data: unknown): ApiError {
  const body = (data ?? {}) as Record<string, unknown>;
  const said = (key: string) =>
    typeof body[key] === 'string' ? String(body[key]) : '';
  const details = (body['details'] ?? {}) as Record<string, unknown>;
  return new ApiError(
    status,
    said('code'),
    said('message'),
    said('hint'),
    details
  );
}
