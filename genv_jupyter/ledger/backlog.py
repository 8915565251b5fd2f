"""What waits to be written: who adds to it never waits, and who writes takes much at once."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Backlog(Generic[T]):
    """Items on their way to one thread. Any thread may add some, for less than a lock costs.

    Parameters
    ----------
    most
        How many may wait.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._items: deque[T] = deque()
        self._filled = threading.Event()
        self._ended = False
        self._busy = False
        self._idle = threading.Condition()

    def put(self, item: T) -> bool:
        """Add an item; false when too many wait."""
        if len(self._items) >= self.most:
            return False
        self._items.append(item)
        if not self._filled.is_set():
            self._filled.set()
        return True

    def take(self, most: int, gather: Callable[[], object]) -> list[T] | None:
        """Wait for items, and return the first of them; ``None`` at the end.

        ``gather`` is called once there are some: while it waits more may come. ``done`` is to be
        called for what was returned.
        """
        self._filled.wait()
        gather()
        self._busy = True
        if not self._ended:
            self._filled.clear()  # first: what comes from now on is told of anew
        taken = [self._items.popleft() for _ in range(min(most, len(self._items)))]
        if self._items:
            self._filled.set()
        return None if self._ended and not taken else taken

    def done(self) -> None:
        """Say that what was taken has been written."""
        with self._idle:
            self._busy = False
            self._idle.notify_all()

    def begin(self) -> None:
        """Go on after an end."""
        self._ended = False

    def end(self) -> None:
        """Have the end come after what waits."""
        self._ended = True
        self._filled.set()

    def join(self, seconds: float | None = None) -> None:
        """Wait until all is written that waits now, or for so many seconds."""
        with self._idle:
            self._idle.wait_for(lambda: not self._items and not self._busy, seconds)
