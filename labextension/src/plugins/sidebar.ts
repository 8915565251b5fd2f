import {
  ILabShell,
  ILayoutRestorer,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { CommandIDs, IGpu } from '../tokens';
import { GpuPanel } from '../widgets/panel';
import { GpuPopover } from '../widgets/popover';

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
    const { trans } = gpu;
    const panel = new GpuPanel(gpu);
    app.shell.add(panel, 'right', { rank: 501, type: 'GPU' });
    restorer?.add(panel, panel.id);
    const popover = new GpuPopover(gpu);
    app.commands.addCommand(CommandIDs.show, {
      label: trans.__('Show GPU Panel'),
      caption: trans.__('Who holds which GPU, and what this notebook has'),
      describedBy: { args: { type: 'object', properties: {} } },
      execute: () => {
        if (labShell) {
          labShell.activateById(panel.id);
        } else {
          popover.toggle(document.querySelector('.jp-Genv-toolbarButton'));
        }
      }
    });
  }
};
