"""The broker as a process against strangers, floods, and starters that vanish."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from genv_jupyter import Client
from genv_jupyter.api import rendezvous
from tests.integration.test_broker_process import wait_for

STRANGER = """
import os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
held = []
for _ in range(int(sys.argv[2])):
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(sys.argv[1].replace("@", chr(0)))
    held.append(sock)
print(len(held), flush=True)
sys.stdin.read()
"""


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can play another user")
def test_a_stranger_does_not_use_up_the_descriptors(broker_home: Path) -> None:
    pid = Client().health().pid
    before = descriptors(pid)
    where = rendezvous.address().replace("\0", "@")
    stranger = subprocess.Popen(
        [sys.executable, "-c", STRANGER, where, "200"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with stranger:
        assert stranger.stdout is not None and stranger.stdout.readline() == "200\n"
        wait_for(lambda: descriptors(pid) < before + 20)
        assert Client(start=False).health().pid == pid
        wait_for(lambda: descriptors(pid) <= before + 1)  # those turned away in words have left too


def test_more_streams_than_the_shell_allows_descriptors(broker_home: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 400:
        pytest.skip("this host does not allow 400 descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
    try:
        pid = Client().health().pid
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 400), hard))
    streams: list[socket.socket] = []
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(200):
            sock = stack.enter_context(rendezvous.connect())
            sock.sendall(b"GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n")
            streams.append(sock)
        assert all(sock.recv(1) == b"H" for sock in streams)
        assert Client(start=False).health().pid == pid
    wait_for(lambda: descriptors(pid) < 50)
    logs = "".join(path.read_text() for path in broker_home.glob("*/broker.log"))
    assert "ERROR" not in logs, "listeners that leave are no error"


def test_whoever_started_it_may_vanish_before_it_is_ready(broker_home: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    broker = subprocess.Popen(
        [sys.executable, "-m", "genv_jupyter.broker", "--user"], stdout=write, stderr=write
    )
    os.close(write)
    wait_for(lambda: broker.poll() is not None or _listens())
    assert Client(start=False).health().pid == broker.pid
    broker.terminate()
    assert broker.wait(timeout=20) == 0


def _listens() -> bool:
    try:
        rendezvous.connect(timeout=1).close()
    except OSError:
        return False
    return True
