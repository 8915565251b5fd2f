import { Dialog, showDialog } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import { ApiError, type GpuClient } from './api/client';
import type { IPatch, IRequest } from './api/types';
import type { Busy, IRefusal } from './state';
import type { Notebooks } from './notebooks';
import type { GpuStore } from './store';

/** What a user can do; refusals go into the store, where the panel shows them. */
export class GpuActions {
  constructor(
    private readonly client: GpuClient,
    private readonly store: GpuStore,
    private readonly notebooks: Notebooks,
    private readonly trans: TranslationBundle
  ) {}

  /** Attach; where that comes too late for the running process, offer a restart. */
  async attach(id: string, request: IRequest): Promise<void> {
    const late = await this.run(id, 'attach', async () => {
      try {
        await this.client.attach(id, request);
        return null;
      } catch (error) {
        if (error instanceof ApiError && error.code === 'cuda_initialized') {
          return error;
        }
        throw error;
      }
    });
    if (!late) {
      return;
    }
    const { trans } = this;
    const agreed = await this.ask(
      id,
      trans.__('Restart the kernel to attach?'),
      `${late.message} ${trans.__('After a restart the kernel sees what you asked for.')}`
    );
    if (agreed) {
      await this.run(id, 'restart', async () => {
        await this.client.attach(id, request, { restart: true });
        await this.replace(id);
      });
    }
  }

  async release(id: string): Promise<void> {
    await this.run(id, 'release', () => this.client.detach(id));
  }

  /** Release at a time to come: what is held gets a lease of so many seconds from now. */
  async releaseIn(id: string, seconds: number): Promise<void> {
    const request = this.store.state.environments.get(id)?.request;
    if (request) {
      await this.run(id, 'attach', () =>
        this.client.attach(id, { ...request, duration: seconds })
      );
    }
  }

  /** Change what needs no new grants, such as the length of a lease. */
  async patch(id: string, body: IPatch): Promise<void> {
    await this.run(id, 'attach', () => this.client.patch(id, body));
  }

  /** Do not tell of something any more. */
  async dismissNotice(id: string): Promise<void> {
    await this.client.dismiss(id).catch(error => {
      // Nothing depends on it: what still stands is told again by the next page.
      if (!(error instanceof ApiError)) {
        throw error;
      }
    });
  }

  /** Restart the kernel once the user agrees: what holds devices goes, what was granted stays. */
  async restart(id: string): Promise<void> {
    const { trans } = this;
    const agreed = await this.ask(
      id,
      trans.__('Restart the kernel?'),
      trans.__('What was granted is kept.')
    );
    if (agreed) {
      await this.run(id, 'restart', () => this.replace(id));
    }
  }

  /** Replace the process, the JupyterLab of this page knowing of it where it can. */
  private async replace(id: string): Promise<void> {
    if (!(await this.notebooks.restart(id))) {
      await this.client.restart(id);
    }
  }

  /** What a restart would break off, in words; null while the kernel is idle. */
  private loss(id: string): string | null {
    const { trans } = this;
    const running = this.notebooks.running(id);
    if (!running) {
      const state = this.store.state.environments.get(id)?.kernel_state;
      return state === 'busy'
        ? trans.__('The kernel is busy: what it computes now is lost.')
        : null;
    }
    const cell = trans.__(
      'A cell is running (%1): it is broken off, and what it has computed is lost.',
      running.cell
    );
    if (!running.behind) {
      return cell;
    }
    const behind = trans._n(
      'One cell waits behind it and will not run.',
      '%1 cells wait behind it and will not run.',
      running.behind
    );
    return `${cell} ${behind}`;
  }

  private async ask(id: string, title: string, body: string): Promise<boolean> {
    const { trans } = this;
    const lost = trans.__('All variables of the kernel will be lost.');
    const result = await showDialog({
      title,
      body: [this.loss(id), body, lost].filter(one => one).join(' '),
      buttons: [
        Dialog.cancelButton({ label: trans.__('Cancel') }),
        Dialog.warnButton({ label: trans.__('Restart') })
      ]
    });
    return result.button.accept;
  }

  private async run<T>(
    id: string,
    busy: Busy,
    action: () => Promise<T>
  ): Promise<T | null> {
    this.store.begin(id, busy);
    try {
      const result = await action();
      this.store.end(id);
      return result;
    } catch (error) {
      if (!(error instanceof ApiError)) {
        this.store.end(id);
        throw error;
      }
      this.store.end(id, this.refusal(error));
      return null;
    }
  }

  private refusal(error: ApiError): IRefusal {
    const { trans } = this;
    if (error.status === 0) {
      return {
        message: trans.__('The Jupyter server does not answer.'),
        hint: trans.__('Nothing was changed as far as is known.')
      };
    }
    const message =
      error.message || trans.__('The server answered %1.', error.status);
    return { message, hint: error.hint };
  }
}
