"""Wire types of turns on shared devices: who has one, and who waits for it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from genv_jupyter.units import Time


class TurnPlace(Struct, frozen=True, kw_only=True):
    """Who is ahead in the line for a turn: who has it, or waits for it, since when.

    ``environment`` is ``None`` for a process that cannot be named.
    """

    environment: str | None
    user: str
    name: str | None
    state: Literal["holding", "waiting"]
    since: Time


class Turn(Struct, frozen=True, kw_only=True):
    """One line of the answer to ``POST environments/{id}/turn``.

    ``waiting`` until it is ``yours``; or ``late``, when ``timeout`` has passed, and the answer
    ends. ``since`` is when it came, or when the waiting began. ``devices`` is empty where there is
    nothing to wait for. Whoever has the turn holds a POSIX lock (``fcntl``) on each of ``locks``,
    if any are named, until it is over.
    """

    state: Literal["waiting", "yours", "late"]
    devices: tuple[str, ...]
    since: Time
    ahead: tuple[TurnPlace, ...] = ()
    locks: tuple[str, ...] = ()
