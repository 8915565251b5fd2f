import type { IEnvironment, IRequest } from './api/types';
import { lasting } from './wanted';

export const KEY = 'genv_jupyter';

/** The part of a notebook's model that is used here. */
export interface IMetadata {
  getMetadata(key: string): unknown;
  setMetadata(key: string, value: unknown): void;
  deleteMetadata(key: string): void;
}

/** Keeps the requests of notebooks in their metadata, and asks for them again. */
export class NotebookMemory {
  constructor(
    private readonly attach: (id: string, request: IRequest) => unknown
  ) {}

  /** Compare what a notebook's kernel has been given with what the notebook remembers. */
  look(environment: IEnvironment, notebook: IMetadata): void {
    const { id, request, grants, pending } = environment;
    if (environment.kernel_state === 'dead' || pending) {
      return;
    }
    const kept = remembered(notebook);
    if (grants.length && request) {
      this._held.add(id);
      const now = lasting(request);
      if (JSON.stringify(now) !== JSON.stringify(kept)) {
        notebook.setMetadata(KEY, { request: now });
      }
    } else if (this._held.has(id)) {
      // It had something, and its kernel lives: that was given back.
      if (environment.state === 'released' && environment.pid) {
        this._held.delete(id);
        this._asked.add(id);
        notebook.deleteMetadata(KEY);
      }
    } else if (kept && !this._asked.has(id)) {
      this._asked.add(id);
      this.attach(id, kept);
    }
  }

  /** Kernels that were asked for already, or that have given back what they had. */
  private readonly _asked = new Set<string>();
  private readonly _held = new Set<string>();
}

/** What a notebook remembers; null where that is nothing that could be asked for. */
function remembered(notebook: IMetadata): IRequest | null {
  const kept = notebook.getMetadata(KEY) as { request?: unknown } | undefined;
  const request = kept?.request;
  return request && typeof request === 'object' && !Array.isArray(request)
    ? lasting(request as IRequest)
    : null;
}
