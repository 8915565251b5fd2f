"""What Jupyter servers tell: themselves, and each kernel's birth, life, restarts and end."""

from __future__ import annotations

import uuid

import msgspec

from genv_jupyter.broker import claims, failpoints, leases, servers
from genv_jupyter.broker.books import Books, Change, replaced
from genv_jupyter.broker.claims import MAX_TEXT, OTHER_ID, check_launch, check_uuid, short, start_of
from genv_jupyter.broker.confirmations import started, take_in, want_again
from genv_jupyter.broker.core import Core
from genv_jupyter.broker.release import cuda_after, end_environment, settle
from genv_jupyter.broker.reported import born, check_owner, late, told
from genv_jupyter.errors import (
    BadRequest,
    Conflict,
    NotYours,
    UnknownEnvironment,
    UnknownServer,
)
from genv_jupyter.isolation import processes
from genv_jupyter.ledger.rows import EnvironmentRow, ServerRow
from genv_jupyter.model import (
    EnvironmentPatch,
    KernelReport,
    NewEnvironment,
    Principal,
    ServerReport,
)

ENDING = "Its server has ended it; it is free when its process is gone."


def put_server(
    core: Core,
    principal: Principal,
    server: str,
    report: ServerReport,
    *,
    speaker: int | None = None,
) -> None:
    """Register a server, or register it again."""
    check_uuid(server, "server")
    old = core.books.servers.get(server)
    if old is not None and old.owner != principal.key:
        raise NotYours("A server of that id belongs to somebody else.", hint=OTHER_ID)
    start = start_of(principal, report.pid)
    claims.check_registration(old, report.pid, speaker)
    if old is None and core.kind == "host":
        claims.check_room(core.books.servers.values(), principal.key, "servers")
    core.unwatched &= core.books.servers.keys()
    (core.unwatched.discard if report.watched else core.unwatched.add)(server)
    row = ServerRow(
        id=server,
        owner=principal.key,
        pid=report.pid,
        start=start,
        version=report.version[:MAX_TEXT],
        pool=_resolved(core, report.pool),
        name=short(report.name),
    )
    if row == old and (server in core.books.reserved or report.reservation is None):
        return
    with core.books.change() as change:
        change.put_server(row)
        servers.bind(core, change, row, report.reservation)


def end_server(
    core: Core, principal: Principal, server: str, *, speaker: int | None = None
) -> None:
    """A server leaves in good order: what it started is ended."""
    row = server_of(core, principal, server, speaker)
    for environment in _kernels_of(core, server):
        end_kernel(core, principal, server, environment.id)
    servers.end_of(core, server, "its server has stopped")
    with core.books.change() as change:
        change.drop_server(row)


def put_kernel(
    core: Core,
    principal: Principal,
    server: str,
    kernel: str,
    report: KernelReport,
    *,
    speaker: int | None = None,
) -> EnvironmentRow:
    """Take in what a server tells of one of its kernels; its environment is made if needed.

    Raises
    ------
    UnknownServer
        The server must register (again) first.
    UnknownEnvironment
        It has ended, and this is no start.
    Conflict
        Another living server has a living kernel of that id, or its process is another kernel's.
    NotYours
        It is somebody else's, or another process says it.
    """
    server_of(core, principal, server, speaker)
    check_uuid(kernel, "kernel")
    check_launch(report.launch)
    books = core.books
    row = _present(core, principal, server, kernel, report)
    if late(row, report):
        return row
    if report.phase == "starting" and kernel in books.environments:
        # What the process before had to let go of is no part of what this one is told.
        settle(core, row)
        row = books.environments[kernel]
    if report.phase == "restarting" and (report.died is not None or row.state != "held"):
        core.deaths.replaced(row, report.died)
    new = told(core, principal, server, row, report)
    _feel_pulse(books, kernel, report)
    if new == books.environments.get(kernel) and report.applied is None and report.phase is None:
        return row
    failpoints.reach("before_report")
    alias = _alias(core, new)
    fresh = report.phase == "running" and (row.pid, row.start) != (new.pid, new.start)
    with books.change() as change:
        if alias is not None:
            new = _merged(core, change, alias, new)
        new = (started if fresh else take_in)(core, change, new, report)
        change.put_environment(new)
        failpoints.reach("inside_report")
    failpoints.reach("after_report")
    return _settled(core, new, report)


def _present(
    core: Core, principal: Principal, server: str, kernel: str, report: KernelReport
) -> EnvironmentRow:
    """Return the environment that a report is about, or one that is not in the books yet."""
    row = core.books.environments.get(kernel)
    if row is not None:
        check_owner(core, principal, server, row)
        return row
    if report.phase is None:
        raise UnknownEnvironment(
            "This kernel has ended, or was never started.", hint="Tell of its start first."
        )
    _check_room(core, principal)
    return born(core, principal, server, kernel, report)


def _check_room(core: Core, principal: Principal) -> None:
    if core.kind == "host":  # the broker of one user has nobody else to look after
        claims.check_room(core.books.environments.values(), principal.key, "environments")


def _feel_pulse(books: Books, kernel: str, report: KernelReport) -> None:
    """Take in whether a kernel is idle: shown, and no matter of the ledger."""
    pulse = books.pulse(kernel)
    told = report.kernel_state, report.idle_since, report.kernel_state_since
    known = pulse.state, pulse.idle_since, pulse.since
    if report.kernel_state is not None and told != known:
        pulse.state, pulse.idle_since = report.kernel_state, report.idle_since
        pulse.since = report.kernel_state_since
        books.touch(kernel)


