import type { JupyterFrontEndPlugin } from '@jupyterlab/application';
import { INotebookTracker } from '@jupyterlab/notebook';
import { NotebookMemory } from '../remember';
import { IGpu } from '../tokens';

/** Notebooks remember what they were given, and ask for it when they are opened again. */
export const metadata: JupyterFrontEndPlugin<void> = {
  id: 'genv-jupyter:metadata',
  description: 'Keeps in a notebook what it was given, where that is wanted.',
  autoStart: true,
  requires: [IGpu],
  optional: [INotebookTracker],
  activate: (_, gpu: IGpu, tracker: INotebookTracker | null): void => {
    const { store, settings, actions } = gpu;
    const memory = new NotebookMemory((id, request) =>
      actions.attach(id, request)
    );
    const look = () => {
      if (!settings.choices.remember || !store.state.loaded) {
        return;
      }
      tracker?.forEach(({ sessionContext, content }) => {
        const id = sessionContext.session?.kernel?.id;
        const environment = id && store.state.environments.get(id);
        if (environment && content.model) {
          memory.look(environment, content.model);
        }
      });
    };
    store.changed.connect(look);
    settings.changed.connect(look);
    gpu.current.changed.connect(look);
  }
};
