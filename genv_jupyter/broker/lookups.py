"""Questions that may wait for a network, asked beside what is going on."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

log = logging.getLogger("genv_jupyter.broker")
Question = tuple[str, "Answer", Callable[[], Any]]


class Answer(Future[Any]):
    """What comes of a question. One who has waited for it for long enough does not wait again."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = time.monotonic()

    def left(self, seconds: float) -> float:
        """Return what is left of so many seconds since the question."""
        return max(0.0, seconds - (time.monotonic() - self.asked))


class Lookups:
    """Asks each question once at a time, and so many at once; the rest wait in line.

    Its threads end with the questions, and keep no process from ending: they may hang.

    Parameters
    ----------
    at_once
        Questions at a time.
    """

    def __init__(self, at_once: int) -> None:
        self.at_once = at_once
        self._asking: dict[str, Answer] = {}
        self._waiting: deque[Question] = deque()
        self._threads = 0
        self._lock = threading.Lock()

    def begin(self, key: str, ask: Callable[[], Any]) -> Answer:
        """Ask, unless that is being asked already; the answer comes to all who have begun it."""
        with self._lock:
            answer = self._asking.get(key)
            if answer is None:
                answer = self._asking[key] = Answer()
                answer.set_running_or_notify_cancel()  # one who leaves takes nobody's answer along
                self._waiting.append((key, answer, ask))
            if self._waiting and self._threads < self.at_once:
                self._start()
            return answer

    def _start(self) -> None:
        """Start a thread; where the host allows none now, the next call tries again."""
        try:
            threading.Thread(target=self._work, name="look-up", daemon=True).start()
        except RuntimeError as error:
            log.warning("no thread for a look-up: %s", error)
        else:
            self._threads += 1

    def _work(self) -> None:
        while (question := self._next()) is not None:
            key, answer, ask = question
            try:
                found, error = ask(), None
            except Exception as problem:  # whoever waits has it
                found, error = None, problem
            with self._lock:
                del self._asking[key]
            if error is None:
                answer.set_result(found)
            else:
                answer.set_exception(error)

    def _next(self) -> Question | None:
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            self._threads -= 1
            return None
