"""Everything the broker knows, in memory and written through to the ledger.

The broker is the ledger's only writer, so reads never touch SQL. A ``Change`` writes to the
ledger first; memory follows only when the transaction has committed, so that whatever fails
leaves both as they were.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from genv_jupyter.broker.rests import Rests
from genv_jupyter.events import Want
from genv_jupyter.ledger.rows import (
    DeviceRow,
    EnvironmentRow,
    GrantRow,
    NoteRow,
    ServerRow,
    TicketRow,
)
from genv_jupyter.model import KernelState
from genv_jupyter.slots import Own, Slot

if TYPE_CHECKING:
    from genv_jupyter.ledger.live import LiveLedger, Transaction


class Pulse(Struct):
    """What is known of a kernel's life and is worth nothing after a crash."""

    state: KernelState = "unknown"
    idle_since: datetime | None = None
    since: datetime | None = None


class Former(Struct, frozen=True):
    """What is remembered of an environment that has ended."""

    owner: str
    user: str
    name: str | None


MOST_FORMER = 4096
"""Environments that are remembered after their end; the first to end make room."""


class Books:
    """Devices, servers, environments and grants, each indexed as the verbs need them."""

    def __init__(self, ledger: LiveLedger) -> None:
        self.ledger = ledger
        self.slots: dict[str, Slot] = {}
        self.servers: dict[str, ServerRow] = {}
        self.environments: dict[str, EnvironmentRow] = {}
        self.grants: dict[str, dict[str, GrantRow]] = {}
        self.on_device: dict[str, dict[int, GrantRow]] = {}
        self.tickets: dict[str, TicketRow] = {}
        self.notes: tuple[NoteRow, ...] = ()
        self.by_pid: dict[int, str] = {}
        self.successors: dict[str, str] = {}
        self.reserved: dict[str, str] = {}
        self.pulses: dict[str, Pulse] = {}
        self.former: dict[str, Former] = {}
        self.wants: dict[str, list[Want]] = {}
        self.wanted_until: dict[tuple[str, str], float | None] = {}
        # A broker counts on from no revision of an earlier one: a listener that comes back with
        # an old number must not be taken for one that has missed nothing.
        self.revision = time.time_ns() // 1_000_000
        self.quiet_since: dict[int, float] = {}
        self.changed_devices: set[str] = set()
        self.changed_environments: set[str] = set()
        self._next_grant = 1

    def load(self) -> None:
        """Fill memory from the ledger, once, at start."""
        state = self.ledger.load()
        for device in state.devices:
            self.add_slot(Slot(uuid=device.uuid, capacity=device.memory_capacity, health="unknown"))
        for server in state.servers:
            self.servers[server.id] = server
        self.environments = {row.id: row for row in state.environments}
        for row in state.environments:  # an heir may stand before the one it takes over from
            self._set_environment(row)
        for grant in state.grants:
            self._add(grant)
            self._next_grant = max(self._next_grant, grant.id + 1)
        for ticket in state.tickets:
            self._set_ticket(ticket)
        self.notes = state.notes

    def add_slot(self, slot: Slot) -> None:
        """Make a device known."""
        self.slots[slot.uuid] = slot
        self.on_device.setdefault(slot.uuid, {})

    def next_grant(self) -> int:
        """Return an id that no grant has had since this ledger was made."""
        number = self._next_grant
        self._next_grant += 1
        return number

    def grants_of(self, environment: str) -> Iterable[GrantRow]:
        """Return the grants of an environment in the order of its devices."""
        return self.grants.get(environment, {}).values()

    def line(self) -> list[TicketRow]:
        """Return who waits in the queue, the first first."""
        waiting = (ticket for ticket in self.tickets.values() if ticket.state == "waiting")
        return sorted(waiting, key=lambda ticket: ticket.number)

    def own(self, environment: str) -> dict[str, Own]:
        """Return what an environment holds already, draining grants included, per device."""
        return {row.device: counted(row) for row in self.grants_of(environment)}

    def pulse(self, environment: str) -> Pulse:
        """Return the volatile state of a kernel."""
        return self.pulses.setdefault(environment, Pulse())

    def touch(self, environment: str) -> None:
        """Note that the view of an environment, its heir's and its devices' have changed."""
        self.changed_environments.add(environment)
        heir = self.successors.get(environment)
        if heir is not None:
            self.changed_environments.add(heir)
        self.changed_devices.update(self.grants.get(environment, ()))

    def touch_device(self, device: str) -> None:
        """Note that the view of a device, and of the environments that are on it, have changed."""
        self.changed_devices.add(device)
        self.changed_environments.update(it.environment for it in self.on_device[device].values())

    def want(self, server: str, want: Want, until: float | None = None) -> None:
        """Leave word for a server; a later word for the same kernel replaces an earlier one.

        After ``until`` (steady seconds) it is worth nothing.
        """
        self.wanted_until[want.kernel, want.action] = until
        waiting = self.wants.setdefault(server, [])
        waiting[:] = [
            old for old in waiting if (old.kernel, old.action) != (want.kernel, want.action)
        ]
        waiting.append(want)

    def unwant(self, kernel: str, action: str) -> None:
        """Take back a word that its server has not heard yet."""
        self.wanted_until.pop((kernel, action), None)
        for waiting in self.wants.values():
            waiting[:] = [it for it in waiting if (it.kernel, it.action) != (kernel, action)]

    def take_wants(self, server: str, now: float) -> list[Want]:
        """Return what was left for a server, once, but for what it comes too late for."""
        taken = []
        for want in self.wants.pop(server, ()):
            until = self.wanted_until.pop((want.kernel, want.action), None)
            if until is None or now <= until:
                taken.append(want)
        return taken

    @contextmanager
    def change(self) -> Iterator[Change]:
        """Open a transaction; what it did reaches memory when it has committed."""
        change = Change(self)
        with self.ledger.transaction() as transaction:
            change.transaction = transaction
            yield change
        for apply in change.pending:
            apply()

    # -- memory, called after the commit --------------------------------------------------------

    def _set_environment(self, row: EnvironmentRow) -> None:
        old = self.environments.get(row.id)
        if old is not None and old.pid is not None and self.by_pid.get(old.pid) == row.id:
            del self.by_pid[old.pid]
        if row.pid is not None:
            self.by_pid[row.pid] = row.id
        if row.previous is not None and row.previous in self.environments:
            self.successors[row.previous] = row.id
        if old is not None:
            self._unbind(old)
        if row.kind == "server" and row.server is not None:
            self.reserved[row.server] = row.id
        self.environments[row.id] = row
        self.touch(row.id)

    def remember(self, environment: str, former: Former) -> None:
        """Note an environment that has ended: processes of it may be left."""
        self.former[environment] = former
        while len(self.former) > MOST_FORMER:
            del self.former[next(iter(self.former))]

    def _drop_environment(self, row: EnvironmentRow) -> None:
        name = row.name or (row.path.rsplit("/", 1)[-1] if row.path else None)
        self.remember(row.id, Former(row.owner, row.user, name))
        self.environments.pop(row.id, None)
        self.pulses.pop(row.id, None)
        self.successors.pop(row.id, None)
        if row.previous is not None and self.successors.get(row.previous) == row.id:
            del self.successors[row.previous]
        if row.pid is not None and self.by_pid.get(row.pid) == row.id:
            del self.by_pid[row.pid]
        self._unbind(row)
        self.changed_environments.add(row.id)

    def _unbind(self, row: EnvironmentRow) -> None:
        if row.server is not None and self.reserved.get(row.server) == row.id:
            del self.reserved[row.server]

    def _set_ticket(self, row: TicketRow) -> None:
        self.tickets[row.environment] = row
        self.touch(row.environment)

    def _drop_ticket(self, row: TicketRow) -> None:
        self.tickets.pop(row.environment, None)
        self.touch(row.environment)

    def _add(self, row: GrantRow) -> None:
        self.grants.setdefault(row.environment, {})[row.device] = row
        self.on_device.setdefault(row.device, {})[row.id] = row
        self._count(row, self.slots[row.device].add)

    def _drop(self, row: GrantRow) -> None:
        mine = self.grants[row.environment]
        del mine[row.device]
        if not mine:
            del self.grants[row.environment]
        del self.on_device[row.device][row.id]
        self._count(row, self.slots[row.device].drop)
        self.quiet_since.pop(row.id, None)  # gone, or another state: it is quiet from then on

    def _count(self, row: GrantRow, count: Callable[..., None]) -> None:
        """Count a grant, or take it back; those who share with other users are told of it."""
        users = len(self.slots[row.device].owners)
        count(row.owner, *counted(row))
        self.touch(row.environment)
        self.changed_devices.add(row.device)
        if len(self.slots[row.device].owners) != users:
            self.touch_device(row.device)


