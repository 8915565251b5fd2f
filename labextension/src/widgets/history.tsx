import { ReactWidget } from '@jupyterlab/ui-components';
import type { Message } from '@lumino/messaging';
import React from 'react';
import { saveCsv, savePng } from '../history/export';
import { HistoryView } from '../history/HistoryView';
import type { HistoryModel } from '../history/model';
import type { IGpu } from '../tokens';

/** The charts of one subject. They are fetched only while they can be seen. */
export class HistoryWidget extends ReactWidget {
  constructor(
    private readonly gpu: IGpu,
    private readonly model: HistoryModel
  ) {
    super();
    this.addClass('jp-Genv');
    model.changed.connect(this.onModel, this);
    gpu.page.resumed.connect(this.watch, this);
    gpu.settings.changed.connect(this.restyle, this);
  }

  /** Draw anew in the colours and the units of now. */
  restyle(): void {
    this._look++;
    this.update();
  }

  override render(): JSX.Element {
    const { model, gpu } = this;
    const name = () => `${model.history?.title ?? 'gpu'} ${model.span}`;
    return (
      <HistoryView
        model={model}
        look={String(this._look)}
        simulated={gpu.store.state.devices.some(device => device.simulated)}
        saveCsv={() => {
          if (model.history) {
            saveCsv(model.history, `${name()}.csv`);
          }
        }}
        savePng={() => {
          if (model.history) {
            void savePng(this.node, model.history, `${name()}.png`);
          }
        }}
        trans={gpu.trans}
      />
    );
  }

  override dispose(): void {
    this.model.dispose();
    super.dispose();
  }

  protected override onAfterAttach(msg: Message): void {
    super.onAfterAttach(msg);
    this.watch();
  }

  protected override onAfterShow(msg: Message): void {
    super.onAfterShow(msg);
    this.watch();
  }

  protected override onBeforeHide(msg: Message): void {
    this.model.stop();
    super.onBeforeHide(msg);
  }

  private onModel(): void {
    const title = this.model.history?.title;
    const holder = this.parent ?? this;
    if (title) {
      holder.title.label = this.gpu.trans.__('%1 history', title);
    }
    this.update();
  }

  private watch(): void {
    if (this.isVisible && !this.gpu.page.hidden) {
      this.model.stop();
      this.model.start();
    }
  }

  private _look = 0;
}
