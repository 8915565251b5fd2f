"""Getting in line: a place in the queue, in the ledger before it is answered."""

from __future__ import annotations

import uuid

import msgspec

from genv_jupyter.broker import failpoints, release
from genv_jupyter.broker.core import Core
from genv_jupyter.broker.line import asked_by
from genv_jupyter.demand import demand_of
from genv_jupyter.errors import CudaInitialized
from genv_jupyter.isolation import processes
from genv_jupyter.ledger.rows import EnvironmentRow, TicketRow
from genv_jupyter.model import Cuda, Request


def join(
    core: Core,
    row: EnvironmentRow,
    request: Request,
    *,
    cuda: Cuda,
    restart: bool,
    peer_pid: int | None,
) -> EnvironmentRow:
    """Give a place in line; whoever waits for the same already keeps theirs."""
    books = core.books
    demand = demand_of(request)
    release.check_leaving(core, row)
    core.quotas.queue(row)
    _check_time(core, row, demand.count, cuda=release.cuda_after(row, cuda), restart=restart)
    old = books.tickets.get(row.id)
    number = 1 + max((it.number for it in books.tickets.values()), default=0)
    came, since = core.steady(), core.clock()
    if old is not None and old.state == "waiting" and _same(asked_by(old), request):
        number, came, since = old.number, old.came, old.since
    waiter = _waiter(core, peer_pid)
    ticket = TicketRow(
        id=str(uuid.uuid4()) if old is None or number != old.number else old.id,
        environment=row.id,
        number=number,
        request=msgspec.json.encode(request).decode(),
        state="waiting",
        since=since,
        came=came,
        until=core.steady() + (demand.wait or 0),
        restart=restart,
        pid=None if waiter is None else waiter[0],
        start=None if waiter is None else waiter[1],
    )
    failpoints.reach("before_join")
    with books.change() as change:
        if old is not None and old.id != ticket.id:
            change.drop_ticket(old)
        change.put_ticket(ticket)
        failpoints.reach("inside_join")
    failpoints.reach("after_join")
    if old is None or old.id != ticket.id:
        core.record("QueueJoined", row)
    core.board.withdraw(row, "queue")
    return row


def _waiter(core: Core, pid: int | None) -> tuple[int, int] | None:
    """Return the process that waits; a server waits for its users, who come back to it."""
    if pid is None or pid in {server.pid for server in core.books.servers.values()}:
        return None
    start = processes.start_of(pid)
    return None if start is None else (pid, start)


def _same(one: Request, other: Request) -> bool:
    """Say whether two requests ask for the same, however long they would wait for it."""
    return demand_of(one) == demand_of(msgspec.structs.replace(other, wait=one.wait))


def _check_time(core: Core, row: EnvironmentRow, count: int, *, cuda: Cuda, restart: bool) -> None:
    """Refuse to wait for what would come too late, whatever it is: other devices for CUDA."""
    held = [grant for grant in core.books.grants_of(row.id) if grant.state == "granted"]
    if cuda != "initialized" or restart or len(held) == count:
        return
    raise CudaInitialized(
        "CUDA is already initialised here, so what comes by the queue would not be seen.",
        hint="Restart with it: `%gpu attach … --wait --restart`; or restart, and get in line first."
        if row.server is not None
        else "Restart it by hand, and get in line before anything uses CUDA.",
        details={"devices": []},
    )