class Change:
    """One transaction over the ledger and, once it has committed, over memory."""

    transaction: Transaction

    def __init__(self, books: Books) -> None:
        self.books = books
        self.pending: list[Callable[[], None]] = []
        self._moved: set[str] = set()
        self._rests = Rests(self, books)

    def put_device(self, row: DeviceRow) -> None:
        """Store a device or its new capacity; the slot is the caller's."""
        self.transaction.put_device(row)

    def put_server(self, row: ServerRow) -> None:
        """Store a server."""
        self.transaction.put_server(row)
        self.pending.append(lambda: self.books.servers.__setitem__(row.id, row))

    def drop_server(self, row: ServerRow) -> None:
        """Forget a server."""
        self.transaction.drop_server(row.id)

        def forget() -> None:
            self.books.servers.pop(row.id, None)
            self.books.take_wants(row.id, 0.0)

        self.pending.append(forget)

    def put_environment(self, row: EnvironmentRow) -> None:
        """Store an environment."""
        self.transaction.put_environment(row)
        self._rests.put(row.id, row)
        self.pending.append(lambda: self.books._set_environment(row))

    def drop_environment(self, row: EnvironmentRow) -> None:
        """Forget an environment whose grants are gone, and its place in the queue."""
        ticket = self.books.tickets.get(row.id)
        if ticket is not None and ticket.id not in self._moved:
            self.drop_ticket(ticket)
        self.transaction.drop_environment(row.id)
        self._rests.put(row.id, None)
        self.pending.append(lambda: self.books._drop_environment(row))

    def put_ticket(self, row: TicketRow) -> None:
        """Store a place in the queue."""
        self.transaction.put_ticket(row)
        self.pending.append(lambda: self.books._set_ticket(row))

    def move_ticket(self, row: TicketRow, environment: str) -> None:
        """Give a place in the queue to another environment, which has none."""
        new = msgspec.structs.replace(row, environment=environment)
        self.transaction.put_ticket(new)
        self._moved.add(row.id)

        def move() -> None:
            self.books._drop_ticket(row)
            self.books._set_ticket(new)

        self.pending.append(move)

    def take_up(self, environment: str) -> None:
        """What came by the queue, if something did, is taken up."""
        ticket = self.books.tickets.get(environment)
        if ticket is not None and ticket.state == "granted":
            self.drop_ticket(ticket)

    def drop_ticket(self, row: TicketRow) -> None:
        """Forget a place in the queue."""
        self.transaction.drop_ticket(row.id)
        self.pending.append(lambda: self.books._drop_ticket(row))

    def add_grant(self, row: GrantRow) -> None:
        """Store a new grant."""
        self._move(None, row)

    def change_grant(self, old: GrantRow, new: GrantRow) -> None:
        """Store a changed grant on the same device."""
        self._move(old, new)

    def drop_grant(self, row: GrantRow) -> None:
        """Remove a grant."""
        self._move(row, None)

    def _move(self, old: GrantRow | None, new: GrantRow | None) -> None:
        """Store what becomes of a grant; what it is taken from, a reservation, follows."""
        (self._rests.store if self.books.reserved else self.store)(old, new)

    def store(self, old: GrantRow | None, new: GrantRow | None) -> None:
        """Store what becomes of this one grant alone."""
        if old is None and new is not None:
            self.transaction.add_grant(new)
        elif old is not None and new is not None:
            self.transaction.change_grant(old, new)
        elif old is not None:
            self.transaction.drop_grant(old)

        def move() -> None:
            if old is not None:
                self.books._drop(old)
            if new is not None:
                self.books._add(new)

        self.pending.append(move)


def counted(row: GrantRow) -> Own:
    """Return what a grant stands for in everybody else's way."""
    return Own(row.counted_memory, row.counted_compute or None, row.counted_exclusive)


def wanted(row: GrantRow) -> Own:
    """Return what a grant gives."""
    return Own(row.memory, row.compute, row.exclusive)


def replaced(row: GrantRow, **changes: object) -> GrantRow:
    """Return a grant with some fields changed."""
    return msgspec.structs.replace(row, **changes)


def as_wanted(row: GrantRow, **changes: object) -> GrantRow:
    """Return a grant that counts for what it gives and no more."""
    return replaced(
        row,
        counted_memory=row.memory,
        counted_compute=row.compute or 0,
        counted_exclusive=row.exclusive,
        started=None,
        **changes,
    )
