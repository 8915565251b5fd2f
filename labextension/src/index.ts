import { commands } from './plugins/commands';
import { gpu } from './plugins/gpu';
import { history } from './plugins/history';
import { launcher } from './plugins/launcher';
import { metadata } from './plugins/metadata';
import { notifications } from './plugins/notifications';
import { restarts } from './plugins/restarts';
import { running } from './plugins/running';
import { sidebar } from './plugins/sidebar';
import { statusbar } from './plugins/statusbar';
import { toolbar } from './plugins/toolbar';

export { IGpu } from './tokens';
export default [
  gpu,
  sidebar,
  toolbar,
  statusbar,
  commands,
  restarts,
  notifications,
  history,
  launcher,
  running,
  metadata
];
