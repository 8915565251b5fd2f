"""Taking back: memory is given away only when it is really free."""

from __future__ import annotations

import time
from collections.abc import Container, Sequence

import msgspec

from genv_jupyter.broker import failpoints, servers
from genv_jupyter.broker.books import Books, Change, as_wanted, counted, replaced, wanted
from genv_jupyter.broker.core import Core
from genv_jupyter.errors import Conflict, UnknownDevice
from genv_jupyter.events import Want
from genv_jupyter.isolation import processes
from genv_jupyter.ledger.rows import EnvironmentRow, GrantRow
from genv_jupyter.model import Cuda
from genv_jupyter.slots import resolve

FRESH = 2.0
"""Seconds for which placement trusts a reading."""
RESTART_TO_FREE = "CUDA still holds the device in this kernel: restart to free it."
LEFT_BEHIND = (
    "It has ended, and processes that it started still use the device: end them to free it."
)
IDLE = "It was taken back, since nothing had run here."
LEASE_OVER = "It was taken back, since its lease is over."
OVER_QUOTA = "It was taken back, since more was held than the quota allows."
SETTLE_AGE = 0.1
"""Seconds for which a reading tells whether a device is left; the housekeeper has just read."""
UNCONFIRMED = (
    "Being watched: the device is free once the kernel says that it has let go of it, or once "
    "nothing of the kernel has used it for some seconds."
)

_OF_DRAINING = (RESTART_TO_FREE, UNCONFIRMED, LEFT_BEHIND, IDLE, LEASE_OVER, OVER_QUOTA)


def cuda_after(row: EnvironmentRow, cuda: Cuda | None) -> Cuda:
    """Return what is known of CUDA in a process, given what somebody has seen in it.

    It is never undone there: who says otherwise looked earlier.
    """
    return row.cuda if row.cuda == "initialized" or cuda in (None, "unknown") else cuda


def unconfirmed(books: Books, row: EnvironmentRow) -> bool:
    """Say whether the process is yet to be seen with what it is to have."""
    open_ = row.confirmed != row.revision and row.cuda != "initialized"
    return any(
        grant.applied == "pending" if grant.state == "granted" else open_
        for grant in books.grants_of(row.id)
    )


def may_let_go(
    core: Core, row: EnvironmentRow, grant: GrantRow, *, hidden: bool | None = None
) -> bool:
    """Say whether a grant can end now: its process cannot be on the device, nor any child.

    ``hidden`` says that the process does not see it, and had no CUDA when it stopped; by default
    what it was seen with tells. Children show only in the driver's list of processes; where there
    is none (``known`` false) the process's own word is all there is.
    """
    if grant.state == "reserved":
        return True
    usage = core.usage.get(grant.device)
    seen = () if usage is None else usage.own.get(row.id, ())
    if any(processes.alive(process.pid, process.start) for process in seen):
        return False
    if row.pid is None:
        return row.state != "reserved"  # one that is being started may have been told of it
    if not processes.alive(row.pid, row.start):
        return True
    if row.cuda == "initialized" and grant.applied == "at_restart" and grant.state == "granted":
        return True  # it was to come at a restart: the process never saw the device
    return row.confirmed == row.revision if hidden is None else hidden


