"""Reservations for Jupyter servers: held while the server lives, and drawn on by its kernels.

One is ``reserved`` (``reserving``) until the server registers with its id, or until a deadline.
Kernels of the server take what they ask for from it first (``rests`` keeps what is left of it), and
what is more than it holds from everybody's, as usual.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING

import msgspec

from genv_jupyter.broker.books import Change, counted
from genv_jupyter.broker.guarantees import Guaranteed
from genv_jupyter.broker.rests import entitled, granted, rest_of
from genv_jupyter.demand import Demand
from genv_jupyter.errors import Conflict, GpuError
from genv_jupyter.isolation import processes
from genv_jupyter.ledger.rows import EnvironmentRow, GrantRow, ServerRow
from genv_jupyter.placement import Placed, place
from genv_jupyter.slots import Own, Slot

if TYPE_CHECKING:
    from genv_jupyter.broker.core import Core

ITS_OWN = "This is kept for the kernels of a Jupyter server: attach in one of them."


# -- its life -------------------------------------------------------------------------------------


def bind(core: Core, change: Change, server: ServerRow, reservation: str | None) -> None:
    """Have a server that registers hold its reservation; somebody else's id leads nowhere."""
    books = core.books
    row = None if reservation is None else books.environments.get(reservation)
    if row is None or row.kind != "server" or row.owner != server.owner:
        return
    holder = None if row.server is None else books.servers.get(row.server)
    lives = holder is not None and processes.alive(holder.pid, holder.start)
    if not lives and server.id not in books.reserved:
        bound = msgspec.structs.replace(row, server=server.id, state="granted", deadline=None)
        change.put_environment(bound)


def end(core: Core, row: EnvironmentRow, reason: str) -> None:
    """End a reservation; what kernels have drawn stays theirs until they end."""
    with core.books.change() as change:
        drop(core, change, row)
    core.record("ReservationEnded", row, reason=reason)


def end_of(core: Core, server: str, reason: str) -> None:
    """End the reservation of a server that is gone, if it has one."""
    found = core.books.reserved.get(server)
    if found is not None:
        end(core, core.books.environments[found], reason)


def look(core: Core, row: EnvironmentRow) -> None:
    """End a reservation whose server never came, or is gone."""
    if row.state == "reserved":
        if row.deadline is not None and core.steady() > row.deadline:
            end(core, row, "its server never came")
    elif row.server not in core.books.servers:
        end(core, row, "its server is gone")


def drop(core: Core, change: Change, row: EnvironmentRow) -> None:
    """Remove a reservation with what is left of it."""
    for grant in list(core.books.grants_of(row.id)):
        change.drop_grant(grant)
    change.drop_environment(row)


def check_kind(row: EnvironmentRow) -> None:
    """Refuse to attach to a reservation itself.

    Raises
    ------
    Conflict
        It is one.
    """
    if row.kind == "server":
        raise Conflict(ITS_OWN, hint="To have another one, stop the server and start it anew.")


# -- drawing on it --------------------------------------------------------------------------------


def slots_for(
    core: Core,
    row: EnvironmentRow | None,
    owner: str | None = None,
    guaranteed: Guaranteed | None = None,
) -> list[Slot]:
    """Return the slots that an environment may use; what is reserved for it is not in its way.

    What is kept for groups is closed to everybody else; ``owner`` says who asks where there is no
    environment yet, and ``guaranteed`` what was added up already.

    Raises
    ------
    NoDriver
        There are none.
    """
    slots = core.slots_of(core.pool_of(row), None if row is None else row.id)
    whose = owner if row is None else row.owner
    if whose is not None:
        slots = (guaranteed or Guaranteed(core)).open_slots(slots, whose)
    rests = _rests(core, row)
    if not rests:
        return slots
    return [_without(slot, rests.get(slot.uuid)) for slot in slots]


def draw(
    core: Core, row: EnvironmentRow, demand: Demand, slots: Sequence[Slot], own: Mapping[str, Own]
) -> tuple[Placed, ...] | None:
    """Choose devices so that all comes out of what is reserved; ``None``: it does not.

    ``slots`` are those of ``slots_for``. Nobody who waits has a claim on what comes from there.
    """
    if row.reservation is None:
        return None
    whole, rests = entitled(core.books.environments.get(row.reservation)), _rests(core, row)
    near = [slot for slot in slots if slot.uuid in rests]
    if not near:
        return None
    try:
        placed = place(near, demand, row.owner, core.policy, own)
    except GpuError:  # it is more than that: everybody's devices may do
        return None
    for part in placed:
        have = own.get(part.device)
        more = part.memory - (have.memory if have is not None else 0)
        alone = whole[part.device].exclusive
        if not alone and (part.exclusive or more > rests[part.device].memory):
            return None
    return placed


def left_after(core: Core, row: EnvironmentRow, placed: Sequence[Placed]) -> list[GrantRow]:
    """Return what would be left of the reservation that an environment draws on, if it had that."""
    books = core.books
    if row.reservation is None or (found := books.environments.get(row.reservation)) is None:
        return []
    if row.kind == "server":
        return []  # it comes in its place
    having = {part.device: Own(part.memory, part.compute, part.exclusive) for part in placed}
    left = []
    for device, part in entitled(found).items():
        taken = [
            counted(grant)
            for grant in books.on_device.get(device, {}).values()
            if grant.environment != row.id
            and books.environments[grant.environment].reservation == found.id
        ]
        if device in having:
            taken.append(having[device])
        rest = rest_of(part, taken, books.slots[device].capacity)
        if rest is not None:
            left.append(granted(0, found, device, rest))
    return left


def _rests(core: Core, row: EnvironmentRow | None) -> Mapping[str, GrantRow]:
    if row is None or row.reservation is None:
        return {}
    return core.books.grants.get(row.reservation, {})


def _without(slot: Slot, rest: GrantRow | None) -> Slot:
    """Return a slot as it would be without a grant on it."""
    if rest is None:
        return slot
    freed = copy(slot)
    freed.compute, freed.owners = dict(slot.compute), dict(slot.owners)
    freed.drop(rest.owner, *counted(rest))
    return freed
