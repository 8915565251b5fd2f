"""Who waits for devices, as the pure queue sees it, and what is kept for them."""

from __future__ import annotations

import logging
from collections.abc import Container, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec
from traitlets.config import Configurable

from genv_jupyter import queueing
from genv_jupyter.broker import servers
from genv_jupyter.broker.books import counted
from genv_jupyter.broker.guarantees import Guaranteed
from genv_jupyter.broker.stays import Durations
from genv_jupyter.broker.traits import Seconds
from genv_jupyter.demand import Demand, demand_of
from genv_jupyter.errors import GpuError
from genv_jupyter.ledger.rows import EnvironmentRow, TicketRow
from genv_jupyter.model import Request
from genv_jupyter.queueing import Closed, Decision, Gate, Stay, Waiting
from genv_jupyter.units import format_moment

if TYPE_CHECKING:
    from genv_jupyter.broker.core import Core

log = logging.getLogger(__name__)


class Queueing(Configurable):
    """How those are served who wait for devices."""

    patience = Seconds(
        300.0,
        help="How long the first in the queue waits before devices are held for them, so that "
        "smaller requests no longer come first there: seconds, or 5m. 0: at once.",
    )
    claim = Seconds(
        600.0,
        help="How long devices that came by the queue are kept for somebody who is not there to "
        "use them: seconds, or 10m.",
    )


