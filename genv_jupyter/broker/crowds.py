"""More processes of one environment on a shared device than its grant was made for.

A cap counts for each process, under MPS and in what frameworks are told, so that together they may
use several times what was granted. What they use together is watched against the grant
(``rules.cap``); that there are more of them is told as soon as it is seen.
"""

from __future__ import annotations

from genv_jupyter.broker.core import Core
from genv_jupyter.ledger.rows import GrantRow

HINT = "`%gpu attach --processes N` divides the share among N processes."


def sentence(core: Core, grant: GrantRow) -> str | None:
    """Say that more processes use a device than a shared grant was made for, where that is so."""
    usage = core.usage.get(grant.device)
    if usage is None or grant.exclusive or grant.state != "granted":
        return None
    count = len(usage.own.get(grant.environment, ()))
    if count <= grant.processes:
        return None
    among = "one process" if grant.processes == 1 else f"{grant.processes} processes"
    label = core.books.slots[grant.device].label
    return (
        f"{count} processes of it use {label}, and its share is made for {among}: the cap counts "
        f"for each. Ask for it with processes={count}."
    )


class Crowds:
    """Tells owners of crowds, and of no more than that which is there."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._told: set[str] = set()

    def round(self) -> None:
        """Look at every environment that is on a device; called with the lock held."""
        core = self.core
        seen = {name for usage in core.usage.values() for name in usage.own}
        for environment in seen | self._told:
            row = core.books.environments.get(environment)
            if row is None:
                self._told.discard(environment)
                continue
            grants = core.books.grants_of(environment)
            said = [it for grant in grants if (it := sentence(core, grant)) is not None]
            # That its work is lost is told in the same place, and weighs more.
            if said and not any(core.mps.lost(core, grant) for grant in grants):
                self._told.add(environment)
                core.board.tell(row, "mps", " ".join(said), hint=HINT, topic="crowd")
            elif environment in self._told:
                self._told.discard(environment)
                if not said:
                    core.board.withdraw(row, "mps")
