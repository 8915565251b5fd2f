"""``%gpu queue``, ``leave``, ``extend`` and ``ask``: what to do where nothing is free."""

from __future__ import annotations

from collections.abc import Sequence

from genv_jupyter.asks import Ask, Asked
from genv_jupyter.errors import Conflict
from genv_jupyter.kernel import waiting, words
from genv_jupyter.kernel.document import HERE, Block, Table, Text, Title
from genv_jupyter.kernel.session import Session
from genv_jupyter.kernel.views import PageView, StatusView, View
from genv_jupyter.model import Device, EnvironmentPatch, QueueTicket

WAITS = "`%gpu attach 1 --wait` gets in line."


class QueueView(View):
    """Who waits for what, in which place; ``tickets`` has the facts."""

    def __init__(
        self,
        tickets: Sequence[QueueTicket],
        devices: Sequence[Device] = (),
        *,
        mine: str | None = None,
    ) -> None:
        self.tickets = tuple(tickets)
        self.devices = tuple(devices)
        self.mine = mine

    def blocks(self) -> list[Block]:
        title = Title("The queue for GPUs", words.mark(self.devices))
        if not self.tickets:
            return [title, Text(f"Nobody waits. {WAITS}")]
        rows = tuple(
            (
                str(it.position) if it.state == "waiting" else "its turn",
                (it.name or f"environment {it.environment[:8]}")
                + (HERE if it.environment == self.mine else ""),
                it.user,
                words.asked(it.request) or "?",
                words.since(it.since),
                self._said(it),
            )
            for it in self.tickets
        )
        heads = ("place", "name", "user", "asks for", "since", "when")
        return [title, Table(heads, rows, keep=(0,), least=22)]

    def _said(self, ticket: QueueTicket) -> str:
        said = []
        if ticket.held:
            by_uuid = {device.uuid: device for device in self.devices}
            labels = [words.device_label(by_uuid.get(uuid), uuid) for uuid in ticket.held]
            said.append(f"{' and '.join(labels)} kept")
        if ticket.expected is not None:
            at = words.clock(ticket.expected)
            said.append(f"about {at} (a guess)" if ticket.guess else f"at {at} (a lease ends)")
        if ticket.state == "granted" and ticket.until is not None:
            said.append(f"to be taken up until {words.clock(ticket.until)}")
        return ", ".join(said) or "not known"


class AskedView(View):
    """Who was asked; ``asked`` has the facts."""

    def __init__(self, asked: Asked, devices: Sequence[Device]) -> None:
        self.asked = asked
        self.devices = tuple(devices)

    def blocks(self) -> list[Block]:
        rows = tuple(
            (
                words.holder(grant),
                grant.user,
                words.amount(grant),
                f"since {words.since(grant.since)}",
            )
            for grant in self.asked.holders
        )
        return [
            Title("Asked; the answer comes as a notice.", words.mark(self.devices)),
            Table(("", "", "", ""), rows, 4, keep=(2,), least=22),
        ]


def look(session: Session) -> View:
    """Return who waits."""
    mine = session.environment()
    return QueueView(
        session.client.queue(), session.devices(mine), mine=None if mine is None else mine.id
    )


def leave(session: Session) -> View:
    """Leave the queue.

    Raises
    ------
    Conflict
        This process has no place in it.
    """
    mine = session.environment()
    left = None if mine is None else waiting.leave(session.client, mine.id)
    if left is None:
        raise Conflict("There is no place in the queue to leave.", hint=WAITS)
    if left.state == "granted":
        return session.status(head="It had come already, and is attached.")
    return PageView([Title("Left the queue.")])


def extend(session: Session, duration: str) -> StatusView:
    """Have the lease of this process end later.

    Raises
    ------
    Conflict
        There is none.
    """
    mine = session.environment()
    if mine is None:
        raise Conflict(
            "There is no lease to extend: nothing is held here.",
            hint="`%gpu attach 1 --for 2h` gives it one.",
        )
    after = session.client.patch(mine.id, EnvironmentPatch(duration=duration))
    return session.status(environment=after, head="Extended.")


def ask(session: Session, message: str) -> View:
    """Ask the holders of what is needed how long still."""
    mine = session.ensure()
    asked = session.client.ask(mine.id, Ask(message=message or None))
    return AskedView(asked, session.devices(mine))
