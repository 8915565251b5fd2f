"""The queue as the doors show it: who waits for what, in which place, and until when."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from genv_jupyter.broker.core import Core
from genv_jupyter.broker.discretion import seen
from genv_jupyter.broker.guarantees import Guaranteed
from genv_jupyter.broker.line import asked_by, when
from genv_jupyter.errors import GpuError
from genv_jupyter.ledger.rows import TicketRow
from genv_jupyter.model import Principal, QueueTicket
from genv_jupyter.queueing import Stays, Waiting


def tickets(core: Core, viewer: Principal | None) -> tuple[QueueTicket, ...]:
    """Return what came and nobody has taken up yet, and then who waits, the first first."""
    line = core.books.line()
    granted = [it for it in core.books.tickets.values() if it.state == "granted"]
    granted.sort(key=lambda ticket: ticket.number)
    guaranteed = Guaranteed(core)
    waiting = [_waiting(core, ticket, guaranteed) for ticket in line]
    came = [_ticket(core, ticket, [], None, viewer) for ticket in granted]
    stays = [core.line.stays(guess=guess) for guess in (False, True)] if line else []
    waits = [
        _ticket(core, ticket, line[:at], _expected(core, waiting[: at + 1], stays), viewer)
        for at, ticket in enumerate(line)
    ]
    return (*came, *waits)


def _waiting(core: Core, ticket: TicketRow, guaranteed: Guaranteed) -> Waiting | None:
    """Return one who waits; ``None`` where their devices cannot be known at present."""
    try:
        return core.line.waiting(ticket, guaranteed)
    except GpuError:  # no driver, or nobody says whose it is
        return None


def _expected(
    core: Core, line: list[Waiting | None], stays: Sequence[Stays]
) -> tuple[datetime, bool] | None:
    """Return when the last of a line may be served, as far as that can be said."""
    known = [one for one in line if one is not None]
    return core.line.expected(known[-1], known[:-1], stays) if len(known) == len(line) else None


def _ticket(
    core: Core,
    ticket: TicketRow,
    ahead: list[TicketRow],
    expected: tuple[datetime, bool] | None,
    viewer: Principal | None,
) -> QueueTicket:
    row = core.books.environments[ticket.environment]
    shown = seen(core, row, viewer)
    waits = ticket.state == "waiting"
    end = None if ticket.until is None else core.clock() + ticket.until - core.steady()
    return QueueTicket(
        id=ticket.id,
        environment=row.id,
        user=shown.user,
        name=shown.name,
        request=asked_by(ticket) if shown.all else None,
        state=ticket.state,
        position=len(ahead) + 1 if waits else 0,
        since=core.stamp(ticket.since),
        until=None if end is None else core.stamp(end + 0.5).replace(microsecond=0),
        held=core.line.held.get(row.id, ()) if waits else (),
        expected=None if expected is None else expected[0],
        guess=None if expected is None else expected[1],
        message=_message(core, ticket, ahead, expected, viewer),
    )


def _message(
    core: Core,
    ticket: TicketRow,
    ahead: list[TicketRow],
    expected: tuple[datetime, bool] | None,
    viewer: Principal | None,
) -> str:
    """Say how somebody stands."""
    if ticket.state == "granted":
        return "Its turn has come; nobody has taken it up yet."
    said = "First in the queue."
    if ahead:
        first = seen(core, core.books.environments[ahead[-1].environment], viewer)
        who = f"{first.name} of {first.user}" if first.name else first.user
        said = f"Place {len(ahead) + 1} in the queue, behind {who}."
    held = [core.books.slots[uuid].label for uuid in core.line.held.get(ticket.environment, ())]
    if held:
        said += f" {' and '.join(held)} {'is' if len(held) == 1 else 'are'} kept for it."
    if expected is not None:
        said += f" There should be room {when(expected, core.stamp())}."
    return said


class QueueNews:
    """Says whether the queue is another one than when it was last told."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._told: tuple[QueueTicket, ...] = ()

    def changed(self) -> bool:
        """Look, and remember."""
        if not self.core.books.tickets and not self._told:
            return False
        before, self._told = self._told, tickets(self.core, None)
        return before != self._told
