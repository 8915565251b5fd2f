import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { IStatusBar } from '@jupyterlab/statusbar';
import { CommandIDs, IGpu } from '../tokens';
import { GpuSummary } from '../widgets/summary';

/** The item in JupyterLab's status bar, for the notebook in front. */
export const statusbar: JupyterFrontEndPlugin<void> = {
  id: 'genv-jupyter:statusbar',
  description: 'Shows in the status bar what the notebook in front has.',
  autoStart: true,
  requires: [IGpu],
  optional: [IStatusBar],
  activate: (
    app: JupyterFrontEnd,
    gpu: IGpu,
    statusBar: IStatusBar | null
  ): void => {
    if (!statusBar) {
      return;
    }
    const item = new GpuSummary(gpu, gpu.current, {
      className: 'jp-Genv-statusItem',
      detailed: true,
      open: () => void app.commands.execute(CommandIDs.show)
    });
    statusBar.registerStatusItem('genv-jupyter:statusbar', {
      item,
      align: 'left',
      rank: 20
    });
  }
};
