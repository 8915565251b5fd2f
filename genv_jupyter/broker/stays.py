"""How long people keep devices: what the past suggests of when one will be free. A guess."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable, Sequence

from genv_jupyter.ledger.rows import GrantRow, Record

FEWEST = 5
"""Stays that must have been longer than a present one before anything is said of its end."""

REMEMBERED = 500


class Durations:
    """How long grants lasted, the newest of them. Used with the broker's lock held."""

    def __init__(self) -> None:
        self._past: deque[float] = deque(maxlen=REMEMBERED)
        self._present: dict[int, float] = {}

    def learn(self, durations: Iterable[float]) -> None:
        """Take in what is known from before, in seconds, the oldest first."""
        newer = list(self._past)
        self._past.clear()
        self._past.extend([*durations, *newer])

    def look(self, grants: Iterable[GrantRow], now: float) -> None:
        """See who holds something now; who has gone since the last look has stayed that long."""
        present = {grant.id: grant.since for grant in grants if grant.state != "reserved"}
        for number, since in self._present.items():
            if number not in present and now > since:
                self._past.append(now - since)
        self._present = present

    def left(self, held: float) -> float | None:
        """Return how long one that was held for so many seconds lasts: the half of those that were
        held for longer are over by then. ``None``: too few are known."""
        longer = [duration for duration in self._past if duration > held]
        return statistics.median(longer) - held if len(longer) >= FEWEST else None


def durations(records: Sequence[Record]) -> list[float]:
    """Return how long the grants lasted that records tell the whole life of, in seconds."""
    begun: dict[tuple[str | None, str | None], float] = {}
    found: list[float] = []
    for record in records:
        key = (record.environment, record.device)
        if record.event == "GrantAdded":
            begun.setdefault(key, record.at)
        elif record.event == "GrantReleased" and key in begun:
            found.append(record.at - begun.pop(key))
    return [seconds for seconds in found if seconds > 0]
