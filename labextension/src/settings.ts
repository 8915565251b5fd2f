import type { ISettingRegistry } from '@jupyterlab/settingregistry';
import type { IDisposable } from '@lumino/disposable';
import { Signal, type ISignal } from '@lumino/signaling';

/** The sections of the panel that can be left out. */
export const SECTIONS = [
  'notebook',
  'devices',
  'environments',
  'queue',
  'quota',
  'told',
  'leftovers'
] as const;

export type SectionName = (typeof SECTIONS)[number];

/** What a user can choose. */
export interface IChoices {
  readonly position: 'right' | 'left';
  readonly units: 'GiB' | 'GB';
  readonly colours: 'theme' | 'safe';
  /** Sections that are not shown. */
  readonly hidden: ReadonlySet<string>;
  /** Seconds. */
  readonly refresh: number;
  readonly notifications: boolean;
  /** Whether notebooks remember what they were given, and ask for it when opened again. */
  readonly remember: boolean;
  /** What the launcher's card gives a new notebook; null: there is no card. */
  readonly launcher: string | null;
}

export const USUAL: IChoices = {
  position: 'right',
  units: 'GiB',
  colours: 'theme',
  hidden: new Set(),
  refresh: 5,
  notifications: true,
  remember: false,
  launcher: '0.5'
};

const SHORTEST = 1;
const LONGEST = 300;

/** The user's choices, as JupyterLab's settings have them at present. */
export class Settings implements IDisposable {
  get changed(): ISignal<Settings, void> {
    return this._changed;
  }

  get choices(): IChoices {
    return this._choices;
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  /** Follow the registry; where there is none, or it does not know us, all is as usual. */
  async follow(
    registry: ISettingRegistry | null,
    plugin: string
  ): Promise<void> {
    const settings = await registry?.load(plugin).catch(() => null);
    if (settings && !this._isDisposed) {
      settings.changed.connect(this.take, this);
      this.take(settings);
    }
  }

  dispose(): void {
    if (!this._isDisposed) {
      this._isDisposed = true;
      Signal.clearData(this);
    }
  }

  private take(settings: ISettingRegistry.ISettings): void {
    this._choices = choicesOf(settings.composite);
    this._changed.emit();
  }

  private _choices = USUAL;
  private _isDisposed = false;
  private _changed = new Signal<this, void>(this);
}

/** Read what was chosen; what is not there, or makes no sense, is as usual. */
export function choicesOf(composite: Record<string, unknown>): IChoices {
  const { position, units, colours, sections, refresh } = composite;
  const shown = (sections ?? {}) as Record<string, unknown>;
  const seconds = Number(refresh ?? USUAL.refresh);
  const launcher = composite['launcher'] ?? USUAL.launcher;
  return {
    position: position === 'left' ? 'left' : 'right',
    units: units === 'GB' ? 'GB' : 'GiB',
    colours: colours === 'safe' ? 'safe' : 'theme',
    hidden: new Set(SECTIONS.filter(name => shown[name] === false)),
    refresh: Number.isFinite(seconds)
      ? Math.min(LONGEST, Math.max(SHORTEST, seconds))
      : USUAL.refresh,
    notifications: composite['notifications'] !== false,
    remember: composite['remember'] === true,
    launcher: typeof launcher === 'string' && launcher.trim() ? launcher : null
  };
}
