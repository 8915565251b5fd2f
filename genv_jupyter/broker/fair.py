"""One thread for all verbs, shared fairly: whoever sends many calls waits for their own."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

T = TypeVar("T")
Job = tuple[Future[Any], Callable[[], Any]]


class FairPool(Executor):
    """Runs calls one after the other, one of each caller in turn."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[Job]] = OrderedDict()
        self._changed = threading.Condition()
        self._ending = False
        self._thread = threading.Thread(target=self._work, name="verbs", daemon=True)
        self._thread.start()

    def submit_for(self, who: str, call: Callable[[], T]) -> Future[T]:
        """Run a call when it is its caller's turn."""
        future: Future[T] = Future()
        with self._changed:
            if self._ending:
                raise RuntimeError("the broker is leaving")
            self._waiting.setdefault(who, deque()).append((future, call))
            self._changed.notify()
        return future

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run a call of the broker's own."""
        return self.submit_for("", lambda: fn(*args, **kwargs))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Run what waits, and end."""
        with self._changed:
            self._ending = True
            self._changed.notify()
        if wait:
            self._thread.join()

    def _next(self) -> Job | None:
        with self._changed:
            while not self._waiting:
                if self._ending:
                    return None
                self._changed.wait()
            who, jobs = self._waiting.popitem(last=False)
            job = jobs.popleft()
            if jobs:
                self._waiting[who] = jobs  # behind everybody else
            return job

    def _work(self) -> None:
        while (job := self._next()) is not None:
            future, call = job
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)
