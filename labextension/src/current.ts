import type { INotebookTracker } from '@jupyterlab/notebook';
import type { IDisposable } from '@lumino/disposable';
import { Signal, type ISignal } from '@lumino/signaling';
import { KernelWatch, type ITarget } from './kernel';

/** Follows the notebook that is in front, and its kernel. */
export class CurrentNotebook implements IDisposable {
  constructor(private readonly tracker: INotebookTracker | null) {
    tracker?.currentChanged.connect(this.follow, this);
    this.follow();
  }

  get changed(): ISignal<CurrentNotebook, void> {
    return this._changed;
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  /** Null while no notebook is open. */
  get target(): ITarget | null {
    return this._watch?.target ?? null;
  }

  dispose(): void {
    if (!this._isDisposed) {
      this._isDisposed = true;
      this._watch?.dispose();
      Signal.clearData(this);
    }
  }

  private follow(): void {
    this._watch?.dispose();
    const panel = this.tracker?.currentWidget;
    this._watch = panel ? new KernelWatch(panel.sessionContext) : null;
    this._watch?.changed.connect(this.emit, this);
    this.emit();
  }

  private emit(): void {
    this._changed.emit();
  }

  private _isDisposed = false;
  private _watch: KernelWatch | null = null;
  private _changed = new Signal<this, void>(this);
}
