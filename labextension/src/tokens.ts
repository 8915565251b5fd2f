import type { CommandRegistry } from '@lumino/commands';
import { Token } from '@lumino/coreutils';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { GpuActions } from './actions';
import type { GpuClient } from './api/client';
import type { CurrentNotebook } from './current';
import type { Folds } from './folds';
import type { Notebooks } from './notebooks';
import type { Page } from './page';
import type { QuotaWatch } from './quotawatch';
import type { Sessions } from './sessions';
import type { Settings } from './settings';
import type { GpuStore } from './store';

/** What all plugins of this package share. */
export interface IGpu {
  readonly store: GpuStore;
  readonly client: GpuClient;
  readonly commands: CommandRegistry;
  readonly actions: GpuActions;
  readonly current: CurrentNotebook;
  readonly notebooks: Notebooks;
  readonly folds: Folds;
  readonly quota: QuotaWatch;
  readonly sessions: Sessions;
  readonly page: Page;
  readonly settings: Settings;
  /** Translates every string of this package. */
  readonly trans: TranslationBundle;
  /** Open a notebook of this Jupyter server. */
  open(path: string): void;
  /** Connect again now. */
  retry(): void;
}

export const IGpu = new Token<IGpu>(
  'genv-jupyter:IGpu',
  'Who holds which GPU, and what can be done about it.'
);

export namespace CommandIDs {
  export const attach = 'genv-jupyter:attach';
  export const release = 'genv-jupyter:release';
  export const restart = 'genv-jupyter:restart';
  export const extend = 'genv-jupyter:extend';
  export const keep = 'genv-jupyter:keep';
  export const show = 'genv-jupyter:show';
  export const history = 'genv-jupyter:history';
  export const create = 'genv-jupyter:create';
}
