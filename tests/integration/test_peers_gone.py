"""A connection outlives the process that made it, and another comes to have that one's pid."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from genv_jupyter.api.host_door import HostDoor
from genv_jupyter.api.hub_door import Guest
from genv_jupyter.errors import UnknownProcess
from genv_jupyter.isolation import processes
from genv_jupyter.model import NewEnvironment

LAST = Path("/proc/sys/kernel/ns_last_pid")
TRIES = 200


class Connected:
    """A process that has connected and has a child that keeps the connection, and what follows."""

    def __init__(self, path: Path) -> None:
        self.listening = socket.socket(socket.AF_UNIX)
        self.listening.bind(str(path))
        self.listening.listen()
        said, self.go = os.pipe()
        told, saying = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            sock = socket.socket(socket.AF_UNIX)
            sock.connect(str(path))
            keeper = os.fork()
            if keeper == 0:
                os.close(self.go)
                signal.pause()
            os.write(saying, f"{keeper}\n".encode())
            os.read(said, 1)
            os._exit(0)
        self.keeper = int(os.read(told, 20))
        for number in (said, told, saying):
            os.close(number)
        self.other: subprocess.Popen[bytes] | None = None

    def accept(self) -> socket.socket:
        return self.listening.accept()[0]

    def replace(self) -> int:
        """End the one that has connected, and have another come to have its pid."""
        os.write(self.go, b"\n")
        os.waitpid(self.pid, 0)
        for _ in range(TRIES):
            LAST.write_text(str(self.pid - 1))
            self.other = subprocess.Popen(["sleep", "600"])
            if self.other.pid == self.pid:
                return self.pid
            self._end_other()
        pytest.fail(f"no process came to have the pid {self.pid}")

    def _end_other(self) -> None:
        if self.other is not None:
            self.other.kill()
            self.other.wait()

    def close(self) -> None:
        self.listening.close()
        os.kill(self.keeper, signal.SIGKILL)
        self._end_other()
        os.close(self.go)


@pytest.fixture
def connected(tmp_path: Path) -> Iterator[Connected]:
    if not os.access(LAST, os.W_OK) or os.getuid() != 0:
        pytest.skip("NOT TESTED: pids that are used again; only root says which is the next")
    made = Connected(tmp_path / "a.sock")
    try:
        yield made
    finally:
        made.close()


def test_a_guest_s_pid_that_is_another_s_by_now_leads_nowhere(connected: Connected) -> None:
    with connected.accept() as sock:
        pid, uid, _ = processes.peer(sock)
        guest = Guest(pid, processes.peer_start(sock), uid)
        assert (pid, guest.here, guest.ours(pid)) == (connected.pid, True, pid)
        other = connected.replace()
        assert processes.alive(other, None)
        assert not guest.here
        assert [guest.ours(it) for it in (other, os.getpid(), 1)] == [None] * 3


def test_nor_does_that_of_one_who_ended_before_being_let_in(connected: Connected) -> None:
    connected.replace()
    with connected.accept() as sock:
        pid, uid, _ = processes.peer(sock)
        assert processes.alive(pid, None)
        assert processes.peer_start(sock) is None
        assert Guest(pid, None, uid).ours(os.getpid()) is None


def test_a_user_of_the_host_who_has_ended_names_no_process(connected: Connected) -> None:
    known = SimpleNamespace(sure=lambda uid: uid or "root")
    with connected.accept() as sock:
        door: Any = HostDoor.__new__(HostDoor)
        door.connection = SimpleNamespace(socket=sock, caller=None)
        door.host = SimpleNamespace(identities=known)
        report = NewEnvironment(kind="command", pid=os.getpid())
        door.principal()
        assert (door.peer_pid(), door.here(report).pid) == (connected.pid, os.getpid())
        connected.replace()
        door.principal()
        assert door.peer_pid() == 0
        with pytest.raises(UnknownProcess):
            door.here(report)
