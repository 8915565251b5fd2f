import { Panel, Widget } from '@lumino/widgets';
import type { IGpu } from '../tokens';
import { GpuPanel } from './panel';

const GAP = 4;
const WIDTH = 340;

export interface IPopoverOptions {
  /** Whether only the notebook in front is spoken of. */
  brief: boolean;
  /** Shows everything. */
  more(): void;
}

/** The panel below a button: all of it where no sidebar can be opened (Notebook 7). */
export class GpuPopover {
  constructor(
    private readonly gpu: IGpu,
    private readonly options: IPopoverOptions | null = null
  ) {}

  toggle(anchor: HTMLElement | null): void {
    if (this._panel) {
      this.close();
    } else {
      this.open(anchor);
    }
  }

  private open(anchor: HTMLElement | null): void {
    const { options } = this;
    const content = new GpuPanel(this.gpu, options?.brief);
    content.id = 'genv-jupyter-popover-content';
    const panel = new Panel();
    panel.id = 'genv-jupyter-popover';
    panel.addClass('jp-Genv-popover');
    panel.addClass('jp-ThemedContainer');
    panel.addWidget(content);
    if (options) {
      panel.addWidget(this.more(options.more));
    }
    const { node } = panel;
    node.setAttribute('role', 'dialog');
    node.setAttribute('aria-label', this.gpu.trans.__('GPUs'));
    node.dataset.lmSuppressShortcuts = 'true';
    Widget.attach(panel, document.body);
    const box = anchor?.getBoundingClientRect();
    const right = box ? document.body.clientWidth - box.right : GAP;
    node.style.top = `${(box?.bottom ?? 0) + GAP}px`;
    // Never beyond the left edge, whatever becomes of the window while it is open.
    node.style.right = `clamp(${GAP}px, ${right}px, 100vw - ${GAP}px - min(${WIDTH}px, 100vw - ${2 * GAP}px))`;
    node.style.width = `min(${WIDTH}px, 100vw - ${2 * GAP}px)`;
    node.style.maxHeight = `calc(100vh - ${(box?.bottom ?? 0) + 3 * GAP}px)`;
    document.addEventListener('keydown', this.onKey, true);
    document.addEventListener('pointerdown', this.onPointer, true);
    this._anchor = anchor;
    this._panel = panel;
    requestAnimationFrame(() => content.activate());
  }

  /** A way to everything else. */
  private more(show: () => void): Widget {
    const more = new Widget();
    const button = document.createElement('button');
    button.type = 'button';
    button.className = 'jp-Genv-button';
    button.textContent = this.gpu.trans.__('All GPUs…');
    button.addEventListener('click', () => {
      this.close();
      show();
    });
    more.addClass('jp-Genv');
    more.addClass('jp-Genv-more');
    more.node.append(button);
    return more;
  }

  private close(): void {
    document.removeEventListener('keydown', this.onKey, true);
    document.removeEventListener('pointerdown', this.onPointer, true);
    const { activeElement } = document;
    // Of a button that was pressed and is gone the focus is with nobody.
    const focused =
      activeElement === document.body ||
      this._panel?.node.contains(activeElement);
    this._panel?.dispose();
    this._panel = null;
    if (focused) {
      this._anchor?.focus();
    }
  }

  private readonly onKey = (event: KeyboardEvent): void => {
    const form = (event.target as Element | null)?.closest?.('.jp-Genv-form');
    const dialog = document.querySelector('.jp-Dialog');
    if (event.key === 'Escape' && !form && !dialog) {
      event.stopPropagation();
      this.close();
    }
  };

  private readonly onPointer = (event: PointerEvent): void => {
    const target = event.target as Element;
    const inside =
      this._panel?.node.contains(target) ||
      this._anchor?.contains(target) ||
      target.closest('.jp-Dialog');
    if (!inside) {
      this.close();
    }
  };

  private _anchor: HTMLElement | null = null;
  private _panel: Panel | null = null;
}
