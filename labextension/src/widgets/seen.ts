import { ReactWidget } from '@jupyterlab/ui-components';
import type { Message } from '@lumino/messaging';
import type { IGpu } from '../tokens';

/** A widget of ours that works only while somebody can see it. */
export abstract class SeenWidget extends ReactWidget {
  constructor(protected readonly gpu: IGpu) {
    super();
    this.addClass('jp-Genv');
    gpu.page.resumed.connect(this.come, this);
  }

  /** Whether it is on the screen, and somebody at the screen. */
  protected get isSeen(): boolean {
    return this.isVisible && !this.gpu.page.hidden;
  }

  /** Somebody may look who did not until now. */
  protected abstract come(): void;

  /** Nobody looks any more. */
  protected abstract leave(): void;

  protected override onAfterAttach(msg: Message): void {
    super.onAfterAttach(msg);
    this.come();
  }

  protected override onAfterShow(msg: Message): void {
    super.onAfterShow(msg);
    this.come();
  }

  protected override onBeforeHide(msg: Message): void {
    this.leave();
    super.onBeforeHide(msg);
  }
}
