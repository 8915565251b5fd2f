import type { Session } from '@jupyterlab/services';
import type { IDisposable } from '@lumino/disposable';
import type { IEnvironment } from './api/types';
import { Signal, type ISignal } from '@lumino/signaling';

/** The notebooks that run on this Jupyter server, found by their kernels. */
export class Sessions implements IDisposable {
  constructor(private readonly manager: Session.IManager) {
    manager.runningChanged.connect(this.look, this);
    this.look();
  }

  get changed(): ISignal<Sessions, void> {
    return this._changed;
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  /** The path of an environment's notebook; null where it has none on this Jupyter server. */
  pathOf(environment: IEnvironment): string | null {
    const { id, server, path } = environment;
    const known = this._paths.get(id);
    if (known !== undefined) {
      // Of a kernel that has just begun the page does not know yet, and of its server it does.
      this._server = server ?? this._server;
      return known;
    }
    return server !== null && server === this._server ? path : null;
  }

  dispose(): void {
    if (!this._isDisposed) {
      this._isDisposed = true;
      Signal.clearData(this);
    }
  }

  private look(): void {
    const paths = new Map<string, string>();
    for (const { kernel, path, type } of this.manager.running()) {
      if (kernel && type === 'notebook') {
        paths.set(kernel.id, path);
      }
    }
    this._paths = paths;
    this._changed.emit();
  }

  private _paths: ReadonlyMap<string, string> = new Map();
  /** How this Jupyter server is called in environments. */
  private _server: string | null = null;
  private _isDisposed = false;
  private _changed = new Signal<this, void>(this);
}
