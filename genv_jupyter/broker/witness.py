"""Whether what should run under MPS does: the processes on a device are asked for at its daemon.

Where a daemon cannot be reached CUDA goes on without MPS, without a word and without limits. So
every process of an MPS grant that uses the device must be a client of our daemon.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from genv_jupyter.broker.posts import post_of
from genv_jupyter.isolation import processes
from genv_jupyter.isolation.environ import MPS_PIPE
from genv_jupyter.isolation.mps import Daemons, Post
from genv_jupyter.isolation.mps_control import MpsError
from genv_jupyter.isolation.mps_log import is_pending
from genv_jupyter.ledger.rows import GrantRow
from genv_jupyter.model import Process

if TYPE_CHECKING:
    from genv_jupyter.broker.core import Core

LONGEST_PAUSE = 32
"""Seconds between two looks at a process that is still no client: each is a program or two."""

_TICKS = os.sysconf("SC_CLK_TCK")
OLDER = (
    "CUDA was initialised in it before MPS was set up, or a cell has changed "
    "CUDA_MPS_PIPE_DIRECTORY. Restart the kernel."
)
PENDING = (
    "the daemon has put it on its pending list: its server is starting, or serves another user."
)
NOT_JOINED = (
    "it has our CUDA_MPS_PIPE_DIRECTORY and is no client of its daemon, which may have been "
    "unreachable when CUDA was initialised. Restart it."
)


Key = tuple[int, int]
"""A process: its pid and its start ticks."""


class Verdict(NamedTuple):
    """What was seen of a grant's processes, and in a sentence what is wrong with them."""

    verified: bool
    cause: str | None = None


class Subject(NamedTuple):
    """A grant under MPS, the post that serves it, and its processes that use the device."""

    grant: GrantRow
    post: Post
    processes: tuple[Process, ...]


class Client(NamedTuple):
    """Where a process works: a post, and its server with its start ticks (if known)."""

    post: Post
    server: int
    start: int | None


class Look(NamedTuple):
    """How often a process was not found among the clients, and when it is looked for again."""

    times: int
    next_at: float


class Witness:
    """Compares processes with clients; ``verdicts`` are by id of the grant."""

    def __init__(self, daemons: Daemons) -> None:
        self.daemons = daemons
        self.verdicts: dict[int, Verdict] = {}
        self._clients: dict[Key, Client] = {}
        self._missed: dict[Key, Look] = {}
        self._trouble: dict[Post, str] = {}

    def clients_of(self, post: Post) -> dict[Key, Client]:
        """Return the processes that were seen to be clients of a daemon."""
        return {who: client for who, client in self._clients.items() if client.post == post}

    def presumed(self, core: Core, post: Post) -> set[Key]:
        """Return the processes on a device that should be clients, but those that are not."""
        found = {key(p) for it in _subjects(core) if it.post == post for p in it.processes}
        return found - self._missed.keys()

    def look(self, core: Core, lock: threading.RLock) -> None:
        """Look once; called without the lock, since it runs programs."""
        with lock:
            subjects = _subjects(core)
        seen = {key(process) for subject in subjects for process in subject.processes}
        # One that lost its server may be on no device any more: it is forgotten when it has ended.
        self._clients = {who: it for who, it in self._clients.items() if processes.alive(*who)}
        self._missed = {who: look for who, look in self._missed.items() if who in seen}
        self._ask(subjects)
        verdicts = self._judge(core, subjects)
        with lock:
            self._tell(core, verdicts)

    def _ask(self, subjects: list[Subject]) -> None:
        """Ask the daemons about processes that are not known as clients."""
        now = self.daemons.steady()
        for post in {subject.post for subject in subjects}:
            who = [key(p) for s in subjects if s.post == post for p in s.processes]
            doubted = [one for one in who if one not in self._clients]
            if not any(
                one not in self._missed or self._missed[one].next_at <= now for one in doubted
            ):
                continue
            try:
                clients = self.daemons.control(post).clients()
                self._trouble.pop(post, None)
            except MpsError as error:
                self._trouble[post] = str(error)
                clients = {}
            for one in doubted:
                if (server := clients.get(one[0])) is not None:
                    self._clients[one] = Client(post, server, processes.start_of(server))
                    self._missed.pop(one, None)
                else:
                    times = self._missed.get(one, Look(0, 0)).times + 1
                    pause = min(2 ** (times - 1), LONGEST_PAUSE)
                    self._missed[one] = Look(times, now + pause)

    def _judge(self, core: Core, subjects: list[Subject]) -> dict[int, Verdict]:
        """Say what is wrong with whom; without the lock, since the helper is asked for the why."""
        verdicts: dict[int, Verdict] = {}
        for subject in subjects:
            if not subject.processes:
                continue
            missed = [p for p in subject.processes if key(p) not in self._clients]
            cause = self._cause(core, subject, missed[0]) if missed else None
            verdicts[subject.grant.id] = Verdict(not missed, cause)
        return verdicts

    def _tell(self, core: Core, verdicts: dict[int, Verdict]) -> None:
        """Take in what was found of the grants that there still are, under MPS as before."""
        grants = [subject.grant for subject in _subjects(core)]
        verdicts = {grant.id: verdicts[grant.id] for grant in grants if grant.id in verdicts}
        for grant in grants:
            new, old = verdicts.get(grant.id), self.verdicts.get(grant.id)
            if new == old or grant.environment not in core.books.environments:
                continue
            core.books.touch(grant.environment)
            if new is not None and not new.verified and (old is None or old.verified):
                row = core.books.environments[grant.environment]
                core.record("MpsBypassed", row, device=grant.device, reason=new.cause)
        self.verdicts = verdicts

    def _cause(self, core: Core, subject: Subject, process: Process) -> str:
        """Find out why a process is no client."""
        grant, post = subject.grant, subject.post
        which = f"process {process.pid}"
        trouble = self.daemons.trouble(post) or self._trouble.get(post)
        if trouble is not None:
            return f"The MPS daemon could not be asked about {which}: {trouble}"
        if _age(process.start) > core.clock() - grant.since:
            return f"{which.capitalize()} works without MPS: {OLDER}"
        pipe = core.powers.variable(process.pid, MPS_PIPE)
        if pipe != str(self.daemons.path(post)):
            has = "without one" if pipe is None else f"with {pipe}"
            return (
                f"{which.capitalize()} works without MPS: it was started {has} instead of our "
                f"{MPS_PIPE}."
            )
        log_of = self.daemons.control(post).log
        if is_pending(lambda: log_of("control.log"), process.pid):
            return f"{which.capitalize()} is no client of MPS yet: {PENDING}"
        return f"{which.capitalize()} works without MPS: {NOT_JOINED}"


def key(process: Process) -> Key:
    """Return what tells a process from any other."""
    return process.pid, process.start


def reason_of(label: str, verdict: Verdict | None) -> str | None:
    """Say that the cap of a grant is not enforced, where that was seen."""
    if verdict is None or verdict.verified:
        return None
    return f"Cap not enforced on {label}. {verdict.cause}"


def _subjects(core: Core) -> list[Subject]:
    found = []
    for uuid, grants in core.books.on_device.items():
        usage = core.usage.get(uuid)
        for grant in grants.values():
            post = post_of(grant)
            if post is not None and grant.state == "granted":
                own = () if usage is None else tuple(usage.own.get(grant.environment, ()))
                found.append(Subject(grant, post, own))
    return found


def _age(start: int) -> float:
    """Return for how many seconds a process has run, from its start ticks."""
    return float(Path("/proc/uptime").read_text().split()[0]) - start / _TICKS
