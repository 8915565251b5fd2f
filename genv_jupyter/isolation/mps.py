"""The MPS control daemons: one for each device and user that is shared, while it is shared.

Nothing here is called on an event loop, inside a transaction, or under the broker's lock: every
step runs a program. The question which devices need a daemon is asked while the daemon's own lock
is held, so that an answer is never older than what is done about it: who takes both locks takes
the daemon's first.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from genv_jupyter.isolation import processes
from genv_jupyter.isolation.mps_control import PROGRAM, ControlDaemon, MpsBusy, MpsError
from genv_jupyter.isolation.mps_runner import name_of

log = logging.getLogger(__name__)

GRACE = 30.0
"""Seconds for which a daemon stays after its last grant: the next one often comes at once."""

TRIES = 5
"""Starts that may fail in a row before a daemon is given up."""

FIRST_PAUSE = 1.0
"""Seconds between the first failure and the next try; each further pause is twice as long."""

HEALTH = 30.0
"""Seconds between two questions to a daemon that lives (k8s-device-plugin asks as often): each
question is a program, and some lines in the daemon's log."""


class Post(NamedTuple):
    """Where a daemon serves: a device, by its UUID, and the user whose processes work there."""

    device: str
    uid: int


class Daemon(Struct):
    """What is known of one daemon.

    ``ceiling`` is the most memory that one client may have, in bytes. ``trouble`` says why it does
    not run, ``given_up`` that nobody tries again by itself. ``unused_since`` is on the steady
    clock; ``None`` while a grant needs it.
    """

    control: ControlDaemon
    pid: int | None = None
    start: int | None = None
    asked_at: float = float("-inf")
    ceiling: int = 0
    failures: int = 0
    retry_at: float = 0.0
    trouble: str | None = None
    unused_since: float | None = None

    @property
    def given_up(self) -> bool:
        return self.failures >= TRIES


