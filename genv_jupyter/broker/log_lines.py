"""Lines for the log that many calls write: many at once, beside whoever has something to say.

Every call that ``logging`` is asked to write by itself costs the broker as much as answering one.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from genv_jupyter.ledger.backlog import Backlog

T = TypeVar("T")
GATHER = 0.05
"""Seconds for which lines are gathered: what a broker that is killed has not written."""

WAITING = 100_000
BATCH = 1000
CLOSE_SECONDS = 2.0


class LogLines(Generic[T]):
    """Writes lines to a log, each as what was said is put into words.

    Parameters
    ----------
    line
        Puts something into words, on one line.
    """

    def __init__(self, log: logging.Logger, line: Callable[[T], str]) -> None:
        self.log = log
        self.line = line
        self._backlog: Backlog[T] = Backlog(WAITING)
        self._lost = 0
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def say(self, what: T) -> None:
        """Have it written soon; it is lost, and that is said, where the log takes nothing."""
        if self._thread is None:
            self._start()
        if not self._backlog.put(what):
            self._lost += 1

    def flush(self) -> None:
        """Wait for some seconds at most until what was said is written."""
        self._backlog.join(CLOSE_SECONDS)

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._write, name="log", daemon=True)
                self._thread.start()
                atexit.register(self.flush)

    def _write(self) -> None:
        while (said := self._backlog.take(BATCH, lambda: time.sleep(GATHER))) is not None:
            if said:
                self.log.info("%s", "\n".join(map(self.line, said)))
            if self._lost:
                self.log.warning("%d lines were lost: the log took none", self._lost)
                self._lost = 0
            self._backlog.done()


class EachLine(logging.Formatter):
    """Puts its beginning before each line of a message: the journal takes each for itself."""

    def format(self, record: logging.LogRecord) -> str:
        first, *others = super().format(record).split("\n")
        return "\n".join((first, *(f"{record.levelname} {line}" for line in others)))
