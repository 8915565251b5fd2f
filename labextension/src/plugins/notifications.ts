import type { JupyterFrontEndPlugin } from '@jupyterlab/application';
import { Notification } from '@jupyterlab/apputils';
import { Notices, type Act } from '../notices';
import { IGpu } from '../tokens';

const HALF_AN_HOUR = 1800;
const AN_HOUR = 3600;

/** Tells what concerns one's notebooks by JupyterLab's own notifications. */
export const notifications: JupyterFrontEndPlugin<void> = {
  id: 'genv-jupyter:notifications',
  description: 'Tells of caps, idle GPUs, leases, and what others ask for.',
  autoStart: true,
  requires: [IGpu],
  activate: (_, gpu: IGpu): void => {
    const { store, actions, settings, trans } = gpu;
    const act: Act = (notice, action) => {
      const id = notice.environment;
      if (!id) {
        return;
      }
      switch (action) {
        case 'keep':
          return void actions.patch(id, { keep: true });
        case 'extend':
          return void actions.patch(id, { duration: AN_HOUR });
        case 'release_later':
          return void actions.releaseIn(id, HALF_AN_HOUR);
        case 'release':
          return void actions.release(id);
        case 'restart':
          return void actions.restart(id);
      }
    };
    const notices = new Notices(Notification, act, trans);
    const look = () =>
      notices.look(settings.choices.notifications ? store.state.notices : []);
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
