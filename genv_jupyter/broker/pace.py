"""How often the driver is asked: often while it matters to anybody, seldom otherwise."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from traitlets.config import Configurable

from genv_jupyter.broker.traits import Seconds

if TYPE_CHECKING:
    from genv_jupyter.broker.service import Broker

SLACK = 0.5
"""Seconds by which a round may come too early: rounds come once a second, and are no clockwork."""


class Sampling(Configurable):
    """How often the driver is asked what is used."""

    interval = Seconds(
        1.0,
        help="How often the devices are read while somebody looks, holds one or waits for one: "
        "seconds. Rounds come once a second, so less is no more often.",
    )
    rest = Seconds(
        4.0,
        help="How often they are read otherwise: seconds. More than 5 leaves gaps in the history.",
    )


class Pace:
    """Says when the next reading is due.

    Parameters
    ----------
    watched
        Says whether somebody looks.
    clock
        Seconds that only grow.
    """

    def __init__(
        self,
        broker: Broker,
        watched: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.broker = broker
        self.watched = watched
        self.clock = clock
        self._last = float("-inf")

    def due(self) -> bool:
        """Say whether to read now; whoever asks does, then."""
        core = self.broker.core
        settings = core.config.of(Sampling)
        matters = self.watched() or self.broker.matters()
        interval = settings.interval if matters else max(settings.interval, settings.rest)
        now = self.clock()
        if now - self._last < interval - SLACK:
            return False
        self._last = now
        return True
