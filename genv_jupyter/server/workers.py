"""Threads for what may hang: calls to the broker never run on an event loop."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


class Workers:
    """A few daemon threads that run jobs.

    Unlike those of ``ThreadPoolExecutor`` they do not hold up the end of the process: a broker
    that hangs must not keep a Jupyter server from leaving.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = (
            queue.SimpleQueue()
        )
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Callable[[], T]) -> Future[T]:
        """Run a job in one of the threads."""
        future: Future[T] = Future()
        self._jobs.put((future, job))
        return future

    def close(self) -> None:
        """Let the threads end after the jobs that are there."""
        for _ in self._threads:
            self._jobs.put(None)

    def _work(self) -> None:
        while (item := self._jobs.get()) is not None:
            _run(*item)


class Lanes:
    """Jobs of one key run in their order, those of different keys side by side."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[tuple[Future[Any], Callable[[], Any]]]] = {}

    def submit(self, key: str, job: Callable[[], T]) -> Future[T]:
        """Run a job after those of the same key."""
        future: Future[T] = Future()
        with self._lock:
            lane = self._waiting.get(key)
            if lane is not None:
                lane.append((future, job))
                return future
            self._waiting[key] = deque([(future, job)])
        self._workers.submit(partial(self._drain, key))
        return future

    def _drain(self, key: str) -> None:
        while True:
            with self._lock:
                lane = self._waiting[key]
                if not lane:
                    del self._waiting[key]
                    return
                future, job = lane.popleft()
            _run(future, job)


async def heard(future: Future[Any], seconds: float) -> BaseException | None:
    """Wait for a job for so long at most; return its error, and never raise one."""
    waiting = asyncio.wrap_future(future)
    # Also one that fails after this has stopped waiting is no "exception never retrieved".
    waiting.add_done_callback(lambda done: done.cancelled() or done.exception())
    await asyncio.wait({waiting}, timeout=seconds)
    return waiting.exception() if waiting.done() and not waiting.cancelled() else None


def _run(future: Future[T], job: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = job()
    except BaseException as error:  # whoever waits for the future gets it
        future.set_exception(error)
    else:
        future.set_result(result)
