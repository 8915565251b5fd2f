"""Threads for verbs that may wait for programs: nobody gets so many that others get none."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")
Job = tuple["Future[Any]", Callable[[], Any]]


class PatientPool:
    """Runs calls side by side, a few of each caller at once; the rest wait for their own.

    Parameters
    ----------
    threads
        Calls that run at once.
    of_one
        How many of them may be of one caller. A call whose caller has left counts until it ends.
    """

    def __init__(self, threads: int, of_one: int) -> None:
        self.of_one = of_one
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="patient")
        self._inside: Counter[str] = Counter()
        self._waiting: dict[str, deque[Job]] = {}
        self._changed = threading.Condition()

    def run(self, call: Callable[[], T], who: str = "") -> asyncio.Future[T]:
        """Run a call as soon as its caller may have another one; called on the event loop."""
        future: Future[T] = Future()
        with self._changed:
            if self._inside[who] < self.of_one:
                self._inside[who] += 1
                self._threads.submit(self._work, who, (future, call))
            else:  # who calls and leaves, time and again, does not fill it
                left = (it for it in self._waiting.get(who, ()) if not it[0].cancelled())
                self._waiting[who] = deque([*left, (future, call)])
        return asyncio.wrap_future(future)

    def shutdown(self) -> None:
        """Run what waits, and end."""
        with self._changed:
            self._changed.wait_for(lambda: not self._inside)
        self._threads.shutdown()

    # -- in a thread ----------------------------------------------------------------------------

    def _work(self, who: str, job: Job) -> None:
        """Run a call, then have the next one of its caller wait behind everybody else's."""
        future, call = job
        try:
            if future.set_running_or_notify_cancel():
                _answer(future, call)
        finally:
            with self._changed:
                mine = self._waiting.get(who)
                if mine:
                    self._threads.submit(self._work, who, mine.popleft())
                else:
                    self._waiting.pop(who, None)
                    self._inside[who] -= 1
                    if not self._inside[who]:
                        del self._inside[who]
                    self._changed.notify_all()


def _answer(future: Future[Any], call: Callable[[], Any]) -> None:
    try:
        result = call()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
