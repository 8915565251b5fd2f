import {
  ILabShell,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { IToolbarWidgetRegistry } from '@jupyterlab/apputils';
import type { NotebookPanel } from '@jupyterlab/notebook';
import { KernelWatch } from '../kernel';
import { CommandIDs, IGpu } from '../tokens';
import { GpuPopover } from '../widgets/popover';
import { GpuSummary } from '../widgets/summary';

/** The button in each notebook's toolbar (JupyterLab and Notebook 7), with a popover below it. */
export const toolbar: JupyterFrontEndPlugin<void> = {
  id: 'genv-jupyter:toolbar',
  description: 'Shows in the toolbar of a notebook what it has.',
  autoStart: true,
  requires: [IGpu],
  optional: [IToolbarWidgetRegistry, ILabShell],
  activate: (
    app: JupyterFrontEnd,
    gpu: IGpu,
    registry: IToolbarWidgetRegistry | null,
    labShell: ILabShell | null
  ): void => {
    const show = () => void app.commands.execute(CommandIDs.show);
    // Where the whole panel is a click away, what the notebook has is enough.
    const popover =
      labShell && new GpuPopover(gpu, { brief: true, more: show });
    registry?.addFactory<NotebookPanel>('Notebook', 'gpu', panel => {
      const watch = new KernelWatch(panel.sessionContext);
      const button = new GpuSummary(gpu, watch, {
        className: 'jp-Genv-toolbarButton jp-ToolbarButtonComponent',
        open: () => {
          if (popover) {
            // The popover speaks of the notebook in front: that is where the click was.
            labShell.activateById(panel.id);
            popover.toggle(button.node.querySelector('button'));
          } else {
            show();
          }
        }
      });
      button.disposed.connect(() => watch.dispose());
      return button;
    });
  }
};
