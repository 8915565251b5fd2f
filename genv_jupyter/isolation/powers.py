"""What a broker may do to processes that are not its own children: what it may as itself.

The broker of a user does it itself, and so does a host's that runs as root. Otherwise the root
helper does it for it (``genv_jupyter.rootd.client``).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from genv_jupyter.isolation import evidence, patient, processes
from genv_jupyter.isolation.mps import Daemons, Post

log = logging.getLogger(__name__)


class Powers:
    """What this process may do itself."""

    helper = False
    """Whether a root helper does it."""

    def variable(self, pid: int, name: str) -> str | None:
        """Return a variable of a process: a claim, and no proof; ``None``: it is not known."""
        found = processes.variables(pid, (name,), patient.read)
        return None if found is None else found[name]

    def unsure(self, pid: int, start: int) -> bool:
        """Say whether it is not known yet what a process's variables say."""
        return processes.hangs(pid)

    def uids(self, pid: int) -> tuple[int, ...] | None:
        """Return real, effective, saved and file-system uid of a process."""
        return evidence.uids(pid)

    def runs_cuda(self, pid: int) -> bool:
        """Say whether a process has CUDA, as far as that can be seen."""
        return evidence.runs_cuda(pid)

    def of_driver(self, pid: int) -> bool:
        """Say whether a process runs one of the driver's own programs."""
        return evidence.of_driver(pid)

    def claims(self, pid: int) -> bool:
        """Say whether a process carries the name of an environment, or may."""
        return evidence.claims(pid)

    def send(self, pid: int, start: int | None, number: int, *, uid: int | None) -> bool:
        """Signal that very process, of that user; say whether that was done."""
        try:
            return processes.send(pid, start, number)
        except PermissionError:
            log.warning("process %d of uid %s is not ours to signal", pid, uid)
            return False

    def order(self, pid: int, start: int | None, number: int, *, uid: int | None) -> None:
        """Signal that very process, and do not wait for what comes of it."""
        self.send(pid, start, number, uid=uid)

    def daemons(
        self,
        directory: Path,
        needs: Callable[[], Mapping[Post, int]],
        program: str,
        steady: Callable[[], float],
    ) -> Daemons:
        """Return the MPS daemons of a broker; ``directory`` is where its own are."""
        return Daemons(directory, needs, program, steady)

    def sets_modes(self) -> bool:
        """Say whether compute modes can be set."""
        return os.geteuid() == 0
