import {
  ILabShell,
  ILayoutRestorer,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import {
  ICommandPalette,
  IThemeManager,
  MainAreaWidget,
  WidgetTracker
} from '@jupyterlab/apputils';
import { SplitPanel, type Widget } from '@lumino/widgets';
import type { Subject } from '../history/data';
import { HistoryModel } from '../history/model';
import { fetchHistory } from '../history/source';
import { gpuIcon } from '../icons';
import { CommandIDs, IGpu } from '../tokens';
import { HistoryWidget } from '../widgets/history';

/** What a notebook, and what is below it, get of the page. */
const SHARES = [55, 45];
const ARGS = {
  args: {
    type: 'object',
    properties: {
      device: { type: 'string', description: 'UUID of a device.' },
      environment: { type: 'string', description: 'Id of an environment.' }
    }
  }
} as const;

/** Tabs with the past of devices and environments, and of what one has had oneself. */
export const history: JupyterFrontEndPlugin<void> = {
  id: 'genv-jupyter:history',
  description: 'Charts of what was used, by device and by environment.',
  autoStart: true,
  requires: [IGpu],
  optional: [ILabShell, ILayoutRestorer, IThemeManager, ICommandPalette],
  activate: (
    app: JupyterFrontEnd,
    gpu: IGpu,
    labShell: ILabShell | null,
    restorer: ILayoutRestorer | null,
    themes: IThemeManager | null,
    palette: ICommandPalette | null
  ): void => {
    const { trans, store, client, settings } = gpu;
    const tracker = new WidgetTracker<MainAreaWidget<HistoryWidget>>({
      namespace: 'genv-jupyter-history'
    });
    const subjects = new Map<string, Subject>();
    themes?.themeChanged.connect(() =>
      tracker.forEach(({ content }) => content.restyle())
    );
    const open = (subject: Subject): MainAreaWidget<HistoryWidget> => {
      const id = `genv-jupyter-history-${keyOf(subject)}`;
      const there = tracker.find(widget => widget.id === id);
      if (there) {
        return there;
      }
      const model = new HistoryModel(
        subject,
        (whose, span) =>
          fetchHistory(client, store.state.devices, whose, span, trans),
        () => settings.choices.refresh
      );
      const widget = new MainAreaWidget({
        content: new HistoryWidget(gpu, model)
      });
      widget.id = id;
      widget.title.icon = gpuIcon;
      widget.title.label = trans.__('GPU history');
      widget.title.closable = true;
      subjects.set(id, subject);
      void tracker.add(widget);
      return widget;
    };
    app.commands.addCommand(CommandIDs.history, {
      label: args =>
        args['device'] || args['environment']
          ? trans.__('Show History')
          : trans.__('My GPU-Hours'),
      caption: trans.__('Memory, utilization and temperature over time'),
      icon: gpuIcon,
      describedBy: ARGS,
      isVisible: () => store.state.connection.kind !== 'absent',
      execute: args => {
        const widget = open(subjectOf(args));
        if (!widget.isAttached) {
          const other = tracker.find(
            ({ id, isAttached }) => isAttached && id !== widget.id
          );
          // Notebook 7 has room for one thing in the middle: the notebook.
          app.shell.add(widget, labShell ? 'main' : 'down', {
            mode: other ? 'tab-after' : 'split-bottom',
            ref: other?.id ?? labShell?.currentWidget?.id
          });
        }
        app.shell.activateById(widget.id);
        if (!labShell) {
          requestAnimationFrame(() => makeRoom(widget));
        }
      }
    });
    void restorer?.restore(tracker, {
      command: CommandIDs.history,
      args: widget => argsOf(subjects.get(widget.id)),
      name: widget => widget.id
    });
    palette?.addItem({
      command: CommandIDs.history,
      category: trans.__('GPU')
    });
  }
};

/** The area below a notebook is as low as it may be: give it its share of the page. */
function makeRoom(widget: Widget): void {
  let around = widget.parent;
  while (around && !(around instanceof SplitPanel)) {
    around = around.parent;
  }
  if (around?.orientation === 'vertical') {
    around.setRelativeSizes(SHARES);
  }
}

function keyOf(subject: Subject): string {
  return subject.kind === 'mine' ? 'mine' : `${subject.kind}-${subject.id}`;
}

function subjectOf(args: Record<string, unknown>): Subject {
  const { device, environment } = args;
  if (typeof device === 'string' && device) {
    return { kind: 'device', id: device };
  }
  if (typeof environment === 'string' && environment) {
    return { kind: 'environment', id: environment };
  }
  return { kind: 'mine' };
}

function argsOf(subject: Subject | undefined): Record<string, string> {
  return !subject || subject.kind === 'mine'
    ? {}
    : { [subject.kind]: subject.id };
}