class Daemons:
    """Starts, watches, adopts and ends daemons: each as its user, which needs root for others'.

    Parameters
    ----------
    directory
        A directory of the broker's, for this boot and this pid namespace; users whose daemons are
        there must be able to reach what they have in it.
    needs
        Returns the posts whose daemons are needed at this moment, each with the most memory
        that a client there may have, in bytes. Called with a lock held that it must not wait for.
    program
        The program of the daemons.
    steady
        Seconds on a clock that nobody turns.

    Attributes
    ----------
    ours
        Whether they are the broker's own.
    """

    ours = True

    def __init__(
        self,
        directory: Path,
        needs: Callable[[], Mapping[Post, int]],
        program: str = PROGRAM,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self.directory = directory
        self.needs = needs
        self.program = program
        self.steady = steady
        self._daemons: dict[Post, Daemon] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._guard = threading.Lock()

    def missing(self) -> str | None:
        """Say why no daemon can be had on this host; ``None`` if one can."""
        if shutil.which(self.program) is None:
            return f"{self.program} is not installed"
        return None

    def path(self, post: Post) -> Path:
        """Return the pipe directory of a post: short, for sockets have short paths."""
        return self.directory / name_of(post.device, post.uid)

    def trouble(self, post: Post) -> str | None:
        """Say why a daemon does not run; ``None`` where it does, or was not asked."""
        daemon = self._daemons.get(post)
        return None if daemon is None else daemon.trouble

    def given_up(self, post: Post) -> bool:
        """Say whether a daemon failed so often that it is not tried any more."""
        daemon = self._daemons.get(post)
        return daemon is not None and daemon.given_up

    def running(self, device: str | None = None) -> tuple[Post, ...]:
        """Return the posts whose daemons are in use or may soon be again; those of a device."""
        return tuple(
            post
            for post, daemon in list(self._daemons.items())
            if daemon.trouble is None and device in (None, post.device)
        )

    def owns(self, pid: int) -> bool:
        """Say whether a process is one of these daemons, or a server of one."""
        ours = {(it.pid, it.start) for it in list(self._daemons.values()) if it.pid is not None}
        return bool(ours) and any(found in ours for found in processes.ancestors(pid))

    def control(self, post: Post) -> ControlDaemon:
        """Return how to ask the daemon of a post, whether it runs or not."""
        return ControlDaemon(self.path(post), post.device, self.program, post.uid)

    # -- changes --------------------------------------------------------------------------------

    def ensure(self, post: Post) -> ControlDaemon:
        """Return the daemon of a post, running, with the ceiling that is needed now.

        Raises
        ------
        MpsError
            It does not run, and why; after a failure it is not tried again at once.
        """
        with self._locked(post):
            ceiling = self.needs().get(post)
            if ceiling is None:
                raise MpsError("no grant needs MPS there any more")
            daemon = self._daemon(post)
            daemon.unused_since = None
            now = self.steady()
            if daemon.trouble is not None and (daemon.given_up or now < daemon.retry_at):
                raise MpsError(daemon.trouble)
            try:
                self._start(daemon, ceiling)
            except MpsError as error:
                self._failed(post, daemon, str(error))
                raise MpsError(daemon.trouble or str(error)) from error
            return daemon.control

    def stop(self, post: Post) -> None:
        """End a daemon now, unless it is needed: somebody wants all of it.

        Raises
        ------
        MpsError
            Processes still work through it, or it does not end.
        """
        with self._locked(post):
            if post not in self.needs():
                _end(self.control(post))
                self._daemons.pop(post, None)

    def renew(self, post: Post) -> None:
        """Start a daemon anew whose server works no more, and that no process works through.

        Raises
        ------
        MpsBusy
            Processes work through it.
        MpsError
            It does not start again.
        """
        with self._locked(post):
            daemon = self._daemons.get(post)
            if daemon is None:
                return
            try:
                _end(daemon.control)
            except MpsBusy:
                raise
            except MpsError as error:
                log.warning("%s: %s; it is killed", post.device, error)
                daemon.control.kill()
            self._daemons.pop(post)
        if post in self.needs():
            self.ensure(post)

    def adopt(self) -> None:
        """Take over what a dead broker has left: the daemons that are needed; end the others."""
        for post in self.needs():
            with contextlib.suppress(MpsError):  # kept as its trouble
                self.ensure(post)
        for control in self.left():
            with self._lock_of(control.directory.name):
                if control.directory in map(self.path, [*self.needs(), *list(self._daemons)]):
                    continue
                try:
                    _end(control)
                except MpsError as error:
                    log.warning("an MPS daemon that no grant needs stays: %s", error)

    def left(self) -> list[ControlDaemon]:
        """Return how to ask each daemon that has a directory here."""
        found = sorted(self.directory.iterdir()) if self.directory.is_dir() else []
        return [
            ControlDaemon(path, "", self.program, path.lstat().st_uid)
            for path in found
            if path.is_dir()
        ]

    def runs_as(self, uid: int) -> bool:
        """Say whether daemons can be run as a user."""
        return os.getuid() in (0, uid)

    def round(self) -> None:
        """Look at every daemon: end what nobody needs, start again what has died.

        A ceiling that is higher than any grant needs now is lowered too.
        """
        for post, daemon in list(self._daemons.items()):
            try:
                if self._idle(post, daemon):
                    continue
                ceiling = daemon.ceiling if daemon.trouble is None else None
                if not self._well(daemon) or ceiling not in (None, self.needs().get(post)):
                    self.ensure(post)
            except MpsError as error:
                log.warning("MPS on %s: %s", post.device, error)

    # -- parts ----------------------------------------------------------------------------------

    def _idle(self, post: Post, daemon: Daemon) -> bool:
        """Say whether no grant needs a daemon, and end it once that has been so for a while."""
        with self._locked(post):
            if post in self.needs():
                daemon.unused_since = None
                return False
            if daemon.unused_since is None:
                daemon.unused_since = self.steady()
            # What does not run is remembered: another grant need not wait for that again.
            if daemon.trouble is None and self.steady() - daemon.unused_since >= GRACE:
                _end(daemon.control)
                self._daemons.pop(post, None)
            return True

    def _start(self, daemon: Daemon, ceiling: int) -> None:
        control = daemon.control
        control.start()
        pid = control.pid()
        start = None if pid is None else processes.start_of(pid)
        if (pid, start, ceiling) != (daemon.pid, daemon.start, daemon.ceiling):
            control.set_ceiling(ceiling)
        daemon.pid, daemon.start, daemon.ceiling = pid, start, ceiling
        daemon.asked_at, daemon.failures, daemon.trouble = self.steady(), 0, None

    def _well(self, daemon: Daemon) -> bool:
        """Say whether nothing is to be done for a daemon now."""
        now = self.steady()
        if daemon.trouble is not None:
            return daemon.given_up or now < daemon.retry_at
        if daemon.pid is None or not processes.alive(daemon.pid, daemon.start):
            log.warning("an MPS daemon has died: %s", daemon.control.last_words())
            return False
        if now - daemon.asked_at < HEALTH:
            return True
        daemon.asked_at = now
        if daemon.control.healthy():
            return True
        log.warning("an MPS daemon does not answer and is replaced (pid %d)", daemon.pid)
        daemon.control.kill()
        return False

    def _failed(self, post: Post, daemon: Daemon, why: str) -> None:
        daemon.failures += 1
        daemon.retry_at = self.steady() + FIRST_PAUSE * 2 ** (daemon.failures - 1)
        daemon.trouble = f"MPS does not run on this device: {why}."
        if daemon.given_up:
            daemon.trouble += f" It was tried {TRIES} times and is given up."
        log.warning("%s: %s", post.device, daemon.trouble)

    def _daemon(self, post: Post) -> Daemon:
        daemon = self._daemons.get(post)
        if daemon is None:
            daemon = self._daemons[post] = Daemon(control=self.control(post))
        return daemon

    def _locked(self, post: Post) -> threading.Lock:
        """Hold a post: two callers start one daemon, and different ones do not wait."""
        return self._lock_of(self.path(post).name)

    def _lock_of(self, name: str) -> threading.Lock:
        with self._guard:
            return self._locks.setdefault(name, threading.Lock())


def _end(control: ControlDaemon) -> None:
    """End a daemon that no process works through, and remove what it leaves."""
    if control.pid() is not None:
        clients = control.clients()
        if clients:
            raise MpsBusy(f"processes still work through it: {', '.join(map(str, clients))}")
        control.quit()
    control.remove()
