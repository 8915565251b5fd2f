"""Waiting in the queue until the broker has given what was asked for; Ctrl-C leaves the line."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import msgspec

from genv_jupyter.api.client import Client
from genv_jupyter.errors import BrokerDown, Conflict, GpuError, NoCapacity, UnknownTicket
from genv_jupyter.kernel.changes import AGAIN, Changes
from genv_jupyter.model import Environment, QueueTicket, Request
from genv_jupyter.units import format_duration, parse_duration


class WaitOver(Exception):
    """There was no room for as long as somebody was ready to wait."""


class LeftQueue(Exception):
    """The wait was interrupted; ``served`` is the environment where it had just come."""

    def __init__(self, served: Environment | None) -> None:
        super().__init__("Left the queue." if served is None else "It had just come.")
        self.served = served


def attach(
    client: Client,
    environment: str,
    request: Request,
    attempt: Callable[[], Environment],
    say: Callable[[str], None],
) -> Environment:
    """Attach, and where that gives a place in the queue wait for the turn.

    Parameters
    ----------
    attempt
        Sends the request.
    say
        Hears how it stands, when that has changed.

    Raises
    ------
    WaitOver
        There was no room in the time that it was ready to wait.
    LeftQueue
        Ctrl-C.
    GpuError
        It was refused when its turn came, or the environment has ended.
    """
    if request.wait is None:
        return attempt()
    try:
        found = attempt()
        return found if found.pending is None else _until_served(client, environment, request, say)
    except KeyboardInterrupt:  # perhaps before the answer to the first call was read
        leave(client, environment)
        now = client.environment(environment)
        raise LeftQueue(now if _has(now, request) else None) from None


def _until_served(
    client: Client, environment: str, request: Request, say: Callable[[str], None]
) -> Environment:
    told: Any = None
    with Changes(client) as changes:
        while True:
            try:
                now = client.environment(environment)
                if now.pending is None:
                    return _served(client, now, request)
                said, facts = _standing(client, now, request)
                if facts != told:
                    told = facts
                    say(said)
                changes.wait(None)
            except BrokerDown:  # it is being replaced; the place in line is in its ledger
                changes.wait(AGAIN)


def leave(client: Client, environment: str) -> QueueTicket | None:
    """Leave the queue; return the place that was left."""
    ticket = ticket_of(client, environment)
    if ticket is not None:
        with contextlib.suppress(UnknownTicket):  # it has just been served, or left
            client.leave_queue(ticket.id)
    return ticket


def ticket_of(client: Client, environment: str) -> QueueTicket | None:
    """Return the place of an environment in the queue."""
    return next((it for it in client.queue() if it.environment == environment), None)


def _served(client: Client, now: Environment, request: Request) -> Environment:
    """Return what has come, or raise why nothing has."""
    if _has(now, request):
        return now
    why = next(
        (
            it
            for it in client.notices()
            if it.environment == now.id and it.kind == "queue" and it.level != "info"
        ),
        None,
    )
    if why is not None and "time to wait" in why.message:
        waited = format_duration(parse_duration(request.wait or 1))
        refusal = _refusal(client, now, request)
        raise WaitOver(f"The wait of {waited} is over. {refusal or ''}".rstrip())
    if why is not None:
        raise Conflict(why.message, hint=why.hint)
    raise Conflict(
        "The place in the queue is gone: it was left elsewhere, or something else was asked for.",
        hint="Ask again.",
    )


def _has(now: Environment, request: Request) -> bool:
    """Say whether an environment has what was asked for."""
    return bool(now.grants) and now.request == msgspec.structs.replace(request, wait=None)


def _standing(client: Client, now: Environment, request: Request) -> tuple[str, Any]:
    """Say how somebody stands who waits, and what of it is worth saying again."""
    ticket = ticket_of(client, now.id)
    place = "" if ticket is None else ticket.message.split(" There should be room")[0]
    refusal = _refusal(client, now, request)
    holders = [] if refusal is None else refusal.details.get("holders", [])
    facts = (
        place,
        [[it.get(key) for key in ("device", "environment", "memory", "state")] for it in holders],
    )
    said = "" if refusal is None else refusal.message
    return f"Waiting (Ctrl-C leaves the queue). {place} {said}".replace("  ", " ").rstrip(), facts


def _refusal(client: Client, now: Environment, request: Request) -> NoCapacity | None:
    """Return why there is no room, if there is none."""
    try:
        client.place(msgspec.structs.replace(request, wait=None), now.id)
    except NoCapacity as refusal:
        return refusal
    except GpuError:  # it is told when its turn comes
        return None
    return None
