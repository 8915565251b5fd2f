import { xsrfToken } from './shims/services';

/**
 * The event stream as our service has it: lines of JSON, with the face of a WebSocket.
 *
 * A WebSocket sends cookies and nothing else, so that any page of the Hub's origin, a notebook's
 * too, could open one. A request has the token against forged requests beside its cookie.
 */
export class LineSocket {
  onmessage: ((event: { data: string }) => void) | null = null;
  onclose: (() => void) | null = null;

  constructor(url: string) {
    void this.read(url.replace(/^ws/, 'http')).finally(() => this.onclose?.());
  }

  close(): void {
    this._abort.abort();
  }

  private async read(url: string): Promise<void> {
    const token = xsrfToken(document.cookie) ?? '';
    try {
      const response = await fetch(url, {
        headers: { 'X-XSRFToken': token },
        cache: 'no-store',
        credentials: 'same-origin',
        redirect: 'error',
        signal: this._abort.signal
      });
      const reader = response.ok ? response.body?.getReader() : undefined;
      const decoder = new TextDecoder();
      let rest = '';
      while (reader) {
        const { done, value } = await reader.read();
        if (done) {
          return;
        }
        const lines = (rest + decoder.decode(value, { stream: true })).split(
          '\n'
        );
        rest = lines.pop() ?? '';
        for (const data of lines) {
          this.onmessage?.({ data });
        }
      }
    } catch {
      // Broken off, by us or by the way there: whoever listens asks why by a request.
    }
  }

  private _abort = new AbortController();
}
