"""One thread for all verbs, shared fairly: whoever sends many calls waits for their own."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
Job = tuple["asyncio.Future[Any]", Callable[[], Any]]

MOST = 4
"""Calls that are taken, and answered, at once: two threads that hand over every single call spend
a third of their time on that. More at once answer all of them later."""

SECONDS = 0.004
"""For which an answer waits at most for the calls that were taken with it."""


class FairPool:
    """Runs calls of one event loop one after the other, one of each caller in turn."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[Job]] = OrderedDict()
        self._changed = threading.Condition()
        self._ending = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._answers: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._told = False
        self._open = 0
        self._timer: asyncio.TimerHandle | None = None
        self._thread = threading.Thread(target=self._work, name="verbs", daemon=True)
        self._thread.start()

    def run(self, call: Callable[[], T], who: str = "") -> asyncio.Future[T]:
        """Run a call when it is its caller's turn; called on the event loop."""
        self._loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = self._loop.create_future()
        with self._changed:
            if self._ending:
                raise RuntimeError("the broker is leaving")
            self._waiting.setdefault(who, deque()).append((future, call))
            self._changed.notify()
        self._open += 1
        self._look_later()
        return future

    def shutdown(self) -> None:
        """Run what waits, and end."""
        with self._changed:
            self._ending = True
            self._changed.notify()
        self._thread.join()

    # -- in the thread --------------------------------------------------------------------------

    def _next(self) -> list[Job]:
        """Take some calls, one of each caller in turn; none when it is over."""
        with self._changed:
            while not self._waiting:
                if self._ending:
                    return []
                self._changed.wait()
            jobs: list[Job] = []
            while self._waiting and len(jobs) < MOST:
                who, mine = self._waiting.popitem(last=False)
                jobs.append(mine.popleft())
                if mine:
                    self._waiting[who] = mine  # behind everybody else
            return jobs

    def _work(self) -> None:
        while jobs := self._next():
            for future, call in jobs:
                try:
                    result = None if future.cancelled() else call()
                    self._answers.append((future, result, None))
                except BaseException as error:
                    self._answers.append((future, None, error))
            self._hand_over()

    def _hand_over(self) -> None:
        if self._loop is not None and self._answers and not self._told:
            self._told = True
            self._loop.call_soon_threadsafe(self._deliver)

    # -- on the event loop ----------------------------------------------------------------------

    def _deliver(self) -> None:
        self._told = False  # first: what comes after the last one below is told of anew
        while self._answers:
            future, result, error = self._answers.popleft()
            self._open -= 1
            if future.done():
                continue  # its caller has left
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

    def _look_later(self) -> None:
        """Have what is answered by then delivered: the call after it may be a long one."""
        if self._timer is None and self._loop is not None:
            self._timer = self._loop.call_later(SECONDS, self._look)

    def _look(self) -> None:
        self._timer = None
        self._deliver()
        if self._open:
            self._look_later()
