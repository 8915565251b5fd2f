import type { IDisposable } from '@lumino/disposable';
import { Signal, type ISignal } from '@lumino/signaling';

/** What is folded away: sections, and the holders of a device, by name. */
export interface IFolds {
  has(name: string): boolean;
  toggle(name: string): void;
}

/** Where it is remembered. */
export interface IMemory {
  fetch(id: string): Promise<unknown>;
  save(id: string, value: string[]): Promise<unknown>;
}

const ID = 'genv-jupyter:folded';

/** Remembers what is folded away, where there is a memory. */
export class Folds implements IFolds, IDisposable {
  constructor(private readonly memory: IMemory | null) {}

  get changed(): ISignal<Folds, void> {
    return this._changed;
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  has(name: string): boolean {
    return this._folded.has(name);
  }

  toggle(name: string): void {
    if (!this._folded.delete(name)) {
      this._folded.add(name);
    }
    this._touched = true;
    this._changed.emit();
    // Without it the panel is as usual at the next visit: nothing that must be told.
    void this.memory?.save(ID, [...this._folded]).catch(() => undefined);
  }

  /** Take up what was remembered, unless something was folded meanwhile. */
  async restore(): Promise<void> {
    // What cannot be read is as if nothing had been folded.
    const names = await this.memory?.fetch(ID).catch(() => null);
    if (Array.isArray(names) && !this._touched && !this._isDisposed) {
      this._folded = new Set(names.filter(name => typeof name === 'string'));
      this._changed.emit();
    }
  }

  dispose(): void {
    if (!this._isDisposed) {
      this._isDisposed = true;
      Signal.clearData(this);
    }
  }

  private _folded = new Set<string>();
  private _isDisposed = false;
  private _touched = false;
  private _changed = new Signal<this, void>(this);
}
