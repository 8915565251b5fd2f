"""What the environment of a kernel becomes by a report of its server; nothing is written here."""

from __future__ import annotations

import msgspec

from genv_jupyter.broker.claims import OTHER_ID, short, start_of
from genv_jupyter.broker.core import Core
from genv_jupyter.broker.release import cuda_after
from genv_jupyter.errors import BadRequest, Conflict, NotYours
from genv_jupyter.isolation import processes
from genv_jupyter.ledger.rows import EnvironmentRow
from genv_jupyter.model import KernelReport, Principal

_MAX_FAILURE = 300


def late(row: EnvironmentRow, report: KernelReport) -> bool:
    """Say whether a report tells of an earlier process, or of a start that has happened since."""
    if report.launch is None:
        return False
    begun = report.phase == "starting" and row.pid is not None
    return report.launch < row.launch or (report.launch == row.launch and begun)


def born(
    core: Core, principal: Principal, server: str, kernel: str, report: KernelReport
) -> EnvironmentRow:
    """Return the environment of a kernel that is about to start."""
    previous = report.previous
    if previous is not None:
        before = core.books.environments.get(previous)
        taken = previous in core.books.successors
        if before is None or before.owner != principal.key or before.server != server or taken:
            previous = None
    return EnvironmentRow(
        id=kernel,
        owner=principal.key,
        user=principal.name,
        kind="kernel",
        launch=report.launch or 1,
        revision=core.first_revision(),
        name=short(report.name),
        path=short(report.path),
        server=server,
        previous=previous,
        pool=report.pool,
        unattached=report.unattached or "hide",
        state="reserved",
        cuda="not_initialized",
        deadline=core.steady() + core.policy.start_deadline,
        created=core.clock(),
    )


def check_owner(core: Core, principal: Principal, server: str, row: EnvironmentRow) -> None:
    """Refuse a report on a kernel of somebody else, or of another living server.

    Raises
    ------
    NotYours, Conflict
        It is one.
    """
    if row.owner != principal.key or row.kind != "kernel":
        raise NotYours("A kernel of that id belongs to somebody else.", hint=OTHER_ID)
    if row.server == server:
        return
    other = core.books.servers.get(row.server) if row.server else None
    lives = row.state in ("reserved", "held") or (
        row.pid is not None and processes.alive(row.pid, row.start)
    )
    if other is not None and lives and processes.alive(other.pid, other.start):
        raise Conflict(
            "Another Jupyter server has a living kernel of that id.",
            hint="Start the kernel under another id.",
        )


def told(
    core: Core, principal: Principal, server: str, row: EnvironmentRow, report: KernelReport
) -> EnvironmentRow:
    """Return the environment as the report leaves it."""
    new = msgspec.structs.replace(
        row,
        server=server,
        launch=report.launch or row.launch,
        path=short(report.path) or row.path,
        name=short(report.name) or row.name,
        pool=_pool_after(core, server, row, report),
        unattached=report.unattached or row.unattached,
        cuda=cuda_after(row, report.cuda),
        reservation=_reservation_after(core, server, row),
    )
    deadline = core.steady() + core.policy.start_deadline
    if report.phase == "starting":
        return msgspec.structs.replace(
            new,
            state="reserved",
            pid=None,
            start=None,
            cuda="not_initialized",
            deadline=deadline,
            revision=row.revision + 1,
            restart=None,
            reason=None,
        )
    if report.failure is not None and row.state in ("reserved", "held"):
        reason = _not_started(core, row, report.failure)
        return msgspec.structs.replace(new, state="held", deadline=deadline, reason=reason)
    if report.phase == "restarting":
        return msgspec.structs.replace(new, state="held", deadline=deadline, restart=None)
    if report.phase == "running":
        if report.pid is None:
            raise BadRequest("A running kernel has a pid.", hint="Say pid.")
        start = start_of(principal, report.pid)
        same = (row.pid, row.start) == (report.pid, start)
        return msgspec.structs.replace(
            new,
            state="granted",
            pid=report.pid,
            start=start,
            cuda=new.cuda if same else "not_initialized",
            deadline=None,
            reason=None,
            restart=row.restart if same else None,
        )
    return new


def _not_started(core: Core, row: EnvironmentRow, failure: str) -> str:
    """Say why a restart brought no process, and for how long its grants wait for another."""
    said, cause = "The kernel did not start again.", failure[:_MAX_FAILURE].strip().rstrip(".")
    if core.books.grants.get(row.id):
        seconds = f"{core.policy.start_deadline:g} s"
        said += f" Its grant is kept for {seconds}: restart it before they are over."
    return f"{said} The cause: {cause}."


def _pool_after(core: Core, server: str, row: EnvironmentRow, report: KernelReport) -> str | None:
    """Return the pool of a kernel: its kernelspec's, else its server's, which may end before it."""
    pool = row.pool if report.pool is None else report.pool
    return core.books.servers[server].pool if pool is None else pool


def _reservation_after(core: Core, server: str, row: EnvironmentRow) -> str | None:
    """Return the reservation that a kernel draws on: one that holds something keeps to its own."""
    return row.reservation if core.books.grants.get(row.id) else core.books.reserved.get(server)