def detach(
    core: Core,
    row: EnvironmentRow,
    *,
    device: str | None = None,
    cuda: Cuda = "unknown",
    by_process: bool = False,
    restart: float | None = None,
    reason: str | None = None,
) -> EnvironmentRow:
    """Take back all grants of an environment, or the one on a device.

    What a process may still hold becomes draining and ends in ``settle``. That it has hidden the
    devices before it asked is believed only of a process itself (``by_process``) into which nobody
    else puts variables: where a server does, those may be on their way.

    Where something drains, ``reason`` says why, and ``restart`` until when (steady seconds) a
    restart of the kernel is wanted: whoever passes it must tell the server.

    Raises
    ------
    UnknownDevice, AmbiguousDevice
        ``device`` (a UUID, the beginning of one, or an index) names none that is held, or several.
    Conflict
        Another kernel is taking over.
    """
    books = core.books
    if row.kind == "server":
        servers.end(core, row, reason or "it was given back")
        return msgspec.structs.replace(row, entitled=None, request=None)
    check_leaving(core, row)
    grants = _to_take_back(core, row, device)
    if not grants:
        return row
    told = _refresh(core, row)
    row = msgspec.structs.replace(row, cuda=cuda_after(row, cuda))
    alone = by_process and row.server is None
    hidden = told and alone and cuda == row.cuda == "not_initialized"
    failpoints.reach("before_release")
    whole = len(grants) == len(books.grants.get(row.id, ()))
    with books.change() as change:
        draining = [g for g in grants if not let_go(core, change, row, g, hidden=hidden)]
        new = msgspec.structs.replace(
            row,
            revision=row.revision + 1,
            confirmed=row.revision + 1 if hidden else row.confirmed,
            reason=reason if draining and reason else reason_for(draining, row.cuda),
            request=None if whole else row.request,
            restart=restart if draining and restart else row.restart,
            expires=None if whole else row.expires,
        )
        change.put_environment(new)
        failpoints.reach("inside_release")
    failpoints.reach("after_release")
    record_left(core, row, grants, draining)
    if draining and row.cuda != "initialized" and not by_process and row.server:
        books.want(row.server, Want(kernel=row.id, action="apply"))
    return books.environments[row.id]


def _refresh(core: Core, row: EnvironmentRow) -> bool:
    """Read the devices if need be; say whether it is known now what a process has on them.

    Without children nothing but the process itself, which has just spoken, can be on a device.
    """
    childless = row.pid is not None and not processes.has_children(row.pid)
    return core.refresh(FRESH if childless else 0.0) or childless


def _to_take_back(core: Core, row: EnvironmentRow, device: str | None) -> list[GrantRow]:
    """Return the grants that a detach is about."""
    books = core.books
    grants = list(books.grants_of(row.id))
    if not grants and row.previous is not None and books.grants.get(row.previous):
        raise Conflict(
            "This kernel is just taking over the GPUs of the one before it.",
            hint="Try again in a moment; if the old kernel stays, shut it down.",
        )
    return grants if device is None else [_named(core, device, grants)]


def _named(core: Core, device: str, grants: Sequence[GrantRow]) -> GrantRow:
    """Return the grant on the device that somebody names."""
    if not grants:
        raise UnknownDevice(
            f"This environment holds nothing on {device[:64]}.", hint="`%gpu` shows what it holds."
        )
    held = {grant.device: grant for grant in grants}
    (slot,) = resolve([device], [core.books.slots[uuid] for uuid in held])
    return held[slot.uuid]


def let_go(
    core: Core, change: Change, row: EnvironmentRow, grant: GrantRow, *, hidden: bool = False
) -> bool:
    """End a grant, or have it drain; say whether it has ended."""
    if may_let_go(core, row, grant, hidden=hidden):
        change.drop_grant(grant)
        return True
    if grant.state != "draining":
        change.change_grant(grant, replaced(grant, state="draining"))
    return False


def reason_for(draining: Sequence[GrantRow], cuda: Cuda) -> str | None:
    """Say why grants drain, if some do."""
    if not draining:
        return None
    return RESTART_TO_FREE if cuda == "initialized" else UNCONFIRMED


def record_left(
    core: Core, row: EnvironmentRow, left: Sequence[GrantRow], draining: Sequence[GrantRow]
) -> None:
    """Record what became of grants that were given back."""
    for grant in left:
        event = "GrantDraining" if grant in draining else "GrantReleased"
        core.record(event, row, device=grant.device, memory=grant.memory, compute=grant.compute)


def settle(core: Core, row: EnvironmentRow) -> None:
    """End the draining grants of an environment that nothing is left of."""
    draining = [g for g in core.books.grants_of(row.id) if g.state == "draining"]
    if not draining:
        return
    if not core.refresh(SETTLE_AGE):
        return
    over = [grant for grant in draining if may_let_go(core, row, grant) or _quiet(core, row, grant)]
    if not over:
        return
    with core.books.change() as change:
        for grant in over:
            change.drop_grant(grant)
        if len(over) == len(draining) and (row.reason or "").startswith(_OF_DRAINING):
            change.put_environment(msgspec.structs.replace(row, reason=None))
    core.outdate()
    record_left(core, row, over, ())


