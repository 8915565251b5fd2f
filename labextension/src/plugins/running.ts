import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { IRunningSessionManagers } from '@jupyterlab/running';
import { Signal } from '@lumino/signaling';
import type { IEnvironment } from '../api/types';
import { gpuIcon } from '../icons';
import { isMine } from '../state';
import { CommandIDs, IGpu } from '../tokens';
import { summary, where } from '../view';

/** A section in the panel of what runs: who of mine holds GPUs, with *release*. */
export const running: JupyterFrontEndPlugin<void> = {
  id: 'genv-jupyter:running',
  description: 'Lists what holds GPUs among what runs.',
  autoStart: true,
  requires: [IGpu],
  optional: [IRunningSessionManagers],
  activate: (
    app: JupyterFrontEnd,
    gpu: IGpu,
    managers: IRunningSessionManagers | null
  ): void => {
    const { trans, store, actions, sessions } = gpu;
    const changed = new Signal<object, void>({});
    const mine = () =>
      [...store.state.environments.values()].filter(
        one => one.grants.length > 0 && isMine(store.state, one)
      );
    const text = (one: IEnvironment) =>
      `${one.name ?? trans.__('a kernel')} · ${where(one, store.state.devices, trans)}`;
    const detail = (one: IEnvironment) => summary(one, trans);
    const item = (one: IEnvironment) => {
      const path = sessions.pathOf(one);
      return {
        icon: () => gpuIcon,
        label: () => text(one),
        labelTitle: () => one.path ?? one.id,
        detail: () => detail(one),
        open: () =>
          path === null
            ? void app.commands.execute(CommandIDs.show)
            : gpu.open(path),
        shutdown: () => void actions.release(one.id)
      };
    };
    let shown = '';
    let added = false;
    const look = () => {
      const now = mine();
      const said = now.map(one => `${one.id} ${text(one)} ${detail(one)}`);
      if (!added && store.state.devices.length) {
        added = true;
        managers?.add({
          name: trans.__('GPUs'),
          running: () => mine().map(item),
          shutdownAll: () =>
            mine().forEach(({ id }) => void actions.release(id)),
          refreshRunning: () => undefined, // changes are told
          runningChanged: changed,
          shutdownLabel: trans.__('Release'),
          shutdownAllLabel: trans.__('Release All'),
          shutdownAllConfirmationText: trans.__(
            'Give back all GPUs that you hold?'
          )
        });
      }
      if (said.join('\n') !== shown) {
        shown = said.join('\n');
        changed.emit();
      }
    };
    store.changed.connect(look);
    look();
  }
};
