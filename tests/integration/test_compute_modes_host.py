"""The daemon of a host, killed and started again: it leaves compute modes as they were."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from genv_jupyter.api.client import Client
from genv_jupyter.isolation.mps_control import ControlDaemon
from genv_jupyter.model import NewEnvironment, Request
from tests.debian import unpacked
from tests.fakedriver import FakeDriver, device, uuid
from tests.integration.daemons import Daemon, serving

pytestmark = pytest.mark.skipif(
    os.getuid() != 0, reason="NOT TESTED: only root changes compute modes"
)
A = uuid(0)
DEFAULT, EXCLUSIVE = 0, 3


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    with FakeDriver(tmp_path, {"devices": [device(0)]}) as driver:
        for name, value in driver.environ.items():
            monkeypatch.setenv(name, value)
        programs = unpacked("nvidia-cuda-mps") / "usr/bin"
        monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
        yield driver


@pytest.fixture
def daemon(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    with serving(monkeypatch, "c.MpsDaemons.exclusive_mode = True", spec="") as made:
        yield made
        made.stop()
        for path in (made.top / "run" / "mps").glob("*"):
            pid = ControlDaemon(path, "").pid()
            if pid is not None:
                os.kill(pid, signal.SIGKILL)


def becomes(driver: FakeDriver, mode: int) -> None:
    deadline = time.monotonic() + 60
    while driver.compute_mode(A) != mode:
        assert time.monotonic() < deadline, f"it stays {driver.compute_mode(A)}"
        time.sleep(0.05)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def test_killed_it_is_put_back_by_the_next(
    driver: FakeDriver, daemon: Daemon, sleeper: subprocess.Popen[bytes]
) -> None:
    client = Client(start=False)
    made = client.create(NewEnvironment(kind="command", pid=sleeper.pid))
    client.attach(made.id, Request(fraction=0.5, mps="on"))
    assert driver.compute_mode(A) == EXCLUSIVE
    daemon.kill()
    assert driver.compute_mode(A) == EXCLUSIVE, "it had no time for that"
    sleeper.kill()
    sleeper.wait()
    daemon.start()
    becomes(driver, DEFAULT)
    assert daemon.stop() == 0


def test_in_its_end_it_puts_back_what_is_shared_still(
    driver: FakeDriver, daemon: Daemon, sleeper: subprocess.Popen[bytes]
) -> None:
    client = Client(start=False)
    made = client.create(NewEnvironment(kind="command", pid=sleeper.pid))
    client.attach(made.id, Request(fraction=0.5, mps="on"))
    assert driver.compute_mode(A) == EXCLUSIVE
    assert daemon.stop() == 0
    assert driver.compute_mode(A) == DEFAULT
    daemon.start()
    becomes(driver, EXCLUSIVE)
