"""Choosing devices, with what is kept for those who wait; and the words of a refusal."""

from __future__ import annotations

from collections.abc import Sequence

from genv_jupyter.broker import servers
from genv_jupyter.broker.core import Core
from genv_jupyter.broker.refusals import explain, kept
from genv_jupyter.broker.release import end_if_gone
from genv_jupyter.demand import Demand
from genv_jupyter.errors import GpuError, NoCapacity
from genv_jupyter.ledger.rows import EnvironmentRow
from genv_jupyter.placement import Placed, place
from genv_jupyter.queueing import Closed, open_to
from genv_jupyter.slots import Slot


class _Kept(Exception):
    """There is room, but it is kept for those who wait."""

    def __init__(self, closed: Closed) -> None:
        super().__init__()
        self.closed = closed


def chosen(
    core: Core, row: EnvironmentRow, demand: Demand, slots: Sequence[Slot]
) -> tuple[Placed, ...]:
    """Choose devices among those of ``servers.slots_for``, or refuse with who holds them.

    Raises
    ------
    NoCapacity
        There is no room, or it is kept for those who wait.
    """
    try:
        return _choose(core, demand, row, slots)
    except (NoCapacity, _Kept) as refusal:
        raise _told(core, refusal, slots, row, demand) from None


def _told(
    core: Core,
    refusal: NoCapacity | _Kept,
    slots: Sequence[Slot],
    row: EnvironmentRow,
    demand: Demand,
) -> NoCapacity:
    if isinstance(refusal, _Kept):
        return kept(core, refusal.closed, slots, row, demand)
    return explain(core, refusal, slots, row, demand)


def _choose(
    core: Core, demand: Demand, row: EnvironmentRow, slots: Sequence[Slot]
) -> tuple[Placed, ...]:
    """Choose devices; nothing is refused because of somebody who has ended a moment ago."""
    own = core.books.own(row.id)
    drawn = servers.draw(core, row, demand, slots, own)
    if drawn is not None:
        return drawn
    try:
        placed = place(slots, demand, row.owner, core.policy, own)
    except NoCapacity:
        # Not the one who asks: it is to hold something, and is looked at afterwards.
        held = [name for name in core.books.grants if name != row.id]
        if not sum(end_if_gone(core, core.books.environments[name]) for name in held):
            raise
        core.refresh()
        own = core.books.own(row.id)
        slots = servers.slots_for(core, row)
        placed = place(slots, demand, row.owner, core.policy, own)
    closed = core.line.closed_to(row, demand)
    if not closed:
        return placed
    try:
        return place(open_to(slots, closed, demand, own), demand, row.owner, core.policy, own)
    except GpuError:  # there is room, and none of it is for this one
        raise _Kept(closed) from None
