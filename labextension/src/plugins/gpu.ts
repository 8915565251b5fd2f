import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { IStateDB } from '@jupyterlab/statedb';
import { DisposableSet } from '@lumino/disposable';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { GpuActions } from '../actions';
import { GpuClient } from '../api/client';
import { CurrentNotebook } from '../current';
import { Folds } from '../folds';
import { Notebooks } from '../notebooks';
import { Page } from '../page';
import { QuotaWatch } from '../quotawatch';
import { speak } from '../schema';
import { Sessions } from '../sessions';
import { Settings } from '../settings';
import { GpuStore } from '../store';
import { EventStream } from '../stream';
import { IGpu } from '../tokens';
import { setUnits } from '../units';

const ID = 'genv-jupyter:gpu';

/** What ends with the plugin. */
const alive = new DisposableSet();

/** The store, its one stream, and the notebook in front: what all other plugins share. */
export const gpu: JupyterFrontEndPlugin<IGpu> = {
  id: ID,
  description: 'Knows who holds which GPU.',
  autoStart: true,
  provides: IGpu,
  optional: [INotebookTracker, ITranslator, IStateDB, ISettingRegistry],
  activate: async (
    app: JupyterFrontEnd,
    tracker: INotebookTracker | null,
    translator: ITranslator | null,
    memory: IStateDB | null,
    registry: ISettingRegistry | null
  ): Promise<IGpu> => {
    const trans = (translator ?? nullTranslator).load('genv_jupyter');
    const client = new GpuClient(app.serviceManager.serverSettings);
    const store = new GpuStore();
    const page = new Page();
    const settings = new Settings();
    const stream = new EventStream(client, store, page);
    const notebooks = new Notebooks(tracker);
    const actions = new GpuActions(client, store, notebooks, trans);
    const current = new CurrentNotebook(tracker);
    const sessions = new Sessions(app.serviceManager.sessions);
    const folds = new Folds(memory);
    const quota = new QuotaWatch(client, store);
    for (const part of [
      stream,
      page,
      settings,
      store,
      current,
      notebooks,
      sessions,
      folds,
      quota
    ]) {
      alive.add(part);
    }
    page.resumed.connect((_, how) =>
      how === 'woken' ? void stream.connect() : stream.shown()
    );
    store.changed.connect(() => {
      if (store.state.connection.kind === 'absent') {
        page.dispose(); // nothing here is for this server
      }
    });
    settings.changed.connect(() => {
      const { units, colours, refresh } = settings.choices;
      setUnits(units);
      document.body.dataset.jpGenvColours = colours;
      stream.interval = 1000 * refresh;
    });
    speak(registry, ID, trans);
    await settings.follow(registry, ID);
    void folds.restore();
    void app.started.then(() => stream.connect());
    return {
      store,
      client,
      commands: app.commands,
      actions,
      current,
      notebooks,
      sessions,
      folds,
      quota,
      page,
      settings,
      trans,
      open: path => void app.commands.execute('docmanager:open', { path }),
      retry: () => void stream.connect()
    };
  },
  deactivate: (): void => {
    alive.dispose();
  }
};
