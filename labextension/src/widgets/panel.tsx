import { MessageLoop } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';
import React from 'react';
import { Panel } from '../components/Panel';
import type { IRowActions } from '../components/EnvironmentRow';
import type { INotebookActions } from '../components/ThisNotebook';
import { followLink } from '../history/link';
import { gpuIcon } from '../icons';
import { isMine } from '../state';
import type { IGpu } from '../tokens';
import { SeenWidget } from './seen';

const TICK = 30_000;
const ALL_BUT_NOTEBOOK: ReadonlySet<string> = new Set([
  'devices',
  'environments',
  'queue',
  'quota',
  'told',
  'leftovers'
]);

/** The panel, in the sidebar or in a popover. It works only while it can be seen. */
export class GpuPanel extends SeenWidget {
  constructor(
    gpu: IGpu,
    /** Whether only the notebook in front is spoken of. */
    private readonly brief = false
  ) {
    super(gpu);
    this.id = 'genv-jupyter-panel';
    this.node.tabIndex = -1;
    this.node.addEventListener('click', event =>
      followLink(event, gpu.commands)
    );
    this.title.icon = gpuIcon;
    this.title.caption = gpu.trans.__('GPUs');
    gpu.store.changed.connect(this.refresh, this);
    gpu.current.changed.connect(this.refresh, this);
    gpu.folds.changed.connect(this.refresh, this);
    gpu.sessions.changed.connect(this.refresh, this);
    gpu.settings.changed.connect(this.refresh, this);
  }

  override render(): JSX.Element {
    const { store, current, trans } = this.gpu;
    return (
      <Panel
        state={store.state}
        target={current.target}
        actions={this.actions}
        rows={this.rows}
        hidden={this.unwanted}
        folds={this.gpu.folds}
        end={leftover => void this.gpu.actions.end(leftover)}
        retry={() => this.gpu.retry()}
        now={Date.now()}
        trans={trans}
      />
    );
  }

  override dispose(): void {
    clearInterval(this._timer);
    super.dispose();
  }

  protected override come(): void {
    clearInterval(this._timer);
    if (this.isVisible) {
      this._timer = setInterval(() => this.refresh(), TICK);
    }
    this.draw(true);
  }

  protected override leave(): void {
    clearInterval(this._timer);
  }

  protected override onActivateRequest(): void {
    // A panel that was hidden has yet to be drawn.
    MessageLoop.sendMessage(this, Widget.Msg.UpdateRequest);
    void this.renderPromise?.then(() => {
      const find = (what: string) =>
        this.node.querySelector<HTMLElement>(`${what}button:enabled`);
      const first = find('.jp-Genv-actions ') ?? find('');
      (first ?? this.node).focus();
    });
  }

  private refresh(): void {
    this.draw(false);
  }

  private draw(come: boolean): void {
    if (this.isSeen) {
      this.update();
      if (!this.unwanted.has('quota')) {
        this.gpu.quota.look(come);
      }
    }
  }

  /** The sections that are not shown. */
  private get unwanted(): ReadonlySet<string> {
    return this.brief ? ALL_BUT_NOTEBOOK : this.gpu.settings.choices.hidden;
  }

  private readonly actions: INotebookActions = {
    attach: request =>
      this.withKernel(id => this.gpu.actions.attach(id, request)),
    release: () => this.withKernel(id => this.gpu.actions.release(id)),
    restart: () => this.withKernel(id => this.gpu.actions.restart(id)),
    dismiss: () => this.withKernel(id => this.gpu.store.dismiss(id)),
    place: (id, request) => this.gpu.actions.place(id, request),
    isMine: id => {
      const { state } = this.gpu.store;
      return isMine(state, state.environments.get(id));
    },
    releaseOther: id => void this.gpu.actions.release(id),
    ask: (id, request) => this.gpu.actions.askHolders(id, request),
    leave: ticket => void this.gpu.actions.leave(ticket),
    answer: (notice, action) => void this.gpu.actions.answer(notice, action)
  };

  private readonly rows: IRowActions = {
    pathOf: environment => this.gpu.sessions.pathOf(environment),
    open: path => this.gpu.open(path),
    release: id => void this.gpu.actions.release(id)
  };

  private withKernel(action: (id: string) => unknown): void {
    const id = this.gpu.current.target?.id;
    if (id) {
      action(id);
    }
  }

  private _timer: ReturnType<typeof setInterval> | undefined;
}
