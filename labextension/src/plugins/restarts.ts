import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { Notification } from '@jupyterlab/apputils';
import { outcomeText, Restarts } from '../restarts';
import { CommandIDs, IGpu } from '../tokens';

const SECONDS = 8;

/** Says what came back after a restart, of the notebooks that are open here. */
export const restarts: JupyterFrontEndPlugin<void> = {
  id: 'genv-jupyter:restarts',
  description: 'Says after a restart which GPUs came back, or why not.',
  autoStart: true,
  requires: [IGpu],
  activate: (app: JupyterFrontEnd, gpu: IGpu): void => {
    const { store, notebooks, trans } = gpu;
    const watch = new Restarts();
    const show: Notification.IAction = {
      label: trans.__('Show GPU Panel'),
      callback: () => void app.commands.execute(CommandIDs.show)
    };
    store.changed.connect(() => {
      const { environments, devices } = store.state;
      for (const outcome of watch.look(environments)) {
        if (!notebooks.has(outcome.id)) {
          continue;
        }
        if (outcome.after && outcome.after.kernel_state !== 'dead') {
          void notebooks.renew(outcome.id);
        }
        const said = outcomeText(outcome, devices, trans);
        if (said) {
          const stays = said.kind !== 'success';
          Notification.emit(said.text, said.kind, {
            autoClose: stays ? false : 1000 * SECONDS,
            actions: stays ? [show] : []
          });
        }
      }
    });
  }
};
