"""One NVIDIA MPS control daemon: started, asked, and ended through its own program.

A daemon serves one device of one user (facts of ``man nvidia-cuda-mps-control`` and of NVIDIA's
MPS guide): a fault reaches every client of a server, and clients of several uids wait for each
other. It runs as that user, in a directory of mode 0700 of that user: its control socket is 0666
whatever the umask, and everyone who reaches it may raise every limit.

MPS stops accidents, not intent: its limits are variables of the client, which may delete them.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import BinaryIO, Protocol

from genv_jupyter.isolation.mps_runner import (
    ASK_SECONDS,
    PROGRAM,
    MpsBusy,
    MpsError,
    MpsGone,
    MpsHangs,
    MpsUnknown,
    Runner,
)

__all__ = ["PROGRAM", "ControlDaemon", "MpsBusy", "MpsError", "MpsGone", "MpsHangs", "MpsUnknown"]

MEBIBYTE = 2**20
"""``M`` of MPS is 2**20 bytes: its server logs 5120M as 0x140000000."""

MOST_PIDS = 1024
"""In one list: a server has 60 clients at most, and each user one server."""

_HIGHEST_PID = 2**22
_PID = re.compile(r"[0-9]{1,7}")
_AMOUNT = re.compile(r"\d+[GM]")


class Runs(Protocol):
    """Who runs the program: this process, or the root helper for it."""

    def start(self) -> None: ...
    def pid(self) -> int | None: ...
    def ask(self, command: str, seconds: float) -> tuple[int, str]: ...
    def kill(self) -> None: ...
    def remove(self) -> None: ...
    def log(self, name: str) -> BinaryIO: ...
    def last_words(self) -> str: ...


class ControlDaemon:
    """The daemon of one device.

    Parameters
    ----------
    directory
        Where its sockets and logs are: what clients are given as ``CUDA_MPS_PIPE_DIRECTORY``.
    device
        UUID of the device.
    program
        The program of the daemon, which is its front end as well.
    uid
        As whom it runs; ours by default, another's only where we are root.
    runner
        Who runs the program, where that is somebody else.
    """

    def __init__(
        self,
        directory: Path,
        device: str,
        program: str = PROGRAM,
        uid: int | None = None,
        runner: Runs | None = None,
    ) -> None:
        self.directory = directory
        self.device = device
        self.program = program
        self.uid = os.getuid() if uid is None else uid
        self.runner = runner or Runner(directory, device, program, self.uid)

    @property
    def logs(self) -> Path:
        """The directory of ``control.log`` and ``server.log``."""
        return self.directory / "logs"

    def log(self, name: str) -> BinaryIO:
        """Open one of its logs.

        Raises
        ------
        OSError
            It cannot be had.
        """
        return self.runner.log(name)

    # -- life -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the daemon, unless it runs.

        Raises
        ------
        MpsError
            It cannot be started; the reason is said.
        """
        self.runner.start()

    def pid(self) -> int | None:
        """Return the pid of the daemon that listens in our directory; ``None`` without one."""
        return self.runner.pid()

    def kill(self) -> None:
        """End a daemon that does not listen to words."""
        self.runner.kill()

    def remove(self) -> None:
        """Remove the directory of a daemon that has ended."""
        self.runner.remove()

    def last_words(self) -> str:
        """Return the last line of the daemon's log, without its time stamp."""
        return self.runner.last_words()

    def quit(self, seconds: int = 0) -> None:
        """End the daemon and its server; clients that are left lose their contexts.

        Raises
        ------
        MpsError
            It still runs.
        """
        # A server that did not end gracefully looks like no daemon at all: the next line knows.
        with contextlib.suppress(MpsGone):
            self.ask(f"quit -t {seconds}", seconds=seconds + ASK_SECONDS)
        if self.pid() is not None:
            raise MpsError("the daemon does not end")

    # -- questions ------------------------------------------------------------------------------

    def healthy(self) -> bool:
        """Say whether the daemon answers."""
        try:
            return float(self.ask("get_default_active_thread_percentage")) > 0
        except (MpsError, ValueError):
            return False

    def servers(self) -> tuple[int, ...]:
        """Return the pids of its servers: at most one of ours."""
        return _pids(self.ask("get_server_list"))

    def clients(self) -> dict[int, int]:
        """Return the server of each client, both as pids."""
        return {
            client: server
            for server in self.servers()
            for client in _pids(self.ask(f"get_client_list {server}"))
        }

    def status(self, server: int) -> str | None:
        """Return the state of a server in the daemon's words; ``None``: this version tells none."""
        try:
            return self.ask(f"get_server_status {server}") or None
        except MpsUnknown:
            return None

    def ceiling(self) -> str | None:
        """Return the most memory that a client of the next server gets, as the daemon says it.

        From one GiB on it says whole GiB only, rounded down: 2861M is read back as ``2G``.
        """
        said = self.ask("get_default_device_pinned_mem_limit 0")
        return said if _AMOUNT.fullmatch(said) else None

    def set_ceiling(self, memory: int) -> None:
        """Limit the memory of every client that connects from now on, in bytes.

        Raises
        ------
        MpsError
            The daemon does not confirm it.
        """
        mebibytes = memory // MEBIBYTE
        amount = f"{mebibytes}M"
        self.ask(f"set_default_device_pinned_mem_limit 0 {amount}")
        for server in self.servers():
            self.ask(f"set_device_pinned_mem_limit {server} 0 {amount}")
        confirmed = self.ceiling()
        if confirmed not in (amount, f"{mebibytes // 1024}G"):
            raise MpsError(f"the daemon says {confirmed or 'no limit'} where {amount} was set")

    def terminate_client(self, client: int, server: int | None = None) -> bool:
        """Take a client's work off the device; say whether that was done.

        For a process that is about to be ended, never at an interrupt: its contexts are lost for
        good (error 810). ``server`` is the client's, where that is known.
        """
        server = server or self.clients().get(client)
        if server is None:
            return False
        return self.ask(f"terminate_client {server} {client}").endswith("0")

    def ask(self, command: str, seconds: float | None = None) -> str:
        """Send one command and return what is said.

        Raises
        ------
        MpsHangs
            It did not answer in time.
        MpsGone
            There is no daemon.
        MpsError
            It does not know the command.
        """
        status, said = self.runner.ask(command, seconds or ASK_SECONDS)
        if status != 0:
            raise MpsGone(said or "no MPS control daemon answers")
        if said.startswith("Unknown command"):
            raise MpsUnknown(f"this version of MPS does not know {command.split()[0]!r}")
        return said


def _pids(said: str) -> tuple[int, ...]:
    """Read pids; a sentence in their place says that there are none.

    They go into further commands, and what has said them may be a program of its user's.
    """
    if not said[:1].isdecimal() or not said[:1].isascii():
        return ()
    words = said.split()
    if len(words) <= MOST_PIDS and all(map(_PID.fullmatch, words)):
        pids = tuple(map(int, words))
        if all(1 <= pid <= _HIGHEST_PID for pid in pids):
            return pids
    raise MpsError(f"what the daemon says are no pids: {said[:40]!r}")
