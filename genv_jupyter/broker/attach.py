"""Giving: from a request to grants, in two transactions with the fence between them.

``reserved`` rows count from the first transaction on, beside the old grants; the second makes them
``granted`` and lets the old ones go. A crash between the two leaves reservations that the next
start drops, and the old grants as they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from msgspec import Struct

from genv_jupyter.broker import failpoints
from genv_jupyter.broker.books import replaced, wanted
from genv_jupyter.broker.core import Core
from genv_jupyter.broker.refusals import explain
from genv_jupyter.broker.release import (
    FRESH,
    check_leaving,
    cuda_after,
    end_if_gone,
    let_go,
    reason_for,
    record_left,
)
from genv_jupyter.demand import Demand, demand_of
from genv_jupyter.errors import BadRequest, CudaInitialized, NoCapacity
from genv_jupyter.isolation import processes
from genv_jupyter.ledger.rows import EnvironmentRow, GrantRow
from genv_jupyter.model import Applied, Cuda, Request, Want
from genv_jupyter.placement import Placed, place, satisfied
from genv_jupyter.slots import Slot


class Attempt(Struct, kw_only=True):
    """One attach on its way.

    ``by_process`` says that the process itself asks, and will apply what it gets.
    """

    row: EnvironmentRow
    request: Request
    demand: Demand
    cuda: Cuda
    restart: bool
    by_process: bool


def attach(
    core: Core,
    row: EnvironmentRow,
    request: Request,
    *,
    cuda: Cuda = "unknown",
    restart: bool = False,
    by_process: bool = False,
) -> EnvironmentRow:
    """Give an environment what it asks for, instead of what it has.

    Raises
    ------
    GpuError
        The request was refused; nothing has changed.
    """
    attempt = Attempt(
        row=row,
        request=request,
        demand=checked(request),
        cuda=cuda_after(row, cuda),
        restart=restart,
        by_process=by_process,
    )
    books = core.books
    core.refresh(FRESH)
    slots = core.slots_of(core.pool_of(row))
    held = {g.device: wanted(g) for g in books.grants_of(row.id) if g.state == "granted"}
    if satisfied(held, attempt.demand, slots):
        return _renamed(core, attempt)
    check_leaving(core, row)
    placed = _placed(core, attempt, slots)
    _check_time(core, attempt, placed)
    failpoints.reach("before_reserve")
    reserved = _reserve(core, attempt, placed)
    failpoints.reach("after_reserve")
    try:
        # The fence stands here: with nothing but variables there is nothing to prepare that could
        # fail, and what could (MPS, cgroups) must not run inside a transaction.
        failpoints.reach("after_prepare")
        _confirm(core, attempt, placed, reserved)
    except BaseException:
        core.loose_ends = True  # should undoing fail as well, the housekeeper does it later
        _undo(core, reserved)
        core.loose_ends = False
        raise
    failpoints.reach("after_confirm")
    return books.environments[row.id]


def _placed(core: Core, attempt: Attempt, slots: Sequence[Slot]) -> tuple[Placed, ...]:
    """Choose devices, or refuse with who holds them."""
    row = attempt.row
    try:
        return _choose(core, attempt.demand, row, slots)
    except NoCapacity as refusal:
        told = explain(core, refusal, slots, row)
        core.record("AttachRefused", row, reason=told.message)
        raise told from None


def _choose(
    core: Core, demand: Demand, row: EnvironmentRow, slots: Sequence[Slot]
) -> tuple[Placed, ...]:
    """Choose devices; nothing is refused because of somebody who has ended a moment ago."""
    own = core.books.own(row.id)
    try:
        return place(slots, demand, row.owner, core.policy, own)
    except NoCapacity:
        holders = [core.books.environments[held] for held in list(core.books.grants)]
        if not sum(end_if_gone(core, holder) for holder in holders):
            raise
        core.refresh()
        return place(slots, demand, row.owner, core.policy, own)


def checked(request: Request) -> Demand:
    """Check a request, and that this broker can do what it asks.

    Raises
    ------
    BadRequest, OutOfRange
        As ``demand_of``; or it asks for something that is not there yet.
    """
    demand = demand_of(request)
    for asked, what in (
        (demand.wait is not None, "waiting in a queue"),
        (demand.duration is not None, "a limited duration"),
        (demand.mps == "on", "MPS"),
    ):
        if asked:
            raise BadRequest(
                f"This version does not offer {what}.", hint="Leave it out of the request."
            )
    return demand


def _renamed(core: Core, attempt: Attempt) -> EnvironmentRow:
    """Answer a request that the present grants satisfy: only the name may change."""
    row, name = attempt.row, attempt.request.name
    if name is None or name == row.name:
        return row
    new = msgspec.structs.replace(row, name=name)
    with core.books.change() as change:
        change.put_environment(new)
    return new


def _check_time(core: Core, attempt: Attempt, placed: Sequence[Placed]) -> None:
    """Refuse what would come too late: CUDA has read its variables, and they would change."""
    if attempt.cuda != "initialized" or attempt.restart:
        return
    started = {
        grant.device
        for grant in core.books.grants_of(attempt.row.id)
        if grant.applied == "live" or grant.state == "draining"
    }
    if started == {part.device for part in placed}:
        return
    what = "kernel" if attempt.row.kind == "kernel" else "process"
    raise CudaInitialized(
        f"CUDA is already initialised in this {what}, so it would not see a change of devices. "
        "There is room for your request.",
        hint="Restart with it: `%gpu attach … --restart`, or the sidebar's restart button. "
        "What you hold now stays yours."
        if attempt.row.server is not None
        else "Restart it by hand, and attach before anything uses CUDA.",
        details={"devices": [part.device for part in placed]},
    )


class Reserved(NamedTuple):
    """A row as transaction 1 left it, and what it was before (``None``: not there)."""

    before: GrantRow | None
    now: GrantRow


def _reserve(core: Core, attempt: Attempt, placed: Sequence[Placed]) -> list[Reserved]:
    """Count the new grants beside the old ones (transaction 1); return what was changed."""
    books, row = core.books, attempt.row
    mine = books.grants.get(row.id, {})
    now = core.clock()
    reserved: list[Reserved] = []
    with books.change() as change:
        for part in placed:
            old = mine.get(part.device)
            if old is None:
                grant = _row(books.next_grant(), row, part, now)
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


def _confirm(
    core: Core, attempt: Attempt, placed: Sequence[Placed], reserved: Sequence[Reserved]
) -> None:
    """Make the reservations grants and let the old ones go (transaction 2)."""
    books, row = core.books, attempt.row
    parts = {part.device: part for part in placed}
    fresh = {part.now.device for part in reserved if part.before is None}
    applied = _applied_now(attempt)
    if books.grants[row.id].keys() - parts.keys():
        core.refresh()
    row = msgspec.structs.replace(row, cuda=attempt.cuda)
    new = msgspec.structs.replace(
        row,
        request=msgspec.json.encode(attempt.request).decode(),
        name=attempt.request.name or row.name,
        revision=row.revision + 1,
    )
    left = [grant for grant in books.grants_of(row.id) if grant.device not in parts]
    with books.change() as change:
        for grant in list(books.grants_of(row.id)):
            part = parts.get(grant.device)
            if part is not None:
                kept = None if grant.device in fresh else grant
                change.change_grant(grant, _granted(core, attempt, grant, part, applied, kept))
        # Hidden first, freed afterwards: until it is seen with the new devices it has the old.
        draining = [grant for grant in left if not let_go(core, change, row, grant)]
        new = msgspec.structs.replace(new, reason=reason_for(draining, row.cuda))
        change.put_environment(new)
        failpoints.reach("inside_confirm")
    for part in placed:
        core.record("GrantAdded", row, device=part.device, memory=part.memory, compute=part.compute)
    record_left(core, row, left, draining)
    if applied == "pending" and not attempt.by_process and row.server:
        books.want(row.server, Want(kernel=row.id, action="apply"))


def _applied_now(attempt: Attempt) -> Applied:
    """Say what has yet to happen before the process sees the new devices."""
    row = attempt.row
    if attempt.restart or row.pid is None or not processes.alive(row.pid, row.start):
        return "at_restart"
    if attempt.by_process or row.server:
        return "pending"
    return "unknown"


def _granted(
    core: Core,
    attempt: Attempt,
    grant: GrantRow,
    part: Placed,
    applied: Applied,
    kept: GrantRow | None,
) -> GrantRow:
    """Turn a reserved, resized or draining row into the grant.

    Where CUDA lives in the process it keeps the cap it started with until its restart: the
    larger of both counts on.
    """
    stuck = kept is not None and attempt.cuda == "initialized"
    # What was draining may be hidden already.
    seen = kept is not None and kept.applied == "live" and (stuck or kept.state == "granted")
    return replaced(
        grant,
        memory=part.memory,
        compute=part.compute,
        exclusive=part.exclusive,
        counted_memory=grant.counted_memory if stuck else part.memory,
        counted_compute=grant.counted_compute if stuck else part.compute or 0,
        counted_exclusive=grant.counted_exclusive if stuck else part.exclusive,
        state="granted",
        applied="live" if seen else applied,
        since=grant.since,
    )


def _undo(core: Core, reserved: Sequence[Reserved]) -> None:
    """Take reservations back after the fence failed."""
    with core.books.change() as change:
        for before, now in reserved:
            if before is None:
                change.drop_grant(now)
            else:
                change.change_grant(now, before)


def _row(number: int, row: EnvironmentRow, part: Placed, now: float) -> GrantRow:
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


def dry_run(core: Core, row: EnvironmentRow | None, owner: str, request: Request) -> list[GrantRow]:
    """Return the rows that a request would get now.

    Raises
    ------
    GpuError
        The refusal that the request would meet.
    """
    demand = checked(request)
    core.refresh(FRESH)
    slots = core.slots_of(core.pool_of(row))
    asker = row or EnvironmentRow.nobody(owner)
    try:
        placed = _choose(core, demand, asker, slots)
    except NoCapacity as refusal:
        raise explain(core, refusal, slots, row) from None
    return [_row(0, asker, part, core.clock()) for part in placed]
