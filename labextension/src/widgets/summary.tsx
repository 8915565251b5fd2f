import { ReactWidget } from '@jupyterlab/ui-components';
import { MessageLoop, type Message } from '@lumino/messaging';
import type { ISignal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';
import React from 'react';
import { Summary } from '../components/Summary';
import type { ITarget } from '../kernel';
import type { IGpu } from '../tokens';

/** Whatever knows a notebook's kernel and says when it is another one. */
export interface ITargetSource {
  readonly target: ITarget | null;
  readonly changed: ISignal<unknown, void>;
}

/** What a notebook has, in its toolbar or in the status bar. */
export class GpuSummary extends ReactWidget {
  constructor(
    private readonly gpu: IGpu,
    private readonly source: ITargetSource,
    private readonly look: {
      className: string;
      detailed?: boolean;
      open: () => void;
    }
  ) {
    super();
    this.addClass('jp-Genv-summary');
    gpu.store.changed.connect(this.refresh, this);
    source.changed.connect(this.refresh, this);
    gpu.settings.changed.connect(this.refresh, this);
    gpu.page.resumed.connect(this.refresh, this);
  }

  override render(): JSX.Element {
    return (
      <Summary
        state={this.gpu.store.state}
        target={this.source.target}
        className={this.look.className}
        detailed={this.look.detailed ?? false}
        open={this.look.open}
        trans={this.gpu.trans}
      />
    );
  }

  protected override onUpdateRequest(msg: Message): void {
    super.onUpdateRequest(msg);
    void this.renderPromise?.then(() => this.settle());
  }

  /** Have the toolbar place its items anew: older ones do not see that one has grown. */
  private settle(): void {
    const { parent, node } = this;
    if (this.isDisposed || !parent || node.offsetWidth === this._width) {
      return;
    }
    this._width = node.offsetWidth;
    const { offsetWidth, offsetHeight } = parent.node;
    MessageLoop.postMessage(
      parent,
      new Widget.ResizeMessage(offsetWidth, offsetHeight)
    );
  }

  private refresh(): void {
    if (!this.gpu.page.hidden) {
      this.update();
    }
  }

  private _width = 0;
}
