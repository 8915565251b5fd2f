/**
 * What our client uses of `@jupyterlab/services`, for a page without JupyterLab.
 *
 * The bundle has this in the place of the package (see `build:hub` in package.json).
 */

export namespace ServerConnection {
  export interface ISettings {
    readonly baseUrl: string;
    readonly wsUrl: string;
    readonly token: string;
    readonly appendToken: boolean;
    readonly WebSocket: typeof WebSocket;
  }

  /** Settings of a service whose pages lie below an address. */
  export function makeSettings(
    options: Partial<ISettings> & { baseUrl: string }
  ): ISettings {
    return {
      wsUrl: options.baseUrl.replace(/^http/, 'ws'),
      token: '',
      appendToken: false,
      WebSocket,
      ...options
    };
  }

  /** Ask the service, with the token against forged requests that its cookie has. */
  export function makeRequest(
    url: string,
    init: RequestInit
  ): Promise<Response> {
    const headers: Record<string, string> = {
      'Content-Type': 'application/json'
    };
    const token = xsrfToken(document.cookie);
    if (token) {
      headers['X-XSRFToken'] = token;
    }
    return fetch(url, {
      ...init,
      headers,
      cache: 'no-store',
      credentials: 'same-origin',
      redirect: 'error'
    });
  }
}

/** The token of this page: of several the browser names that of the longest path first. */
export function xsrfToken(cookies: string): string | null {
  const found = /(?:^|;\s*)_xsrf=([^;]*)/.exec(cookies);
  return found ? found[1] : null;
}
