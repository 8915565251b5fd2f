import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { INotebookTracker } from '@jupyterlab/notebook';
import { IStateDB } from '@jupyterlab/statedb';
import { DisposableSet } from '@lumino/disposable';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { GpuActions } from '../actions';
import { GpuClient } from '../api/client';
import { CurrentNotebook } from '../current';
import { Folds } from '../folds';
import { Notebooks } from '../notebooks';
import { GpuStore } from '../store';
import { EventStream } from '../stream';
import { IGpu } from '../tokens';

/** What ends with the plugin. */
const alive = new DisposableSet();

/** The store, its one stream, and the notebook in front: what all other plugins share. */
export const gpu: JupyterFrontEndPlugin<IGpu> = {
  id: 'genv-jupyter:gpu',
  description: 'Knows who holds which GPU.',
  autoStart: true,
  provides: IGpu,
  optional: [INotebookTracker, ITranslator, IStateDB],
  activate: (
    app: JupyterFrontEnd,
    tracker: INotebookTracker | null,
    translator: ITranslator | null,
    memory: IStateDB | null
  ): IGpu => {
    const trans = (translator ?? nullTranslator).load('genv_jupyter');
    const client = new GpuClient(app.serviceManager.serverSettings);
    const store = new GpuStore();
    const stream = new EventStream(client, store);
    const notebooks = new Notebooks(tracker);
    const actions = new GpuActions(client, store, notebooks, trans);
    const current = new CurrentNotebook(tracker);
    const folds = new Folds(memory);
    for (const part of [stream, store, current, notebooks, folds]) {
      alive.add(part);
    }
    void folds.restore();
    void app.started.then(() => stream.connect());
    return {
      store,
      actions,
      current,
      notebooks,
      folds,
      trans,
      retry: () => void stream.connect()
    };
  },
  deactivate: (): void => {
    alive.dispose();
  }
};
