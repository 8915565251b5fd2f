"""What the root helper does for a broker that has no rights itself.

What is asked under the broker's lock is answered from what is known, and asked for the next time:
what belongs to a user can let the helper wait.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec

from genv_jupyter.devices.source import ModeSet
from genv_jupyter.isolation import evidence, processes
from genv_jupyter.isolation.mps import Daemons, Post
from genv_jupyter.isolation.mps_control import ControlDaemon
from genv_jupyter.isolation.mps_runner import ASK_SECONDS, START_SECONDS, MpsError
from genv_jupyter.isolation.powers import Powers
from genv_jupyter.rootd import wire
from genv_jupyter.rootd.client import MARGIN, Client, HelperGone, NotObeyed
from genv_jupyter.rootd.helper import MODE_SECONDS, PIPE

log = logging.getLogger("genv_jupyter.broker")
T = TypeVar("T")

FRESH, SETTLED = 2.0, 5.0
"""Seconds after which a process is looked at anew, while it is younger than the second."""

MOST_KNOWN = 4096


class HelpersRunner:
    """Runs the program of one MPS daemon, as ``mps_runner.Runner`` does, by the helper."""

    def __init__(self, client: Client, device: str, uid: int) -> None:
        self.client = client
        self.whose = {"device": device, "uid": uid}

    def start(self) -> None:
        self._do("start", START_SECONDS + MARGIN)

    def pid(self) -> int | None:
        found = self._do("pid", ASK_SECONDS + MARGIN)
        return found if isinstance(found, int) else None

    def kill(self) -> None:
        self._do("kill", MARGIN)

    def remove(self) -> None:
        self._do("remove", START_SECONDS + MARGIN)

    def ask(self, command: str, seconds: float) -> tuple[int, str]:
        whose = {**self.whose, "command": command}
        said = self._asked(lambda: self.client.ask(wire.MpsSay, seconds=seconds + MARGIN, **whose))
        return msgspec.convert(said, tuple[int, str])

    def log(self, name: str) -> BinaryIO:
        try:
            return self._asked(lambda: self.client.file(wire.MpsLog, name=name, **self.whose))
        except MpsError as error:
            raise OSError(5, str(error)) from error

    def last_words(self) -> str:
        try:
            with self.log("control.log") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - 4096))
                lines = log.read(4096).decode(errors="replace").strip().splitlines()
        except OSError as error:
            return f"no log ({error.strerror})"
        return lines[-1].partition("] ")[2] if lines else "an empty log"

    def _do(self, verb: str, seconds: float) -> Any:
        return self._asked(
            lambda: self.client.ask(wire.Mps, seconds=seconds, verb=verb, **self.whose)
        )

    def _asked(self, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except (HelperGone, NotObeyed) as error:
            raise MpsError(str(error)) from error


class HelpersDaemons(Daemons):
    """As ``Daemons``, but the helper runs them, in its own directory."""

    def __init__(
        self,
        client: Client,
        here: wire.Here,
        needs: Callable[[], Mapping[Post, int]],
        program: str,
        steady: Callable[[], float],
    ) -> None:
        super().__init__(Path(here.room), needs, program, steady)
        self.client = client
        self.here = here

    def missing(self) -> str | None:
        """Say why no daemon can be had on this host."""
        return self.here.missing

    def control(self, post: Post) -> ControlDaemon:
        """Return how to ask the daemon of a post."""
        runner = HelpersRunner(self.client, post.device, post.uid)
        return ControlDaemon(self.path(post), post.device, self.program, post.uid, runner)

    def runs_as(self, uid: int) -> bool:
        """Say whether the helper runs daemons as a user."""
        return uid >= self.here.lowest_uid

    def left(self) -> list[ControlDaemon]:
        """Return how to ask each daemon that has a directory there."""
        try:
            found = msgspec.convert(self.client.ask(wire.MpsLeft), list[tuple[int, str]])
        except (HelperGone, NotObeyed) as error:
            log.warning("which MPS daemons were left is not known: %s", error)
            return []
        return [self.control(Post(device, uid)) for uid, device in found]


class HelperPowers(Powers):
    """What the root helper does for a broker that has no rights itself."""

    helper = True

    def __init__(self, client: Client, here: wire.Here) -> None:
        self.client = client
        self.here = here
        self._seen: dict[tuple[int, int], tuple[float, wire.Seen]] = {}
        self._asked: dict[tuple[int, int], float] = {}

    def variable(self, pid: int, name: str) -> str | None:
        """Return one of the two variables that the helper tells, as far as it has."""
        seen = self._look(pid)
        if seen is None:
            return None
        return {processes.MARKER: seen.environment, PIPE: seen.pipe}[name]

    def unsure(self, pid: int, start: int) -> bool:
        """Say whether the helper has not told of a process yet."""
        return self._look(pid) is None and processes.start_of(pid) == start

    def uids(self, pid: int) -> tuple[int, ...] | None:
        """Return the uids of a process, which anybody may see."""
        return evidence.uids(pid)

    def runs_cuda(self, pid: int) -> bool:
        """Say whether the helper has seen CUDA in a process."""
        seen = self._look(pid)
        return seen is not None and seen.cuda

    def of_driver(self, pid: int) -> bool:
        """Say whether a process runs one of the driver's own programs, or may: it is not known."""
        seen = self._look(pid)
        return seen is None or seen.driver

    def claims(self, pid: int) -> bool:
        """Say whether a process carries the name of an environment, or may."""
        seen = self._look(pid)
        return seen is None or seen.claims

    def send(self, pid: int, start: int | None, number: int, *, uid: int | None) -> bool:
        """Have the helper signal a process of a user."""
        if start is None or uid is None:
            return False
        name = signal.Signals(number).name
        try:
            return bool(self.client.ask(wire.Signal, pid=pid, start=start, uid=uid, signal=name))
        except (HelperGone, NotObeyed) as error:
            log.warning("process %d of uid %d is not signalled: %s", pid, uid, error)
            return False

    def order(self, pid: int, start: int | None, number: int, *, uid: int | None) -> None:
        """Have the helper signal a process; what it refuses is in its log."""
        if start is None or uid is None:
            return
        name = signal.Signals(number).name
        try:
            self.client.submit(wire.Signal, pid=pid, start=start, uid=uid, signal=name)
        except (HelperGone, NotObeyed) as error:
            log.warning("process %d of uid %d is not signalled: %s", pid, uid, error)

    def daemons(
        self,
        directory: Path,
        needs: Callable[[], Mapping[Post, int]],
        program: str,
        steady: Callable[[], float],
    ) -> Daemons:
        """Return the daemons that the helper runs."""
        return HelpersDaemons(self.client, self.here, needs, program, steady)

    def sets_modes(self) -> bool:
        """Say that the helper is asked."""
        return True

    def set_mode(self, uuid: str, mode: str, *, expected: str) -> ModeSet:
        """Have the helper set a compute mode; as ``DeviceSource.set_compute_mode``."""
        fields = {"device": uuid, "mode": mode, "expected": expected}
        try:
            told = self.client.ask(wire.SetMode, seconds=MODE_SECONDS + MARGIN, **fields)
        except (HelperGone, NotObeyed, MpsError) as error:
            return ModeSet(None, str(error))
        found, trouble = msgspec.convert(told, tuple[str | None, str | None])
        return ModeSet(found, trouble)

    # -- what is known of processes ---------------------------------------------------------------

    def _look(self, pid: int) -> wire.Seen | None:
        """Return what is known of a process now, and have it looked at where that is due."""
        start = processes.start_of(pid)
        if start is None:
            return None
        who, now = (pid, start), time.monotonic()
        known = self._seen.get(who)
        if known is not None:
            at, seen = known
            settled = seen.cuda and not seen.driver  # it may become another program
            if now - at < FRESH or (settled and processes.age(start) - (now - at) >= SETTLED):
                return seen
        if now - self._asked.get(who, float("-inf")) >= FRESH:
            self._ask_for(who, now)
        return None if known is None else known[1]

    def _ask_for(self, who: tuple[int, int], now: float) -> None:
        if len(self._seen) >= MOST_KNOWN or len(self._asked) >= MOST_KNOWN:
            self._forget()
        self._asked[who] = now
        try:
            future = self.client.submit(wire.Look, pid=who[0], start=who[1])
        except (HelperGone, NotObeyed):
            return
        future.add_done_callback(lambda done: self._looked(who, done))

    def _looked(self, who: tuple[int, int], done: Future[tuple[Any, list[int]]]) -> None:
        self._asked.pop(who, None)
        if done.exception() is not None:
            return
        value, _ = done.result()
        if value is not None:
            self._seen[who] = time.monotonic(), msgspec.convert(value, wire.Seen)

    def _forget(self) -> None:
        """Forget the processes that have ended."""
        for table in (self._seen, self._asked):
            for who in [who for who in list(table) if not processes.alive(*who)]:
                table.pop(who, None)


def connect(descriptor: int, seconds: float = 10.0) -> HelperPowers:
    """Return what the helper does, from the line that the parent has left us.

    Raises
    ------
    HelperGone
        It does not come, or does not answer.
    """
    os.set_inheritable(descriptor, False)
    client = Client(socket.socket(fileno=descriptor))
    if not client.wait(seconds):
        raise HelperGone("the root helper was not started")
    here = msgspec.convert(client.ask(wire.Hello), wire.Here)
    return HelperPowers(client, here)
