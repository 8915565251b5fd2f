import React from 'react';
import { saveCsv, savePng } from '../history/export';
import { HistoryView } from '../history/HistoryView';
import type { HistoryModel } from '../history/model';
import type { IGpu } from '../tokens';
import { SeenWidget } from './seen';

/** The charts of one subject. They are fetched only while they can be seen. */
export class HistoryWidget extends SeenWidget {
  constructor(
    gpu: IGpu,
    private readonly model: HistoryModel
  ) {
    super(gpu);
    model.changed.connect(this.onModel, this);
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

  protected override come(): void {
    if (this.isSeen) {
      this.model.stop();
      this.model.start();
    }
  }

  protected override leave(): void {
    this.model.stop();
  }

  private onModel(): void {
    const title = this.model.history?.title;
    const holder = this.parent ?? this;
    if (title) {
      holder.title.label = this.gpu.trans.__('%1 history', title);
    }
    this.update();
  }

  private _look = 0;
}
