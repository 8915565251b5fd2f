"""Turns: on shared devices, one environment at a time runs what it says should run alone.

``with genv_jupyter.turn():`` waits for the turn, in the order of arrival, and gives it up at the
end of the block. The turn is the environment's: within one, in another thread or in a child, a
further one comes at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec

from genv_jupyter.api.client import Client
from genv_jupyter.api.connection import Stream
from genv_jupyter.errors import BrokerDown, Conflict, UnknownEnvironment
from genv_jupyter.isolation.environ import MARKER
from genv_jupyter.kernel import pids
from genv_jupyter.kernel.turn_view import Line, behind
from genv_jupyter.model import Environment
from genv_jupyter.turns import Turn
from genv_jupyter.units import format_duration, parse_duration

if TYPE_CHECKING:
    import asyncio

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
LOOK = 0.25
TRIES = 5
"""Times in a row that a broker may not be reached, before the line is left."""

Told = Callable[[Turn], None]


class turn:  # noqa: N801 (read as a word: `with turn():`)
    """Run a block when this environment's turn on its shared devices has come.

    For ``with``, and for ``async with`` where something else may go on meanwhile: a cell that
    awaits can be interrupted only so. Where there is nothing to wait for (no grant, whole devices)
    the block runs at once.

    Parameters
    ----------
    timeout
        How long to wait at most: seconds, or text such as ``5m``, ``2h30m``.

    Raises
    ------
    BadRequest, OutOfRange
        That is no duration.
    Conflict
        On entering: the turn has not come in time; who has it is said.
    GpuError
        On entering: the broker refused, or cannot be reached.
    """

    def __init__(self, timeout: float | str | None = None) -> None:
        self.seconds: int | None = None
        if timeout is not None:
            if isinstance(timeout, int | float) and math.isfinite(timeout):
                timeout = math.ceil(timeout)
            self.seconds = parse_duration(timeout if isinstance(timeout, int) else str(timeout))
        self._entered: list[contextlib.ExitStack] = []

    def __enter__(self) -> None:
        self._entered.append(self._enter(threading.Event()))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._entered.pop().close()

    async def __aenter__(self) -> None:
        import asyncio

        stopped = threading.Event()
        entering = asyncio.create_task(asyncio.to_thread(self._enter, stopped))
        try:
            # In short steps: an interrupt cancels the task of a cell, and does not wake the loop.
            while not entering.done():
                await asyncio.wait([entering], timeout=LOOK)
        except asyncio.CancelledError:
            stopped.set()
            entering.add_done_callback(_undo)
            _holding().wake()
            raise
        self._entered.append(entering.result())

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._entered.pop().close()

    def _enter(self, stopped: threading.Event) -> contextlib.ExitStack:
        """Wait for the turn; return what ends it."""
        client = Client()
        environment = environment_here(client)
        with contextlib.ExitStack() as stack:
            if environment is not None:
                line = stack.enter_context(Line(client))

                def told(how: Turn) -> None:
                    if stopped.is_set():
                        raise _Stopped
                    line.tell(how)

                stack.enter_context(held(client, environment.id, timeout=self.seconds, told=told))
                line.ready()
            return stack.pop_all()


class _Stopped(Exception):
    """Nobody waits any more for what a thread waits for."""


def _undo(entering: asyncio.Task[contextlib.ExitStack]) -> None:
    """Give up what has come too late."""
    if not entering.cancelled() and entering.exception() is None:
        entering.result().close()


@contextlib.contextmanager
def held(
    client: Client, environment: str, *, timeout: float | None = None, told: Told
) -> Iterator[None]:
    """Hold the turn of an environment for a block; ``told`` hears how the waiting goes."""
    holding, token = _holding(), object()
    try:
        with holding.gate:
            first = not holding.users
            holding.users.add(token)  # first: whatever is interrupted from here on is given up
            if first:
                holding.take(client, environment, timeout, told)
        yield
    finally:
        try:
            holding.drop(token)
        except KeyboardInterrupt:
            holding.drop(token)
            raise


class Holding:
    """What this process has of a turn: the stream and the locks, and how many blocks use it."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.gate = threading.Lock()
        self.users: set[object] = set()
        self.stream: Stream | None = None
        self.locks: list[int] = []
        self.waiting = False

    def take(self, client: Client, environment: str, timeout: float | None, told: Told) -> None:
        """Wait for the turn, through restarts of the broker; the place in line is kept."""
        self.waiting = True
        try:
            self._take(client, environment, timeout, told)
        finally:
            self.waiting = False

    def _take(self, client: Client, environment: str, timeout: float | None, told: Told) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        since: datetime | None = None
        failed, pause = 0, FIRST_PAUSE
        while True:
            left = None if deadline is None else deadline - time.monotonic()
            try:
                self.stream = client.turn(environment, timeout=left, since=since)
                last = self._wait(self.stream, told)
            except BrokerDown:
                last, failed = None, failed + 1
                if failed >= TRIES:
                    raise
            if last is not None:
                failed, pause = 0, FIRST_PAUSE
            if last is not None and last.state == "yours" and self._lock(last.locks):
                return
            self.give_up()
            if last is not None and since is None:
                since = last.since
            if (last is not None and last.state == "late") or (left is not None and left <= 0):
                raise _late(last, timeout or 0)
            time.sleep(pause)  # the broker is gone: the first who comes starts another
            pause = min(2 * pause, LONGEST_PAUSE)

    def _wait(self, stream: Stream, told: Told) -> Turn | None:
        """Return the last that the broker has said: that it is our turn, or before it was gone."""
        last: Turn | None = None
        while line := stream.read_line():
            last = msgspec.json.decode(line, type=Turn)
            if last.state != "waiting":
                break
            told(last)
        return last

    def _lock(self, paths: tuple[str, ...]) -> bool:
        """Lock what says to every broker that the turn is taken; false: somebody else has it."""
        for path in paths:
            try:
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                descriptor = os.open(path, flags, 0o600)
                self.locks.append(descriptor)
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.utime(descriptor)  # since when
            except (BlockingIOError, PermissionError):
                return False
            except OSError:
                # Another container, a full disk, no locks there: this broker knows all the same.
                continue
        return True

    def keep_through_exec(self) -> None:
        """Let the turn go over to the program that this process is about to become."""
        if self.stream is not None:
            for descriptor in (self.stream.fileno(), *self.locks):
                os.set_inheritable(descriptor, True)

    def drop(self, token: object) -> None:
        """End the use by one block; with the last one the turn is given up."""
        with self.gate:
            self.users.discard(token)
            if not self.users:
                self.give_up()

    def wake(self) -> None:
        """Have whoever waits here, in another thread, look up."""
        stream = self.stream
        if self.waiting and stream is not None:
            stream.close()

    def give_up(self) -> None:
        """Hand the turn over, or leave the line."""
        while self.locks:
            with contextlib.suppress(OSError):
                os.close(self.locks.pop())
        stream, self.stream = self.stream, None
        if stream is not None:
            stream.close()


_current = Holding()


def _holding() -> Holding:
    """Return what this process has; a forked child has nothing of its parent's."""
    global _current
    if _current.pid != os.getpid():
        _current = Holding()
    return _current


def environment_here(client: Client) -> Environment | None:
    """Return the environment of this process: its own, or that of the command it is part of."""
    found: Environment | None = None
    shell: Any = None
    if "IPython" in sys.modules:
        shell = sys.modules["IPython"].get_ipython()
    if shell is not None:
        from genv_jupyter.kernel.session import Session

        session = getattr(getattr(shell.find_line_magic("gpu"), "__self__", None), "session", None)
        found = (session or Session(shell, client)).environment()
    marker = os.environ.get(MARKER)
    if found is None and marker:
        with contextlib.suppress(UnknownEnvironment):
            found = client.environment(marker)
    return found or pids.find(client)


def _late(last: Turn | None, timeout: float) -> Conflict:
    who = "" if last is None else behind(last)
    return Conflict(
        f"The turn did not come within {format_duration(timeout)}{': ' + who if who else ''}.",
        hint="Wait longer (`--timeout 30m`), or ask whoever has it.",
        details={"timeout": timeout},
    )
