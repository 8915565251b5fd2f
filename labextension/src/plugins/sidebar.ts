import {
  ILabShell,
  ILayoutRestorer,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { CommandIDs, IGpu } from '../tokens';
import { GpuPanel } from '../widgets/panel';
import { GpuPopover } from '../widgets/popover';

const RANK = 501;

/** The panel in the right sidebar; where sidebars start hidden, a popover besides. */
export const sidebar: JupyterFrontEndPlugin<void> = {
  id: 'genv-jupyter:sidebar',
  description: 'Shows devices, holders and what this notebook has.',
  autoStart: true,
  requires: [IGpu],
  optional: [ILabShell, ILayoutRestorer],
  activate: (
    app: JupyterFrontEnd,
    gpu: IGpu,
    labShell: ILabShell | null,
    restorer: ILayoutRestorer | null
  ): void => {
    const { trans, store, settings } = gpu;
    const panel = new GpuPanel(gpu);
    const place = () => {
      const { position } = settings.choices;
      if (position !== placed) {
        placed = position;
        app.shell.add(panel, position, { rank: RANK, type: 'GPU' });
      }
    };
    let placed: string | null = null;
    place();
    restorer?.add(panel, panel.id);
    settings.changed.connect(place);
    const absent = () => store.state.connection.kind === 'absent';
    store.changed.connect(() => {
      // Nothing here is for this server: then there is nothing of us in its page.
      if (absent() && !panel.isDisposed) {
        settings.changed.disconnect(place);
        panel.dispose();
      }
    });
    const popover = new GpuPopover(gpu);
    app.commands.addCommand(CommandIDs.show, {
      label: trans.__('Show GPU Panel'),
      caption: trans.__('Who holds which GPU, and what this notebook has'),
      describedBy: { args: { type: 'object', properties: {} } },
      isVisible: () => !absent(),
      execute: () => {
        if (absent()) {
          return;
        }
        if (labShell) {
          labShell.activateById(panel.id);
        } else {
          popover.toggle(document.querySelector('.jp-Genv-toolbarButton'));
        }
      }
    });
  }
};
