"""What the broker has counted since it began: how long attaches took, and what rules have done."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from genv_jupyter.broker.rules.breaches import Rule
from genv_jupyter.broker.rules.ladder import Step, Terms
from genv_jupyter.events import Figures, RuleActions

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Seconds: an attach takes some ms, and some seconds where a daemon of MPS is started for it."""

_LADDER: tuple[Step, ...] = ("interrupt", "terminate", "kill")


class Tally:
    """The figures of one broker. Every method may be called from any thread.

    Parameters
    ----------
    steady
        Seconds that never jump.
    """

    def __init__(self, steady: Callable[[], float]) -> None:
        self.steady = steady
        self._lock = threading.Lock()
        self._attaches = [0] * (len(BOUNDS) + 1)
        self._seconds = 0.0

    @contextmanager
    def attach(self) -> Iterator[None]:
        """Time an attach, whether it is refused or not."""
        began = self.steady()
        try:
            yield
        finally:
            took = max(0.0, self.steady() - began)
            with self._lock:
                self._attaches[bisect_left(BOUNDS, took)] += 1
                self._seconds += took

    def figures(
        self, acted: Mapping[tuple[Rule, Step], int], terms: Mapping[Rule, Terms]
    ) -> Figures:
        """Return all that was counted.

        A rule that acts is there before it has: nobody sees a counter rise that was not there.
        """
        counts = {(rule, step): 0 for rule, term in terms.items() for step in _steps(term)}
        counts.update(acted)
        with self._lock:
            attaches, seconds = tuple(self._attaches), self._seconds
        return Figures(
            bounds=BOUNDS,
            attaches=attaches,
            attach_seconds=seconds,
            rules=tuple(
                RuleActions(rule=rule, action=step, count=count)
                for (rule, step), count in sorted(counts.items())
            ),
        )


def _steps(term: Terms) -> tuple[Step, ...]:
    """Return the steps that a rule may take as it stands."""
    if term.mode != "act" or term.dry:
        return ()
    return _LADDER if term.action == "processes" else (term.action, "release")
