"""Processes by pid and start ticks: who is signalled, and who is not."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from genv_jupyter.isolation import processes


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """Return a process that only waits."""
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as process:
        yield process
        process.kill()


def test_that_very_process_is_signalled(child: subprocess.Popen[bytes]) -> None:
    assert processes.send(child.pid, processes.start_of(child.pid), signal.SIGTERM)
    assert child.wait(10) == -signal.SIGTERM


def test_another_one_with_its_pid_is_not(child: subprocess.Popen[bytes]) -> None:
    start = processes.start_of(child.pid)
    assert start is not None
    assert not processes.send(child.pid, start - 1, signal.SIGKILL)
    assert not processes.send(child.pid, None, signal.SIGKILL)
    assert child.poll() is None and processes.alive(child.pid, start)


def test_one_that_has_ended_is_not(child: subprocess.Popen[bytes]) -> None:
    start = processes.start_of(child.pid)
    child.kill()
    while processes.alive(child.pid, start):
        pass
    assert not processes.send(child.pid, start, signal.SIGTERM)  # a zombie, not yet reaped
    child.wait(10)
    assert not processes.send(child.pid, start, signal.SIGTERM)
