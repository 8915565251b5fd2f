"""What groups are guaranteed: counted from the books, and kept from everybody else."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING

from genv_jupyter.guarantees import Guarantee, keep
from genv_jupyter.quotas import GuaranteeUse
from genv_jupyter.slots import Slot
from genv_jupyter.units import WHOLE

if TYPE_CHECKING:
    from genv_jupyter.broker.core import Core


def guarantees(core: Core) -> list[Guarantee]:
    """Return every guarantee, with what the members of its group hold, what drains included."""
    said = core.quotas.rules.guaranteed()
    if not said:
        return []
    used = dict.fromkeys(said, 0)
    for owner, share in core.quotas.shares().items():
        for group in core.identities.last(owner).groups:
            if group in used:
                used[group] += share
    return [Guarantee(group=it, devices=said[it], used=used[it]) for it in said]


class Guaranteed:
    """What is guaranteed, added up once for all that one decision asks: it looks at every grant.

    It holds for as long as nothing is given or taken, within one hold of the broker's lock.
    """

    def __init__(self, core: Core) -> None:
        self.core = core
        self.found = guarantees(core)
        self._order = _in_order(core) if self.found else []

    def open_slots(self, slots: list[Slot], owner: str) -> list[Slot]:
        """Return slots with those closed that are kept for groups without an owner in them."""
        if not self.found:
            return slots
        groups = self.core.identities.of(owner).groups
        kept = keep(self._order, self.found, groups, self.core.policy)
        return [
            _closed(slot, kept[slot.uuid].words) if slot.uuid in kept else slot for slot in slots
        ]


def of_groups(core: Core, groups: Sequence[str]) -> tuple[GuaranteeUse, ...]:
    """Return what groups are guaranteed and have of it."""
    return tuple(
        GuaranteeUse(group=it.group, devices=it.devices / WHOLE, used=it.used / WHOLE)
        for it in guarantees(core)
        if it.group in groups
    )


def _in_order(core: Core) -> list[Slot]:
    """Return all devices by their index; those without one last."""
    slots = core.books.slots.values()
    return sorted(slots, key=lambda it: (it.index is None, it.index or 0, it.uuid))


def _closed(slot: Slot, why: str) -> Slot:
    found = copy(slot)
    found.closed = why
    return found
