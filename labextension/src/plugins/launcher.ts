import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ILauncher } from '@jupyterlab/launcher';
import { IMainMenu } from '@jupyterlab/mainmenu';
import type { NotebookPanel } from '@jupyterlab/notebook';
import type { IDisposable } from '@lumino/disposable';
import { gpuIcon } from '../icons';
import { CommandIDs, IGpu } from '../tokens';
import { parseWanted } from '../wanted';

const RANK = 50;
/** Cards of notebooks have a picture, and no icon: of a colour to be seen in every theme. */
const PICTURE = gpuIcon.svgstr.replace(/#616161/g, '#1e88e5');
const ICON = `data:image/svg+xml,${encodeURIComponent(PICTURE)}`;
/** Milliseconds for which the environment of a new kernel is waited for. */
const PATIENCE = 30_000;
const ARGS = {
  args: {
    type: 'object',
    properties: {
      cwd: { type: 'string', description: 'The directory of the notebook.' },
      kernelName: { type: 'string', description: 'The kernel to start.' },
      wanted: {
        type: 'string',
        description: 'What it is given, such as 0.5, 1 or 4G.'
      }
    }
  }
} as const;

/** New notebooks that have a part of a GPU from the beginning. */
export const launcher: JupyterFrontEndPlugin<void> = {
  id: 'genv-jupyter:launcher',
  description: 'Opens a new notebook with a part of a GPU.',
  autoStart: true,
  requires: [IGpu],
  optional: [ILauncher, IMainMenu],
  activate: (
    app: JupyterFrontEnd,
    gpu: IGpu,
    cards: ILauncher | null,
    menu: IMainMenu | null
  ): void => {
    const { trans, store, settings, actions } = gpu;
    const usual = () => settings.choices.launcher ?? '0.5';
    const offered = () =>
      store.state.devices.length > 0 &&
      store.state.connection.kind !== 'absent';
    app.commands.addCommand(CommandIDs.create, {
      label: args => {
        const wanted = String(args['wanted'] ?? usual());
        return parseWanted(wanted)?.memory
          ? trans.__('Notebook with %1 of GPU', wanted)
          : trans.__('Notebook with %1 GPU', wanted);
      },
      caption: trans.__('A new notebook that has a GPU before CUDA starts'),
      icon: gpuIcon,
      describedBy: ARGS,
      isVisible: offered,
      execute: async args => {
        const request = parseWanted(String(args['wanted'] ?? usual()));
        const panel = (await app.commands.execute('notebook:create-new', {
          cwd: args['cwd'] ?? '',
          kernelName:
            args['kernelName'] ?? app.serviceManager.kernelspecs.specs?.default
        })) as NotebookPanel;
        const { sessionContext } = panel;
        await sessionContext.ready;
        const id = sessionContext.session?.kernel?.id;
        if (id && request && (await known(id))) {
          await actions.attach(id, request);
        }
      }
    });
    const known = (id: string) =>
      new Promise<boolean>(resolve => {
        const over = (found: boolean) => {
          clearTimeout(timer);
          store.changed.disconnect(look);
          resolve(found);
        };
        const look = () => store.state.environments.has(id) && over(true);
        const timer = setTimeout(() => over(false), PATIENCE);
        store.changed.connect(look);
        look();
      });

    menu?.fileMenu.newMenu.addItem({ command: CommandIDs.create, rank: RANK });
    let card: IDisposable | null = null;
    let wanted: string | null = null;
    const offer = () => {
      const now = offered() ? settings.choices.launcher : null;
      if (now !== wanted) {
        wanted = now;
        card?.dispose();
        card =
          cards && now && parseWanted(now)
            ? cards.add({
                command: CommandIDs.create,
                args: { wanted: now },
                kernelIconUrl: ICON,
                category: trans.__('Notebook'),
                rank: RANK
              })
            : null;
      }
    };
    store.changed.connect(offer);
    settings.changed.connect(offer);
    offer();
  }
};
