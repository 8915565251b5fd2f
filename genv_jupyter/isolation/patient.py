"""Reading those files of ``/proc`` that may never answer: none of them may hold up the broker.

``environ`` and ``maps`` of a process wait for its memory map, which is locked for as long as a
process hangs in a driver, on a network disk, or on a file system of its user's own making. Whoever
reads them is caught there, and only there: each read is a thread's that nobody waits for longer
than a moment.
"""

from __future__ import annotations

import os
import threading
from queue import SimpleQueue

MOMENT = 0.25
"""Seconds that a file may take; otherwise what it says is unknown, until it has been read."""

MOST_CAUGHT = 32
"""Threads that may be caught; with that many of them nothing more is read."""


class _Job:
    """One read, and what came of it (``None``: nothing)."""

    def __init__(self, path: str, most: int) -> None:
        self.path, self.most = path, most
        self.found: bytes | None = None
        self.over = threading.Event()

    def run(self) -> None:
        try:
            with open(self.path, "rb") as file:  # noqa: PTH123 (Path.open costs twice)
                self.found = file.read(self.most)
        except OSError:  # it has ended, or is hidden from us
            pass
        finally:
            self.over.set()


class Reader:
    """Reads, one file after the other, by a thread that is replaced when it is caught."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: SimpleQueue[_Job | None] | None = None
        self._caught: dict[str, _Job] = {}
        self._process = 0

    def read(self, path: str, most: int) -> bytes | None:
        """Return the beginning of a file; ``None`` where it cannot be read now."""
        with self._lock:
            if self._process != os.getpid():  # a forked child has none of our threads
                self._process, self._jobs, self._caught = os.getpid(), None, {}
            self._caught = {at: job for at, job in self._caught.items() if not job.over.is_set()}
            if path in self._caught or len(self._caught) >= MOST_CAUGHT:
                return None
            if self._jobs is None:
                self._jobs = SimpleQueue()
                threading.Thread(target=_work, args=(self._jobs,), daemon=True).start()
            job = _Job(path, most)
            self._jobs.put(job)
            if not job.over.wait(MOMENT):
                self._caught[path] = job
                self._jobs.put(None)  # the thread ends, should it ever get there
                self._jobs = None
            return job.found

    def waits_for(self, path: str) -> bool:
        """Say whether a file has not been read yet: what it says is not known."""
        job = self._caught.get(path)
        return job is not None and not job.over.is_set()


def _work(jobs: SimpleQueue[_Job | None]) -> None:
    while (job := jobs.get()) is not None:
        job.run()


_reader = Reader()


def read(path: str, most: int) -> bytes | None:
    """Return the beginning of a file of ``/proc``; ``None`` where it cannot be read now."""
    return _reader.read(path, most)


def waits_for(path: str) -> bool:
    """Say whether a file of ``/proc`` has not been read yet, though somebody wanted to."""
    return _reader.waits_for(path)
