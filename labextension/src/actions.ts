import { Dialog, showDialog } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import { ApiError, type GpuClient } from './api/client';
import type {
  IDeviceGrant,
  ILeftover,
  INotice,
  IPatch,
  IQueueTicket,
  IRequest
} from './api/types';
import type { Answer } from './notices';
import type { IPreview } from './preview';
import { leftoverKey, type Busy, type IRefusal } from './state';
import type { Notebooks } from './notebooks';
import type { GpuStore } from './store';

/** What the button of a dialog is known by. */
const LATER = 'later';
/** Seconds. */
const HALF_AN_HOUR = 1800;
const AN_HOUR = 3600;

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
    const attempt = async () => {
      try {
        await this.client.attach(id, request);
        return null;
      } catch (error) {
        if (error instanceof ApiError && error.code === 'cuda_initialized') {
          return error;
        }
        throw error;
      }
    };
    const late = await this.run(id, 'attach', attempt, request);
    if (!late) {
      return;
    }
    const { trans } = this;
    const when = await this.ask(
      id,
      trans.__('Restart the kernel to attach?'),
      `${late.message} ${trans.__('After a restart the kernel sees what you asked for.')}`,
      true
    );
    if (when) {
      await this.run(id, when === 'now' ? 'restart' : 'attach', async () => {
        await this.client.attach(id, request, { restart: true });
        if (when === 'now') {
          await this.replace(id);
        }
      });
    }
  }

  /** Say what a request would get now; nothing is changed. */
  async place(id: string, request: IRequest): Promise<IPreview> {
    try {
      const { grants } = await this.client.place(id, request);
      return { kind: 'fits', grants };
    } catch (error) {
      if (!(error instanceof ApiError)) {
        throw error;
      }
      return error.status >= 400 && error.status < 500
        ? { kind: 'refused', refusal: this.refusal(error) }
        : { kind: 'unknown' };
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

  /** Ask those who hold what is needed how long still; return what came of it. */
  async askHolders(id: string, request: IRequest): Promise<string> {
    const { trans } = this;
    try {
      const { holders } = await this.client.ask(id, request);
      const names = [...new Set(holders.map(({ user }) => user))];
      return trans.__('Asked: %1.', names.join(', '));
    } catch (error) {
      if (!(error instanceof ApiError)) {
        throw error;
      }
      const { message, hint } = this.refusal(error);
      return `${message} ${hint}`.trim();
    }
  }

  /** Leave the queue. */
  async leave(ticket: IQueueTicket): Promise<void> {
    await this.run(ticket.environment, 'leave', () =>
      this.client.leave(ticket.id)
    );
  }

  /** End a leftover process; a refusal is its own. */
  async end(leftover: ILeftover): Promise<void> {
    await this.run(leftoverKey(leftover), 'end', () =>
      this.client.end(leftover)
    );
  }

  /** Do what a button of a notice says. */
  async answer(notice: INotice, action: Answer): Promise<void> {
    const { environment: id } = notice;
    if (action === 'dismiss' || !id) {
      return this.dismissNotice(notice.id);
    }
    switch (action) {
      case 'keep':
        return this.patch(id, { keep: true });
      case 'extend':
        return this.patch(id, { duration: AN_HOUR });
      case 'release_later':
        return this.releaseIn(id, HALF_AN_HOUR);
      case 'release':
        return this.release(id);
      case 'restart':
        return this.restart(id);
    }
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
    const when = await this.ask(
      id,
      trans.__('Restart the kernel?'),
      trans.__('What was granted is kept.'),
      false
    );
    if (when) {
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

  /** Ask whether to restart now, or, where that makes sense, to leave it to the next start. */
  private async ask(
    id: string,
    title: string,
    body: string,
    later: boolean
  ): Promise<'now' | 'later' | null> {
    const { trans } = this;
    const lost = trans.__('All variables of the kernel will be lost.');
    const result = await showDialog({
      title,
      body: [this.loss(id), body, lost].filter(one => one).join(' '),
      buttons: [
        Dialog.cancelButton({ label: trans.__('Cancel') }),
        ...(later
          ? [
              Dialog.createButton({
                label: trans.__('At next start'),
                actions: [LATER]
              })
            ]
          : []),
        Dialog.warnButton({
          label: later ? trans.__('Restart now') : trans.__('Restart')
        })
      ]
    });
    if (!result.button.accept) {
      return null;
    }
    return result.button.actions.includes(LATER) ? 'later' : 'now';
  }

  private async run<T>(
    id: string,
    busy: Busy,
    action: () => Promise<T>,
    request?: IRequest
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
      this.store.end(id, { ...this.refusal(error), request });
      return null;
    }
  }

  private refusal(error: ApiError): IRefusal {
    const { trans } = this;
    const holders = error.details['holders'];
    if (error.status === 0) {
      return {
        message: trans.__('The Jupyter server does not answer.'),
        hint: trans.__('Nothing was changed as far as is known.')
      };
    }
    const message =
      error.message || trans.__('The server answered %1.', error.status);
    return {
      message,
      hint: error.hint,
      taken: error.code === 'no_capacity',
      holders: Array.isArray(holders) ? (holders as IDeviceGrant[]) : []
    };
  }
}
