"""The MPS daemon that the operator of a host runs: used where that is configured, never ended.

It may serve several devices, and users one after the other. Neither its limits nor its server are
ours to change: what a client may take is what the client's own variables say.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from genv_jupyter.isolation import processes
from genv_jupyter.isolation.environ import VISIBLE
from genv_jupyter.isolation.mps import HEALTH, TRIES, Daemon, Daemons, Post
from genv_jupyter.isolation.mps_control import ControlDaemon, MpsError, MpsGone
from genv_jupyter.isolation.mps_log import open_log
from genv_jupyter.isolation.mps_runner import Runner

log = logging.getLogger(__name__)

LOGS = "CUDA_MPS_LOG_DIRECTORY"
DEFAULT_LOGS = Path("/var/log/nvidia-mps")
"""Where a daemon logs that was told nothing else (its manual page)."""


class OperatorsRunner(Runner):
    """Runs the front end of a daemon that somebody else has started."""

    def trusts(self, uid: int) -> bool:
        """Believe root, too."""
        return uid in (0, self.uid)

    def still(self, pid: int, uid: int) -> bool:
        """Believe the socket: the process may be hidden from us, and is never ended here."""
        return True

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keep nobody away: the directory is somebody else's."""
        yield


class OperatorsDaemon(ControlDaemon):
    """A daemon that somebody else has started: root, or the user by hand."""

    @property
    def logs(self) -> Path:
        """The directory of its logs, which may be closed to us."""
        pid = self.pid()
        named = None if pid is None else processes.variable(pid, LOGS)
        return DEFAULT_LOGS if named is None else Path(named)

    def log(self, name: str) -> BinaryIO:
        """Open one of its logs."""
        return open_log(self.logs / name)

    def start(self) -> None:
        """Only see that it runs, and for this device."""
        pid = self.pid()
        if pid is None:
            raise MpsGone(f"the operator's MPS daemon does not listen in {self.directory}")
        served = processes.variable(pid, VISIBLE)
        names = [] if served is None else [name.strip().lower() for name in served.split(",")]
        uuids = [name.removeprefix("gpu-") for name in names if name and not name.isdigit()]
        ours = self.device.lower().removeprefix("gpu-")
        # An index says nothing: it counts what the daemon saw when it was started.
        if uuids and len(uuids) == len(names) and not any(map(ours.startswith, uuids)):
            raise MpsError(f"the operator's MPS daemon in {self.directory} does not serve it")
        if not self.healthy():
            raise MpsError(
                f"the operator's MPS daemon in {self.directory} gives no answer that is understood "
                "(does it speak version 3 of its commands? Version 2 is spoken here)"
            )

    def set_ceiling(self, memory: int) -> None:
        """Leave its limits alone."""


class OperatorsDaemons(Daemons):
    """As ``Daemons``, but all posts have the one daemon that the operator runs."""

    ours = False

    def path(self, post: Post) -> Path:
        """Return the directory that clients are given."""
        return self.directory

    def control(self, post: Post) -> ControlDaemon:
        """Return how to ask it about a device."""
        me, device = os.getuid(), post.device
        runner = OperatorsRunner(self.directory, device, self.program, me)
        return OperatorsDaemon(self.directory, device, self.program, me, runner)

    def owns(self, pid: int) -> bool:
        """Say that none of its processes is ours."""
        return False

    def stop(self, post: Post) -> None:
        """Forget that a post needed it."""
        with self._locked(post):
            if post not in self.needs():
                self._daemons.pop(post, None)

    def renew(self, post: Post) -> None:
        """Leave it to NVIDIA's server, which takes new clients when the old ones are gone."""

    def adopt(self) -> None:
        """See that it runs where it is needed; nothing here was left by a broker."""
        for post in self.needs():
            with contextlib.suppress(MpsError):  # kept as its trouble
                self.ensure(post)

    def _idle(self, post: Post, daemon: Daemon) -> bool:
        self.stop(post)
        return post not in self._daemons

    def _well(self, daemon: Daemon) -> bool:
        now = self.steady()
        if daemon.trouble is not None:
            return daemon.given_up or now < daemon.retry_at
        if now - daemon.asked_at < HEALTH:
            return True
        daemon.asked_at = now
        return daemon.control.healthy()

    def _failed(self, post: Post, daemon: Daemon, why: str) -> None:
        super()._failed(post, daemon, why)
        daemon.failures = min(daemon.failures, TRIES - 1)  # the operator may start it at any time
