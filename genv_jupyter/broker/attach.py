"""Giving: from a request to grants, in two transactions with the fence between them.

``reserved`` rows count from the first transaction on, beside the old grants; the second makes them
``granted`` and lets the old ones go. A crash between the two leaves reservations that the next
start drops, and the old grants as they were.

The fence may be programs of some seconds (MPS), for which nobody else must wait: then the second
transaction finds what has changed meanwhile, and the attempt is ``Overtaken`` if that was its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from genv_jupyter.broker import failpoints, leases, mps, servers
from genv_jupyter.broker.books import Change, replaced, wanted
from genv_jupyter.broker.choosing import chosen
from genv_jupyter.broker.core import Core
from genv_jupyter.broker.release import (
    FRESH,
    check_leaving,
    cuda_after,
    let_go,
    reason_for,
    record_left,
)
from genv_jupyter.broker.reservations import Reserved, reserve, row_of, stands, undo
from genv_jupyter.demand import Demand, demand_of
from genv_jupyter.errors import CudaInitialized, NoCapacity
from genv_jupyter.events import Want
from genv_jupyter.isolation import processes
from genv_jupyter.ledger.rows import EnvironmentRow, GrantRow
from genv_jupyter.model import Applied, Cuda, Request
from genv_jupyter.placement import Placed, satisfied
from genv_jupyter.sharing import Sharing
from genv_jupyter.slots import Slot


class Attempt(Struct, kw_only=True):
    """One attach on its way.

    ``by_process`` says that the process itself asks, and will apply what it gets. ``kept`` are the
    rows that have been reserved or have grown. ``expires`` is when the lease ends that was asked
    for.
    """

    row: EnvironmentRow
    request: Request
    demand: Demand
    cuda: Cuda
    restart: bool
    by_process: bool
    placed: tuple[Placed, ...] = ()
    sharing: Sharing = Sharing(False)
    reserved: list[Reserved] = []
    expires: float | None = None
    served: bool = False

    @property
    def running(self) -> bool:
        """Whether CUDA lives in the process, and will go on to."""
        return self.cuda == "initialized" and not self.restart


class Overtaken(Exception):
    """While the fence was prepared what it was for has changed; all is as if never asked."""


def begin(
    core: Core,
    row: EnvironmentRow,
    request: Request,
    *,
    cuda: Cuda = "unknown",
    restart: bool = False,
    by_process: bool = False,
    served: bool = False,
) -> Attempt | None:
    """Reserve what an environment asks for; ``None`` where it has just that already.

    What is kept for those who wait is not given, but to them (``served``).

    Raises
    ------
    GpuError
        The request was refused; nothing has changed.
    """
    attempt = Attempt(
        row=row,
        request=request,
        demand=demand_of(request),
        cuda=cuda_after(row, cuda),
        restart=restart,
        by_process=by_process,
        served=served,
    )
    servers.check_kind(row)
    books = core.books
    core.refresh(FRESH)
    slots = servers.slots_for(core, row)
    held = [g for g in books.grants_of(row.id) if g.state == "granted"]
    attempt.expires = leases.end_of(core, attempt.demand, row.owner)
    has = satisfied({g.device: wanted(g) for g in held}, attempt.demand, slots)
    if has and mps.same(attempt.demand, held):
        attempt.expires = leases.end_of(core, attempt.demand, row.owner, row)
        _renew(core, attempt)
        return None
    check_leaving(core, row)
    core.quotas.admit(row, attempt.demand)
    attempt.placed = _placed(core, attempt, slots)
    core.quotas.confirm(row, attempt.placed)
    attempt.sharing = mps.plan(core, row, attempt.demand, attempt.placed, running=attempt.running)
    _check_time(core, attempt)
    failpoints.reach("before_reserve")
    attempt.reserved = reserve(core, row, attempt.placed)
    failpoints.reach("after_reserve")
    return attempt


def finish(core: Core, attempt: Attempt) -> EnvironmentRow:
    """Make what was reserved grants, after the fence.

    Raises
    ------
    Overtaken
        What was reserved is not there any more, or its environment has gone.
    GpuError
        Something else has changed, and it is refused now. In each case the old grants stay.
    """
    try:
        failpoints.reach("after_prepare")
        _catch_up(core, attempt)
        _confirm(core, attempt)
    except BaseException:
        give_up(core, attempt)
        raise
    failpoints.reach("after_confirm")
    return core.books.environments[attempt.row.id]


def give_up(core: Core, attempt: Attempt) -> None:
    """Take back what was reserved."""
    core.loose_ends = True  # should undoing fail as well, the housekeeper does it later
    undo(core, attempt.reserved)
    core.loose_ends = False


def _catch_up(core: Core, attempt: Attempt) -> None:
    """Take in what has happened to the environment since its devices were reserved."""
    books = core.books
    row = books.environments.get(attempt.row.id)
    if row is None or not all(stands(core, part.now) for part in attempt.reserved):
        raise Overtaken
    attempt.row, attempt.cuda = row, cuda_after(row, attempt.cuda)
    check_leaving(core, row)
    _check_time(core, attempt)


def _placed(core: Core, attempt: Attempt, slots: Sequence[Slot]) -> tuple[Placed, ...]:
    """Choose devices, or refuse with who holds them, and write that down."""
    try:
        return chosen(core, attempt.row, attempt.demand, slots)
    except NoCapacity as refused:
        core.record("AttachRefused", attempt.row, reason=refused.message)
        raise


def _renew(core: Core, attempt: Attempt) -> None:
    """Answer a request that the present grants satisfy: only name and lease may change."""
    row = attempt.row
    ticket = core.books.tickets.get(row.id)
    new = msgspec.structs.replace(row, name=attempt.request.name or row.name)
    if attempt.expires != row.expires:
        new = msgspec.structs.replace(
            new, request=_written(attempt.request), expires=attempt.expires
        )
    if new != row or ticket is not None:
        with core.books.change() as change:
            change.put_environment(new)
            if ticket is not None:  # it has what it asks for now
                change.drop_ticket(ticket)


def _written(request: Request) -> str:
    """Return a request as it is kept once it is met: there is nothing to wait for."""
    return msgspec.json.encode(msgspec.structs.replace(request, wait=None)).decode()


def _check_time(core: Core, attempt: Attempt) -> None:
    """Refuse what would come too late: CUDA has read its variables, and they would change."""
    if not attempt.running:
        return
    placed = attempt.placed
    started = {
        grant.device: grant.mps
        for grant in core.books.grants_of(attempt.row.id)
        if grant.applied == "live" or grant.state == "draining"
    }
    if started == {part.device: attempt.sharing.mps for part in placed}:
        return
    same = started.keys() == {part.device for part in placed}
    what = "kernel" if attempt.row.kind == "kernel" else "process"
    raise CudaInitialized(
        f"CUDA is already initialised in this {what}, so it would not see a change of "
        f"{'its MPS set-up' if same else 'devices'}. There is room for your request.",
        hint="Restart with it: `%gpu attach … --restart`, or the sidebar's restart button. "
        "What you hold now stays yours."
        if attempt.row.server is not None
        else "Restart it by hand, and attach before anything uses CUDA.",
        details={"devices": [part.device for part in placed]},
    )


def _confirm(core: Core, attempt: Attempt) -> None:
    """Make the reservations grants and let the old ones go (transaction 2)."""
    books, row = core.books, attempt.row
    parts = {part.device: part for part in attempt.placed}
    fresh = {part.now.device for part in attempt.reserved if part.before is None}
    had = any(it.device not in fresh for it in books.grants_of(row.id) if it.state == "granted")
    applied = _applied_now(attempt)
    if books.grants[row.id].keys() - parts.keys():
        core.refresh()
    row = msgspec.structs.replace(row, cuda=attempt.cuda)
    new = msgspec.structs.replace(
        row,
        request=_written(attempt.request),
        name=attempt.request.name or row.name,
        revision=row.revision + 1,
        expires=leases.end_of(core, attempt.demand, row.owner, None if fresh else row),
    )
    left = [grant for grant in books.grants_of(row.id) if grant.device not in parts]
    with books.change() as change:
        for grant in list(books.grants_of(row.id)):
            part = parts.get(grant.device)
            if part is not None:
                kept = None if grant.device in fresh else grant
                change.change_grant(grant, _granted(attempt, grant, part, applied, kept))
        # Hidden first, freed afterwards: until it is seen with the new devices it has the old.
        draining = [grant for grant in left if not let_go(core, change, row, grant)]
        new = msgspec.structs.replace(new, reason=reason_for(draining, row.cuda))
        change.put_environment(new)
        _settle_ticket(core, change, attempt, had=had)
        failpoints.reach("inside_confirm")
    for part in attempt.placed:
        core.record("GrantAdded", row, device=part.device, memory=part.memory, compute=part.compute)
    record_left(core, row, left, draining)
    if applied == "pending" and not attempt.by_process and row.server:
        books.want(row.server, Want(kernel=row.id, action="apply"))


def _settle_ticket(core: Core, change: Change, attempt: Attempt, *, had: bool) -> None:
    """End a place in the queue: what it was for is there, or something else was asked for.

    What comes by the queue to one that had nothing waits for somebody to take it up.
    """
    ticket = core.books.tickets.get(attempt.row.id)
    if ticket is None:
        return
    if attempt.served and not had:
        until = core.steady() + core.line.claim
        change.put_ticket(msgspec.structs.replace(ticket, state="granted", until=until))
    else:
        change.drop_ticket(ticket)


def _applied_now(attempt: Attempt) -> Applied:
    """Say what has yet to happen before the process sees the new devices."""
    row = attempt.row
    if attempt.restart or row.pid is None or not processes.alive(row.pid, row.start):
        return "at_restart"
    if attempt.by_process or row.server:
        return "pending"
    return "unknown"


def _granted(
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
    sharing, processes = attempt.sharing, attempt.demand.processes
    # What was draining may be hidden already; and of another daemon it knows nothing yet.
    same = kept is not None and kept.state == "granted" and kept.mps == sharing.mps
    seen = kept is not None and kept.applied == "live" and (stuck or same)
    started = (kept.started or kept.cap) if kept is not None and stuck and kept.mps else None
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
        mps=sharing.mps,
        processes=processes,
        without=sharing.without,
        started=None if started == part.memory // processes else started,
    )


def dry_run(core: Core, row: EnvironmentRow | None, owner: str, request: Request) -> list[GrantRow]:
    """Return the rows that a request would get now.

    Raises
    ------
    GpuError
        The refusal that the request would meet.
    """
    demand = demand_of(request)
    core.refresh(FRESH)
    slots = servers.slots_for(core, row, owner)
    asker = row or EnvironmentRow.nobody(owner)
    core.quotas.admit(asker, demand)
    core.quotas.lease(asker.owner, demand.duration)
    placed = chosen(core, asker, demand, slots)
    core.quotas.confirm(asker, placed)
    sharing = mps.plan(core, asker, demand, placed, running=asker.cuda == "initialized")
    return [
        replaced(
            row_of(0, asker, part, core.clock()),
            mps=sharing.mps,
            processes=demand.processes,
            without=sharing.without,
        )
        for part in placed
    ]
