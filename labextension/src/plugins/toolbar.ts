import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { IToolbarWidgetRegistry } from '@jupyterlab/apputils';
import type { NotebookPanel } from '@jupyterlab/notebook';
import { KernelWatch } from '../kernel';
import { CommandIDs, IGpu } from '../tokens';
import { GpuSummary } from '../widgets/summary';

/** The button in each notebook's toolbar (JupyterLab and Notebook 7). */
export const toolbar: JupyterFrontEndPlugin<void> = {
  id: 'genv-jupyter:toolbar',
  description: 'Shows in the toolbar of a notebook what it has.',
  autoStart: true,
  requires: [IGpu],
  optional: [IToolbarWidgetRegistry],
  activate: (
    app: JupyterFrontEnd,
    gpu: IGpu,
    registry: IToolbarWidgetRegistry | null
  ): void => {
    registry?.addFactory<NotebookPanel>('Notebook', 'gpu', panel => {
      const watch = new KernelWatch(panel.sessionContext);
      const button = new GpuSummary(gpu, watch, {
        className: 'jp-Genv-toolbarButton jp-ToolbarButtonComponent',
        open: () => void app.commands.execute(CommandIDs.show)
      });
      button.disposed.connect(() => watch.dispose());
      return button;
    });
  }
};
