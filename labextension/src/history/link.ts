import type { CommandRegistry } from '@lumino/commands';
import { CommandIDs } from '../tokens';

/** Open the history that a click inside the panel asks for. */
export function followLink(event: Event, commands: CommandRegistry): void {
  const link = (event.target as Element | null)?.closest<HTMLElement>(
    '[data-history]'
  );
  const { history, id } = link?.dataset ?? {};
  if (history && id) {
    void commands.execute(CommandIDs.history, { [history]: id });
  }
}