class Line:
    """The line of one broker. Used with its lock held.

    Attributes
    ----------
    held
        The devices that are held for each environment that waits, as the last decision has it.
    """

    def __init__(self, core: Core) -> None:
        self.core = core
        self.durations = Durations()
        self.held: dict[str, tuple[str, ...]] = {}
        self._demands: dict[str, Demand] = {}

    @property
    def patience(self) -> float:
        """Seconds after which devices are held for somebody."""
        return float(self.core.config.of(Queueing).patience)

    @property
    def claim(self) -> float:
        """Seconds for which what came by the queue waits for somebody to take it up."""
        return float(self.core.config.of(Queueing).claim)

    # -- deciding -------------------------------------------------------------------------------

    def decide(self, blocked: Container[str]) -> tuple[Decision, list[TicketRow]]:
        """Find who is next; also the line that was decided on.

        ``blocked`` are environments that cannot be served at present for another reason than that
        there is no room; their place is kept.
        """
        tickets, line = self._line()
        found = queueing.decide(
            line, self.stays(), self.core.policy, self.patience, blocked=blocked
        )
        held = {**self.held, **found.held} if found.given else found.held
        here = {one.environment for one in line}
        self.held = {name: uuids for name, uuids in held.items() if name in here}
        return found, tickets

    def closed_to(self, row: EnvironmentRow, demand: Demand) -> Closed:
        """Return what is kept for those before an environment that asks for something.

        Who waits for just that is in their place in line, and everybody else behind all.
        """
        if not self.core.books.tickets:
            return {}
        tickets, line = self._line()
        mine = self.core.books.tickets.get(row.id)
        if mine is not None and mine in tickets:
            at = tickets.index(mine)
            same = _amount(self.demand_of(mine)) == _amount(demand)
            line = line[:at] if same else line[:at] + line[at + 1 :]
        return queueing.behind(line, self.stays(), self.core.policy, self.patience)

    def gates(self, row: EnvironmentRow, demand: Demand) -> dict[str, Gate]:
        """Return the same for those devices only that are in the way of a request."""
        closed = self.closed_to(row, demand)
        slots = servers.slots_for(self.core, row)
        own = self.core.books.own(row.id)
        free = {slot.uuid for slot in queueing.open_to(slots, closed, demand, own)}
        return {slot.uuid: closed[slot.uuid] for slot in slots if slot.uuid not in free}

    def delayed(self, row: EnvironmentRow, left: float | None) -> EnvironmentRow | None:
        """Return the first who would wait longer if an environment kept what it has for so many
        seconds (``None``: without an end), and not until its lease ends."""
        if not self.core.books.tickets:
            return None
        _, line = self._line()
        found = queueing.delayed(line, self.stays(), self.core.policy, row.id, left)
        return None if found is None else self.core.books.environments[found.environment]

    def _line(self) -> tuple[list[TicketRow], list[Waiting]]:
        """Return who waits, without those whose devices cannot be known at present."""
        tickets: list[TicketRow] = []
        line: list[Waiting] = []
        known = {ticket.id for ticket in self.core.books.tickets.values()}
        self._demands = {key: it for key, it in self._demands.items() if key in known}
        guaranteed = Guaranteed(self.core)
        for ticket in self.core.books.line():
            try:
                line.append(self.waiting(ticket, guaranteed))
            except GpuError as error:  # no driver, or nobody says whose it is: not served now
                log.debug("%s cannot be served: %s", ticket.environment, error)
                continue
            tickets.append(ticket)
        return tickets, line

    def waiting(self, ticket: TicketRow, guaranteed: Guaranteed) -> Waiting:
        """Return one who waits."""
        core = self.core
        row = core.books.environments[ticket.environment]
        return Waiting(
            environment=row.id,
            owner=row.owner,
            demand=self.demand_of(ticket),
            slots=servers.slots_for(core, row, guaranteed=guaranteed),
            own=core.books.own(row.id),
            waited=core.steady() - ticket.came,
            held=self.held.get(row.id, ()),
        )

    def demand_of(self, ticket: TicketRow) -> Demand:
        """Return what somebody waits for."""
        found = self._demands.get(ticket.id)
        if found is None:
            found = self._demands[ticket.id] = demand_of(asked_by(ticket))
        return found

    # -- when something will be free ------------------------------------------------------------

    def stays(self, *, guess: bool = False) -> dict[str, list[Stay]]:
        """Return who holds what for how long: by their lease, or by a guess where they have none.

        Draining ends when it ends.
        """
        core = self.core
        found: dict[str, list[Stay]] = {}
        for uuid, grants in core.books.on_device.items():
            for grant in grants.values():
                row = core.books.environments[grant.environment]
                left = None if row.expires is None else row.expires - core.steady()
                if grant.state != "granted":
                    left = None
                elif guess and (left is None or left <= 0):
                    left = self.durations.left(core.clock() - grant.since)
                stay = Stay(row.id, row.owner, counted(grant), left)
                found.setdefault(uuid, []).append(stay)
        return found

    def expected(
        self,
        one: Waiting,
        ahead: Sequence[Waiting] = (),
        known: Sequence[queueing.Stays] | None = None,
    ) -> tuple[datetime, bool] | None:
        """Return when somebody may be served, and whether that is a guess; ``None``: who knows.

        It is none where leases alone decide it, and nobody is ahead who may want the same.
        ``known`` are all stays, as leases have them and with a guess, for whoever asks for many.
        """
        core = self.core
        for guess in (False, True):
            stays = self.stays(guess=guess) if known is None else known[guess]
            left = queueing.expected(one, ahead, stays, core.policy)
            if left is not None:
                guessed = guess or bool(ahead)
                return _rounded(core, left, 60 if guessed else 1), guessed
        return None

    def free_at(self, row: EnvironmentRow, demand: Demand) -> tuple[datetime, bool] | None:
        """Return the same for somebody who would get in line now."""
        core = self.core
        one = Waiting(
            environment=row.id,
            owner=row.owner,
            demand=demand,
            slots=servers.slots_for(core, row),
            own=core.books.own(row.id),
            waited=0.0,
        )
        _, ahead = self._line()
        return self.expected(one, [it for it in ahead if it.environment != row.id])


def asked_by(ticket: TicketRow) -> Request:
    """Return the request that a ticket is for, as it was asked."""
    return msgspec.json.decode(ticket.request, type=Request)


def when(expected: tuple[datetime, bool], now: datetime) -> str:
    """Say when something should be free: ``at 15:10``, ``about 15:10 (a guess …)``."""
    at, guess = expected
    said = format_moment(at, now)
    if not guess:
        return f"at {said}, when a lease ends"
    return f"about {said} (a guess from how long GPUs were kept here)"


def _amount(demand: Demand) -> Demand:
    """Return what of a demand decides where it fits."""
    return msgspec.structs.replace(demand, wait=None, duration=None)


def _rounded(core: Core, left: float, step: int) -> datetime:
    """Return when that is, so that it stays the same while nothing changes."""
    at = core.clock() + left
    return core.stamp((at + step / 2) // step * step)
