"""The queue: getting in line, leaving it, being served, and what comes when nobody is there.

A place is in the ledger before it is answered. Whoever is next gets what they asked for as by any
attach, and their ticket becomes ``granted`` in the same transaction; it goes when somebody takes up
what came: the process that waited, a click, or a process on the device. If nobody does in time, it
is given back.
"""

from __future__ import annotations

import logging
import threading

from genv_jupyter.broker import attach, failpoints, fence, release
from genv_jupyter.broker.attach import Attempt
from genv_jupyter.broker.core import Core
from genv_jupyter.broker.discretion import label_of, seen
from genv_jupyter.broker.joining import join
from genv_jupyter.broker.line import asked_by
from genv_jupyter.broker.release import FRESH
from genv_jupyter.broker.stays import durations
from genv_jupyter.errors import (
    Conflict,
    CudaInitialized,
    GpuError,
    NoCapacity,
    NotYours,
    Unavailable,
    UnknownTicket,
)
from genv_jupyter.isolation import processes
from genv_jupyter.ledger.records import RecordsLedger
from genv_jupyter.ledger.rows import EnvironmentRow, TicketRow
from genv_jupyter.model import Cuda, Principal, Request
from genv_jupyter.units import format_moment

log = logging.getLogger(__name__)

_OUR_FAULT = Conflict(
    "The broker has failed over it, and its log says more.",
    hint="Get in line again, with another request perhaps.",
)
LOOK_SECONDS = 1.0
"""Between two looks at who has gone."""

RECENT = 4000
"""Records of the past that are read for how long devices are kept."""