def end_kernel(
    core: Core,
    principal: Principal,
    server: str,
    kernel: str,
    launch: int | None = None,
    *,
    speaker: int | None = None,
) -> None:
    """A kernel is gone for good; one whose process still lives is waited for.

    The end of an earlier ``launch`` than the present one is over already.
    """
    server_of(core, principal, server, speaker)
    row = core.books.environments.get(kernel)
    if row is None or row.kind == "server" or row.server != server:
        return
    if launch is not None and launch < row.launch:
        return
    if row.pid is not None and processes.alive(row.pid, row.start):
        with core.books.change() as change:
            change.put_environment(
                msgspec.structs.replace(row, server=None, state="granted", reason=ENDING)
            )
        return
    end_environment(core, row, "the kernel was shut down")


def create(core: Core, principal: Principal, new: NewEnvironment) -> EnvironmentRow:
    """Make an environment for a process that no server of ours started."""
    start = start_of(principal, new.pid)
    known = core.books.by_pid.get(new.pid)
    if known is not None and core.books.environments[known].start == start:
        return core.environment(principal, known)
    _check_room(core, principal)
    row = EnvironmentRow(
        id=str(uuid.uuid4()),
        owner=principal.key,
        user=principal.name,
        kind=new.kind,
        launch=1,
        revision=core.first_revision(),
        name=short(new.name),
        pid=new.pid,
        start=start,
        pool=new.pool,
        unattached="all",
        state="granted",
        cuda="unknown",
        created=core.clock(),
    )
    with core.books.change() as change:
        change.put_environment(row)
    return row


def patch(
    core: Core, row: EnvironmentRow, body: EnvironmentPatch, *, speaker: int | None = None
) -> EnvironmentRow:
    """Change the name, or take in what was applied inside the process."""
    if not claims.speaks_for(core.books, row, speaker):
        body = claims.believed_part(body)
    if body.keep is False:
        raise BadRequest("keep is true or left out.", hint="Release what is not needed.")
    if body.keep:
        core.idleness.keep(row.id, core.steady())
        core.books.unwant(row.id, "shutdown")  # its server may not have heard of it yet
    if body.duration is not None:
        row = leases.extend(core, row, body.duration)
    # Of an earlier process, perhaps: each start has a revision of its own.
    stale = body.revision is not None and body.revision != row.revision
    new = msgspec.structs.replace(
        row,
        name=short(body.name) or row.name,
        cuda=row.cuda if stale else cuda_after(row, body.cuda),
    )
    with core.books.change() as change:
        change.take_up(row.id)
        new = take_in(core, change, new, body)
        change.put_environment(new)
    return _settled(core, new, body)


def _settled(
    core: Core, row: EnvironmentRow, report: KernelReport | EnvironmentPatch
) -> EnvironmentRow:
    """End what a report confirms to be over, and want anew what it does not confirm."""
    settle(core, row)
    row = core.books.environments[row.id]
    if report.applied is not None or getattr(report, "phase", None) == "running":
        want_again(core, row)
    return row


def server_of(
    core: Core, principal: Principal, server: str, speaker: int | None = None
) -> ServerRow:
    """Return a registered server of the caller, which must be the one that speaks."""
    row = core.books.servers.get(server)
    if row is None or row.owner != principal.key:
        raise UnknownServer("This Jupyter server is not registered.", hint="Register it again.")
    claims.check_server(row, speaker)
    return row


def _alias(core: Core, row: EnvironmentRow) -> EnvironmentRow | None:
    """Return the environment that a kernel made for itself while its server could not for it."""
    known = core.books.by_pid.get(row.pid) if row.pid is not None else None
    other = core.books.environments.get(known) if known is not None else None
    if other is None or other.id == row.id:
        return None
    if other.start == row.start and other.server is not None:
        raise Conflict(
            f"Process {row.pid} is that of another kernel.",
            hint="Say the pid of this kernel's own process.",
        )
    if core.books.grants.get(row.id):
        return None
    same = (other.owner, other.start, other.server) == (row.owner, row.start, None)
    return other if same else None


def _merged(
    core: Core, change: Change, alias: EnvironmentRow, row: EnvironmentRow
) -> EnvironmentRow:
    """One process has one environment: the kernel's own takes what the other holds."""
    change.put_environment(row)
    for grant in list(core.books.grants_of(alias.id)):
        change.change_grant(grant, replaced(grant, environment=row.id))
    change.drop_environment(alias)
    return msgspec.structs.replace(
        row,
        request=alias.request,
        expires=alias.expires,
        cuda=alias.cuda,
        name=alias.name,
        revision=max(row.revision, alias.revision) + 1,
    )


def _resolved(core: Core, pool: str | None) -> str | None:
    """Turn a pool's numbers into UUIDs once: numbers shift when a device falls off the bus."""
    uuids = () if pool is None else core.pool(pool).uuids
    return ",".join(uuids) or pool


def _kernels_of(core: Core, server: str) -> list[EnvironmentRow]:
    rows = core.books.environments.values()
    return [row for row in rows if row.server == server and row.kind != "server"]
