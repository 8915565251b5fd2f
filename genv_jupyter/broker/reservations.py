"""Reservations: what an attach counts beside the old grants until it has all it needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from genv_jupyter.broker import failpoints
from genv_jupyter.broker.books import replaced
from genv_jupyter.broker.core import Core
from genv_jupyter.ledger.rows import EnvironmentRow, GrantRow
from genv_jupyter.placement import Placed


class Reserved(NamedTuple):
    """A row as transaction 1 left it, and what it was before (``None``: not there)."""

    before: GrantRow | None
    now: GrantRow


def reserve(core: Core, row: EnvironmentRow, placed: Sequence[Placed]) -> list[Reserved]:
    """Count the new grants beside the old ones (transaction 1); return what was changed."""
    books = core.books
    mine = books.grants.get(row.id, {})
    now = core.clock()
    reserved: list[Reserved] = []
    with books.change() as change:
        for part in placed:
            old = mine.get(part.device)
            if old is None:
                grant = row_of(books.next_grant(), row, part, now)
                change.add_grant(grant)
            else:
                # On its own device a grant grows first and shrinks only at the end.
                grant = replaced(
                    old,
                    counted_memory=max(old.counted_memory, part.memory),
                    counted_compute=max(old.counted_compute, part.compute or 0),
                    counted_exclusive=old.counted_exclusive or part.exclusive,
                )
                change.change_grant(old, grant)
            reserved.append(Reserved(old, grant))
        failpoints.reach("inside_reserve")
    return reserved


def stands(core: Core, reserved: GrantRow) -> bool:
    """Say whether a reservation still counts for all that it was made for."""
    now = core.books.on_device.get(reserved.device, {}).get(reserved.id)
    return (
        now is not None
        and (now.environment, now.state) == (reserved.environment, reserved.state)
        and now.counted_memory >= reserved.counted_memory
        and now.counted_compute >= reserved.counted_compute
        and now.counted_exclusive >= reserved.counted_exclusive
    )


def undo(core: Core, reserved: Sequence[Reserved]) -> None:
    """Take back what is left of reservations; nobody else is given less than they have now."""
    on_device = core.books.on_device
    with core.books.change() as change:
        for before, reserved_now in reserved:
            now = on_device.get(reserved_now.device, {}).get(reserved_now.id)
            if now is None:
                continue
            if before is None:
                change.drop_grant(now)
            elif now is reserved_now:
                change.change_grant(now, before)
            else:
                change.change_grant(now, _shrunk(now, before))


def _shrunk(now: GrantRow, before: GrantRow) -> GrantRow:
    """Return a grant that has changed since it grew, as it is without the growth."""
    return replaced(
        now,
        counted_memory=min(now.counted_memory, before.counted_memory),
        counted_compute=min(now.counted_compute, before.counted_compute),
        counted_exclusive=now.counted_exclusive and before.counted_exclusive,
    )


def row_of(number: int, row: EnvironmentRow, part: Placed, now: float) -> GrantRow:
    """Return the reservation of what was placed."""
    return GrantRow(
        id=number,
        environment=row.id,
        device=part.device,
        owner=row.owner,
        memory=part.memory,
        compute=part.compute,
        exclusive=part.exclusive,
        counted_memory=part.memory,
        counted_compute=part.compute or 0,
        counted_exclusive=part.exclusive,
        state="reserved",
        applied=None,
        since=now,
    )
