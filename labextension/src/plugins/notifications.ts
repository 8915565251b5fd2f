import type { JupyterFrontEndPlugin } from '@jupyterlab/application';
import { Notification } from '@jupyterlab/apputils';
import { Notices, type Act } from '../notices';
import { noticesOf } from '../state';
import { IGpu } from '../tokens';

/** Tells what concerns one's notebooks by JupyterLab's own notifications. */
export const notifications: JupyterFrontEndPlugin<void> = {
  id: 'genv-jupyter:notifications',
  description: 'Tells of caps, idle GPUs, leases, and what others ask for.',
  autoStart: true,
  requires: [IGpu],
  activate: (_, gpu: IGpu): void => {
    const { store, actions, settings, trans } = gpu;
    const act: Act = (notice, action) => void actions.answer(notice, action);
    const notices = new Notices(Notification, act, trans);
    const look = () =>
      notices.look(
        settings.choices.notifications ? noticesOf(store.state).mine : [],
        id => store.state.environments.get(id)?.name ?? null
      );
    store.changed.connect(look);
    settings.changed.connect(look);
    Notification.manager.changed.connect((_, change) => {
      const gone = change.type === 'removed' ? change.notification.id : null;
      const notice = gone && notices.removed(gone);
      if (notice) {
        void actions.dismissNotice(notice);
      }
    });
  }
};
