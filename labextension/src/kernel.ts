import type { ISessionContext } from '@jupyterlab/apputils';
import { PageConfig } from '@jupyterlab/coreutils';
import type { IDisposable } from '@lumino/disposable';
import { Signal, type ISignal } from '@lumino/signaling';

/** The kernel that a face speaks of. */
export interface ITarget {
  /** Its id, which is the id of its environment; null while there is none. */
  id: string | null;
  /** What the notebook is called. */
  name: string;
  /** Whether a kernel is on its way. */
  starting: boolean;
}

/** Whether this Jupyter server has a gateway start its kernels, on other hosts than this. */
export function runElsewhere(): boolean {
  return PageConfig.getOption('genvJupyterKernels') === 'elsewhere';
}

/** Follows the kernel of one notebook. */
export class KernelWatch implements IDisposable {
  constructor(private readonly context: ISessionContext) {
    context.kernelChanged.connect(this.emit, this);
    context.statusChanged.connect(this.emit, this);
    context.propertyChanged.connect(this.emit, this);
  }

  get changed(): ISignal<KernelWatch, void> {
    return this._changed;
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  get target(): ITarget {
    const { context } = this;
    const status = context.kernelDisplayStatus;
    return {
      id: context.session?.kernel?.id ?? null,
      name: context.name,
      starting: ['starting', 'initializing', 'connecting'].includes(status)
    };
  }

  dispose(): void {
    if (!this._isDisposed) {
      this._isDisposed = true;
      Signal.clearData(this);
    }
  }

  private emit(): void {
    this._changed.emit();
  }

  private _isDisposed = false;
  private _changed = new Signal<this, void>(this);
}