def _quiet(core: Core, row: EnvironmentRow, grant: GrantRow) -> bool:
    """Believe a release that nobody confirmed after some seconds without use.

    Only where the driver lists processes, and never where CUDA is known to live.
    """
    usage = core.usage.get(grant.device)
    now = time.monotonic()
    since = core.books.quiet_since.setdefault(grant.id, now)
    if row.cuda == "initialized" or usage is None or not usage.known or usage.own.get(row.id):
        core.books.quiet_since[grant.id] = now
        return False
    return now - since >= core.policy.confirm_seconds


def tie_up(core: Core) -> None:
    """Let go of what was reserved, or grown, and then neither confirmed nor undone."""
    books = core.books
    grants = [grant for held in books.on_device.values() for grant in held.values()]
    with books.change() as change:
        for grant in grants:
            if grant.state == "reserved":
                change.drop_grant(grant)
            elif (
                grant.state == "granted"
                and counted(grant) != wanted(grant)
                and books.environments[grant.environment].cuda == "not_initialized"
            ):
                change.change_grant(grant, as_wanted(grant))
    core.loose_ends = False


def end_environment(core: Core, row: EnvironmentRow, reason: str) -> None:
    """End an environment; its grants pass to the kernel that takes over, or are free."""
    books = core.books
    heir_id = books.successors.get(row.id)
    follower = None if heir_id is None else books.environments.get(heir_id)
    # One that has asked for devices of its own meanwhile keeps those.
    own = {} if follower is None else books.grants.get(follower.id, {})
    heir = None if own else follower
    grants = list(books.grants_of(row.id))
    with books.change() as change:
        for grant in grants:
            if heir is not None and grant.state == "granted":
                change.change_grant(grant, _inherited(heir, grant))
            elif follower is not None and _still_seen(follower, grant, own):
                change.change_grant(
                    grant, as_wanted(grant, environment=follower.id, state="draining")
                )
            else:
                change.drop_grant(grant)
        if follower is not None:
            lender = follower if heir is None else row
            change.put_environment(
                msgspec.structs.replace(
                    follower, previous=None, request=lender.request, expires=lender.expires
                )
            )
            ticket = books.tickets.get(row.id)
            if ticket is not None and follower.id not in books.tickets:
                change.move_ticket(ticket, follower.id)
        change.drop_environment(row)
    core.outdate()
    for grant in grants:
        if heir is None:
            core.record("GrantReleased", row, device=grant.device, reason=reason)
    core.record("EnvironmentEnded", row, reason=reason)


def end_if_gone(core: Core, row: EnvironmentRow) -> bool:
    """End an environment whose process is gone and that nobody restarts; say if it was so.

    What the processes that a command or shell has left behind still use drains first.
    """
    books = core.books
    served = row.server is not None and row.server in books.servers
    lives = row.pid is not None and processes.alive(row.pid, row.start)
    if lives or served or row.state != "granted":
        return False
    grants = list(books.grants_of(row.id))
    left = [g for g in grants if not may_let_go(core, row, g)]
    if not left or row.kind == "kernel":
        end_environment(core, row, "its process is gone")
        return True
    if row.reason != LEFT_BEHIND:
        with books.change() as change:
            draining = [g for g in grants if not let_go(core, change, row, g)]
            change.put_environment(msgspec.structs.replace(row, reason=LEFT_BEHIND))
        record_left(core, row, grants, draining)
    return True


def _still_seen(follower: EnvironmentRow, grant: GrantRow, own: Container[str]) -> bool:
    """Say whether a kernel may yet see what it was lent and has replaced by its own."""
    lent = grant.state == "granted" and grant.device not in own
    return lent and follower.confirmed != follower.revision


def check_leaving(core: Core, row: EnvironmentRow) -> None:
    """Refuse to change what a kernel has while another takes it over, and sees it already.

    Raises
    ------
    Conflict
        Its notebook is being given another kernel.
    """
    if core.books.successors.get(row.id) in core.books.environments:
        raise Conflict(
            "This notebook is being given another kernel, which takes over these GPUs.",
            hint="Ask in the new kernel in a moment; if both stay, shut one of them down.",
        )


def _inherited(heir: EnvironmentRow, grant: GrantRow) -> GrantRow:
    running = heir.pid is not None
    return as_wanted(grant, environment=heir.id, applied="live" if running else "at_restart")
