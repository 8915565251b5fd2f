import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import type { ReadonlyJSONObject } from '@lumino/coreutils';
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

const AN_HOUR = 3600;
const USUAL: readonly ReadonlyJSONObject[] = [{ fraction: 0.5 }, { gpus: 1 }];

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
    const isVisible = () => store.state.connection.kind !== 'absent';
    const environment = () =>
      store.state.environments.get(current.target?.id ?? '');

    app.commands.addCommand(CommandIDs.attach, {
      label: args => {
        const { gpus, fraction, memory } = args as IRequest;
        const asked = fraction ?? gpus ?? memory;
        return asked === undefined || asked === null
          ? trans.__('Attach GPU to Notebook…')
          : memory
            ? trans.__('Attach %1 of GPU to Notebook', memory)
            : trans.__('Attach %1 GPU to Notebook', asked);
      },
      describedBy: ATTACH_ARGS,
      isVisible,
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
      isVisible,
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
      isVisible,
      isEnabled: () => environment() !== undefined,
      execute: async () => {
        const id = environment()?.id;
        if (id) {
          await actions.restart(id);
        }
      }
    });
    app.commands.addCommand(CommandIDs.extend, {
      label: trans.__('Extend Lease of Notebook’s GPU by 1 h'),
      describedBy: NO_ARGS,
      isVisible,
      isEnabled: () => !!environment()?.expires,
      execute: async () => {
        const id = environment()?.id;
        if (id) {
          await actions.patch(id, { duration: AN_HOUR });
        }
      }
    });
    app.commands.addCommand(CommandIDs.keep, {
      label: trans.__('Keep Idle GPU of Notebook'),
      describedBy: NO_ARGS,
      isVisible,
      isEnabled: () => !!environment()?.grants.length,
      execute: async () => {
        const id = environment()?.id;
        if (id) {
          await actions.patch(id, { keep: true });
        }
      }
    });

    const notify = () => app.commands.notifyCommandChanged();
    // Every toolbar and menu of the page looks again then: not with each reading of a device.
    let known = environment();
    store.changed.connect(() => {
      const now = environment();
      if (now !== known) {
        known = now;
        notify();
      }
    });
    current.changed.connect(notify);
    const category = trans.__('GPU');
    for (const command of Object.values(CommandIDs)) {
      if (command !== CommandIDs.history) {
        palette?.addItem({ command, category });
      }
    }
    for (const args of USUAL) {
      palette?.addItem({ command: CommandIDs.attach, category, args });
    }
  }
};
