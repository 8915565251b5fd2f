import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import type { IRequest } from '../api/types';
import { CommandIDs, IGpu } from '../tokens';

const NO_ARGS = { args: { type: 'object', properties: {} } } as const;
const ATTACH_ARGS = {
  args: {
    type: 'object',
    properties: {
      gpus: { type: 'number', description: 'How many whole GPUs.' },
      fraction: { type: 'number', description: 'A share of one GPU, below 1.' },
      memory: { type: 'string', description: 'Memory, such as 4G or 4GiB.' },
      devices: {
        type: 'array',
        items: { type: 'string' },
        description: 'UUIDs of the devices to use.'
      }
    }
  }
} as const;

/** The commands for the notebook in front, and their entries in the palette. */
export const commands: JupyterFrontEndPlugin<void> = {
  id: 'genv-jupyter:commands',
  description: 'Commands to attach, release and restart.',
  autoStart: true,
  requires: [IGpu],
  optional: [ICommandPalette],
  activate: (
    app: JupyterFrontEnd,
    gpu: IGpu,
    palette: ICommandPalette | null
  ): void => {
    const { trans, store, actions, current } = gpu;
    const environment = () =>
      store.state.environments.get(current.target?.id ?? '');

    app.commands.addCommand(CommandIDs.attach, {
      label: trans.__('Attach GPU to Notebook…'),
      describedBy: ATTACH_ARGS,
      isEnabled: () => environment() !== undefined,
      execute: async args => {
        const id = environment()?.id;
        const request = args as IRequest;
        const asked =
          request.gpus ?? request.fraction ?? request.memory ?? request.devices;
        if (asked === undefined) {
          await app.commands.execute(CommandIDs.show);
        } else if (id) {
          const { gpus, fraction, memory, devices } = request;
          await actions.attach(id, { gpus, fraction, memory, devices });
        }
      }
    });
    app.commands.addCommand(CommandIDs.release, {
      label: trans.__('Release GPU of Notebook'),
      describedBy: NO_ARGS,
      isEnabled: () => !!environment()?.grants.length,
      execute: async () => {
        const id = environment()?.id;
        if (id) {
          await actions.release(id);
        }
      }
    });
    app.commands.addCommand(CommandIDs.restart, {
      label: trans.__('Restart Kernel with its GPU'),
      describedBy: NO_ARGS,
      isEnabled: () => environment() !== undefined,
      execute: async () => {
        const id = environment()?.id;
        if (id) {
          await actions.restart(id);
        }
      }
    });

    const notify = () => app.commands.notifyCommandChanged();
    store.changed.connect(notify);
    current.changed.connect(notify);
    const category = trans.__('GPU');
    for (const command of Object.values(CommandIDs)) {
      palette?.addItem({ command, category });
    }
  }
};
