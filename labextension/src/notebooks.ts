import type { CodeCell } from '@jupyterlab/cells';
import type { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import type { IDisposable } from '@lumino/disposable';

/** What a restart would break off. */
export interface IRunning {
  /** How the running cell begins. */
  cell: string;
  /** How many cells wait behind it. */
  behind: number;
}

const LONGEST = 60;

/** The notebooks that are open in this page, found by their kernels. */
export class Notebooks implements IDisposable {
  constructor(private readonly tracker: INotebookTracker | null) {
    tracker?.forEach(panel => this.watch(panel));
    tracker?.widgetAdded.connect(this.onAdded, this);
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  has(kernel: string): boolean {
    return this.find(kernel) !== null;
  }

  /** What runs in a notebook; null when nothing was started from here. */
  running(kernel: string): IRunning | null {
    const [first, ...behind] = this.waiting(kernel);
    if (!first) {
      return null;
    }
    const source = first.model.sharedModel.getSource();
    const line = source.split('\n').find(one => one.trim()) ?? '';
    const cell = line.trim();
    return {
      cell: cell.length > LONGEST ? `${cell.slice(0, LONGEST)}…` : cell,
      behind: behind.length
    };
  }

  /** Restart a kernel as JupyterLab's own button does; false when it is not open here. */
  async restart(kernel: string): Promise<boolean> {
    const panel = this.find(kernel);
    await panel?.sessionContext.restartKernel();
    return panel !== null;
  }

  /**
   * Have a notebook know that its kernel is another process now.
   *
   * JupyterLab knows of restarts that it, or the kernel's death, has caused. Of one that the
   * server was asked for by somebody else it would go on to show the old state.
   */
  async renew(kernel: string): Promise<void> {
    if (this._known.delete(kernel)) {
      return;
    }
    for (const cell of this.waiting(kernel)) {
      cell.outputArea.future?.dispose();
    }
    await this.find(kernel)?.sessionContext.session?.kernel?.reconnect();
  }

  dispose(): void {
    if (!this._isDisposed) {
      this._isDisposed = true;
      this.tracker?.widgetAdded.disconnect(this.onAdded, this);
    }
  }

  private find(kernel: string): NotebookPanel | null {
    const found = this.tracker?.find(
      panel => panel.sessionContext.session?.kernel?.id === kernel
    );
    return found ?? null;
  }

  private waiting(kernel: string): CodeCell[] {
    const cells = this.find(kernel)?.content.widgets ?? [];
    return cells.filter(
      (cell): cell is CodeCell =>
        cell.model.type === 'code' &&
        (cell as CodeCell).model.executionState === 'running'
    );
  }

  private onAdded(_: unknown, panel: NotebookPanel): void {
    this.watch(panel);
  }

  private watch(panel: NotebookPanel): void {
    const context = panel.sessionContext;
    const look = (_: unknown, status: string) => {
      const kernel = context.session?.kernel?.id;
      if (kernel && ['restarting', 'autorestarting'].includes(status)) {
        this._known.add(kernel);
      }
    };
    context.statusChanged.connect(look);
    panel.disposed.connect(() => context.statusChanged.disconnect(look));
  }

  /** Kernels of whose restart JupyterLab knows. */
  private readonly _known = new Set<string>();
  private _isDisposed = false;
}