class Queue:
    """The queue of one broker.

    Parameters
    ----------
    lock, lanes
        The broker's.
    records
        What is known of earlier grants, where records are kept.
    """

    def __init__(
        self,
        core: Core,
        lock: threading.RLock,
        lanes: fence.Lanes,
        records: RecordsLedger | None = None,
    ) -> None:
        self.core = core
        self.lock = lock
        self.lanes = lanes
        self.records = records
        self._recalled = records is None
        self._next_look = float("-inf")

    # -- asking ---------------------------------------------------------------------------------

    def attach(
        self,
        principal: Principal,
        environment: str,
        request: Request,
        *,
        cuda: Cuda,
        restart: bool,
        peer_pid: int | None,
    ) -> EnvironmentRow:
        """Give an environment what it asks for, or a place in line if it is ready to wait.

        Called in the environment's lane.

        Raises
        ------
        GpuError
            It is refused; what it has, and its place in line, are as they were.
        """
        core = self.core

        def begin() -> Attempt | None:
            row = core.environment(principal, environment)
            by_process = peer_pid is not None and peer_pid == row.pid
            return attach.begin(
                core, row, request, cuda=cuda, restart=restart, by_process=by_process
            )

        try:
            row = fence.give(core, self.lock, environment, begin)
        except NoCapacity:
            if request.wait is None:
                raise
            with self.lock:
                row = core.environment(principal, environment)
                return join(core, row, request, cuda=cuda, restart=restart, peer_pid=peer_pid)
        with self.lock:
            core.board.withdraw(row, "queue")  # whatever was waited for: this was asked for since
        return row

    # -- leaving --------------------------------------------------------------------------------

    def leave(self, principal: Principal, ticket: str) -> None:
        """Leave the line. What has come already stays, and counts as taken up.

        Raises
        ------
        UnknownTicket
            There is none of that id, or it has been served and taken up.
        NotYours
            It is somebody else's.
        """
        with self.lock:
            core = self.core
            row, found = self._find(ticket)
            if row.owner != principal.key and not principal.admin:
                raise NotYours(
                    f"This place in the queue is that of {seen(core, row, principal).user}.",
                    hint="Only they can leave it.",
                )
            if found.state == "granted":
                self.claim(row)
                return
            self._drop(row, found, "QueueLeft", "left by hand")
            core.board.withdraw(row, "queue")

    def _find(self, ticket: str) -> tuple[EnvironmentRow, TicketRow]:
        books = self.core.books
        for found in books.tickets.values():
            if found.id == ticket:
                return books.environments[found.environment], found
        raise UnknownTicket(
            f"There is no place {ticket[:64]!r} in the queue: it was left, or served.",
            hint="`%gpu queue` or `jupyter gpu queue` lists who waits.",
        )

    def came(self, row: EnvironmentRow) -> bool:
        """Say whether something came by the queue that nobody has taken up yet."""
        ticket = self.core.books.tickets.get(row.id)
        return ticket is not None and ticket.state == "granted"

    def claim(self, row: EnvironmentRow) -> None:
        """Somebody has taken up what came by the queue. Called under the lock."""
        if self.came(row):
            with self.core.books.change() as change:
                change.take_up(row.id)
            self.core.board.withdraw(row, "queue")

    def _drop(self, row: EnvironmentRow, ticket: TicketRow, event: str, reason: str) -> None:
        with self.core.books.change() as change:
            change.drop_ticket(ticket)
            failpoints.reach("inside_leave")
        self.core.line.held.pop(row.id, None)
        failpoints.reach("after_leave")
        self.core.record(event, row, reason=reason)

    # -- serving --------------------------------------------------------------------------------

    def round(self) -> None:
        """Serve whoever can be served: called at every change and once a second."""
        self._recall()
        with self.lock:
            books = self.core.books
            self._see_stays()
            if not books.tickets:
                self.core.line.held.clear()
                return
            self._tidy()
            if not books.line():
                return
            self.core.refresh(FRESH)
        blocked: set[str] = set()
        while (ticket := self._next(blocked)) is not None:
            if not self._serve(ticket):
                blocked.add(ticket.environment)

    def _see_stays(self) -> None:
        """See who has gone: not after every verb, since it takes a look at every grant."""
        core = self.core
        if core.steady() >= self._next_look:
            self._next_look = core.steady() + LOOK_SECONDS
            grants = (grant for held in core.books.on_device.values() for grant in held.values())
            core.line.durations.look(grants, core.clock())

    def _recall(self) -> None:
        """Learn from the records, once; the disk may hang, so without the lock."""
        if self._recalled or self.records is None:
            return
        self._recalled = True
        try:
            past = durations(self.records.history(limit=RECENT))
        except Unavailable:
            return  # then nothing is guessed until something was seen
        with self.lock:
            self.core.line.durations.learn(past)

    def _next(self, blocked: set[str]) -> TicketRow | None:
        with self.lock:
            found, tickets = self.core.line.decide(blocked)
            return None if found.given is None else tickets[found.given[0]]

    def _serve(self, ticket: TicketRow) -> bool:
        """Give what was asked for; false: not now."""
        core, environment = self.core, ticket.environment
        failpoints.reach("before_serve")

        def begin() -> Attempt | None:
            row = core.books.environments.get(environment)
            now = core.books.tickets.get(environment)
            if row is None or now is None or now.id != ticket.id or now.state != "waiting":
                raise _Gone
            if self._left(row, now):
                raise _Gone
            return attach.begin(
                core,
                row,
                asked_by(now),
                restart=now.restart,
                by_process=now.pid is not None and now.pid == row.pid,
                served=True,
            )

        try:
            with self.lanes.of(environment):
                row = fence.give(core, self.lock, environment, begin)
        except _Gone:
            return True
        except CudaInitialized as error:
            self._refuse(ticket, error, restart=True)
            return True
        except (Conflict, Unavailable):  # no room after all, a handover, no driver: later
            return False
        except GpuError as error:
            self._refuse(ticket, error)
            return True
        except Exception:  # whatever it is, those behind must not wait for its end
            log.exception("%s could not be served", environment)
            self._refuse(ticket, _OUR_FAULT)
            return True
        failpoints.reach("after_serve")
        with self.lock:
            core.record("QueueServed", row)
            self._tell_served(row)
        return True

    def _tell_served(self, row: EnvironmentRow) -> None:
        """Tell the owner, until somebody has taken it up."""
        core = self.core
        ticket = core.books.tickets.get(row.id)
        if ticket is None or ticket.state != "granted" or ticket.until is None:
            return
        labels = [core.books.slots[grant.device].label for grant in core.books.grants_of(row.id)]
        until = round(core.clock() + ticket.until - core.steady())
        then = format_moment(core.stamp(until), core.stamp())
        core.board.tell(
            row,
            "queue",
            f"The turn of {label_of(row) or 'this ' + row.kind} has come: {' and '.join(labels)} "
            f"{'is' if len(labels) == 1 else 'are'} attached.",
            level="info",
            hint=f"Use it or keep it until {then}; then it is given to the next one.",
            until=until,
            actions=("keep", "restart", "release") if ticket.restart else ("keep", "release"),
            topic=ticket.id,
        )

    def _refuse(self, ticket: TicketRow, error: GpuError, *, restart: bool = False) -> None:
        """Take somebody out of the line who cannot be given what they wait for."""
        with self.lock:
            row = self.core.books.environments.get(ticket.environment)
            if row is None or self.core.books.tickets.get(row.id) != ticket:
                return
            self._drop(row, ticket, "QueueRefused", error.message)
            self.core.board.tell(
                row,
                "queue",
                f"Its turn in the queue came, and could not be used. {error.message}",
                hint=error.hint,
                actions=("restart",) if restart and row.server is not None else (),
            )

    # -- what ends by itself --------------------------------------------------------------------

    def _tidy(self) -> None:
        """End the places of those who do not wait any more, and give back what nobody took up."""
        core = self.core
        now = core.steady()
        for ticket in list(core.books.tickets.values()):
            row = core.books.environments[ticket.environment]
            if ticket.state == "granted":
                self._look_after(row, ticket)
            elif self._left(row, ticket):
                continue
            elif ticket.until is not None and now >= ticket.until:
                self._drop(row, ticket, "QueueLeft", "the time to wait is over")
                core.board.tell(
                    row,
                    "queue",
                    "The time to wait in the queue is over, and its turn had not come.",
                    hint="Wait for longer, or ask for less.",
                )

    def _left(self, row: EnvironmentRow, ticket: TicketRow) -> bool:
        """End the place of a process that waited and has ended; say if it was so."""
        if ticket.pid is None or processes.alive(ticket.pid, ticket.start):
            return False
        self._drop(row, ticket, "QueueLeft", "the process that waited has ended")
        return True

    def _look_after(self, row: EnvironmentRow, ticket: TicketRow) -> None:
        core = self.core
        grants = [it for it in core.books.grants_of(row.id) if it.state == "granted"]
        used = any(
            usage.own.get(row.id)
            for grant in grants
            if (usage := core.usage.get(grant.device)) is not None
        )
        if used or not grants:
            self.claim(row)
        elif ticket.until is not None and core.steady() >= ticket.until:
            try:
                release.detach(core, row)
            except Conflict:
                return  # another kernel is taking it over, and nobody else waits for that to end
            self.claim(core.books.environments[row.id])
            core.record("QueueExpired", row, reason="nobody took up what came by the queue")
            core.board.tell(
                core.books.environments[row.id],
                "queue",
                "Its turn in the queue came, and nobody was there to use it: it was given back.",
                hint="Get in line again: `%gpu attach … --wait`.",
            )
        else:
            self._tell_served(row)


class _Gone(Exception):
    """Somebody has left the line meanwhile."""
