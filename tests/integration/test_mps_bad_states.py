"""What may be wrong around a daemon, each with NVIDIA's real program where that can get there.

Besides what is here: a program that is missing, a start that fails at once or for ever, a path too
long, and directories of others are in ``test_mps_daemons``; users without rights are in
``test_mps_users``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from genv_jupyter.isolation import processes
from genv_jupyter.isolation.environ import MPS_PIPE, NO_MPS
from genv_jupyter.isolation.mps_control import MpsError, MpsHangs
from genv_jupyter.model import Request
from tests.integration.mps_bench import mps_bench
from tests.integration.test_mps_attach import real
from tests.integration.test_mps_daemons import DEVICE, GIB, STAND_IN, Make, ensure, make, says
from tests.integration.test_mps_users import OTHERS, THEIRS, place
from tests.integration.test_mps_users import Make as MakeUsers
from tests.integration.test_mps_users import make as make_users

__all__ = ["make", "make_users", "place", "real"]

ROOT = pytest.mark.skipif(os.getuid() != 0, reason="NOT TESTED: root writes everywhere")


def test_a_start_that_hangs_is_ended_in_time(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genv_jupyter.isolation.mps_runner.START_SECONDS", 0.5)
    keeper = make(str(STAND_IN))
    says(keeper, dash_d=None)
    with pytest.raises(MpsHangs, match=r"did not answer within 0\.5 s"):
        keeper.control(DEVICE).start()
    assert keeper.control(DEVICE).pid() is None


def test_a_full_disk_under_its_logs_takes_only_the_logs(make: Make, real: str) -> None:
    keeper = make(real)
    daemon = keeper.control(DEVICE)
    keeper.directory.mkdir(mode=0o700)
    daemon.runner.prepare()
    for name in ("control.log", "server.log"):
        (daemon.logs / name).symlink_to("/dev/full")
    assert ensure(keeper, DEVICE, GIB).healthy() and daemon.ceiling() == "1G"
    assert daemon.last_words().startswith("no log")


@ROOT
def test_logs_that_it_may_not_write_take_only_the_logs(make_users: MakeUsers) -> None:
    keeper = make_users()
    daemon = keeper.control(THEIRS)
    daemon.runner.prepare()
    daemon.logs.chmod(0o500)
    assert ensure(keeper, THEIRS, GIB).healthy() and daemon.ceiling() == "1G"
    assert "No such file" in daemon.last_words()


@ROOT
def test_a_directory_that_it_may_not_write_is_said(make_users: MakeUsers) -> None:
    keeper = make_users()
    daemon = keeper.control(OTHERS)
    daemon.runner.prepare()
    daemon.directory.chmod(0o500)
    with pytest.raises(MpsError, match=r"status 1: .*Cannot access CUDA_MPS_PIPE_DIRECTORY"):
        ensure(keeper, OTHERS, GIB)


@pytest.mark.parametrize("wrong", ["a file", "too long", "closed"])
def test_the_grant_is_made_without_mps_and_says_why(real: str, wrong: str) -> None:
    with mps_bench(real) as desk:
        if wrong == "a file":
            (desk.directory / "mps").write_text("in the way")
            why = "its directory cannot be made"
        elif wrong == "too long":
            desk.daemons.directory = desk.directory / ("a" * 90)
            why = "is too long for a socket of MPS"
        else:
            (desk.directory / "mps").mkdir(mode=0o700)
            directory = desk.daemons.path(desk.post(0))
            directory.mkdir(mode=0o755)
            directory.chmod(0o755)
            why = "others may enter"
        now = desk.kernel().attach(Request(devices=("0",), fraction=0.5))
        assert now.environ is not None and now.environ[MPS_PIPE] == NO_MPS
        assert why in now.grants[0].limits.memory.reason


START = """
import os, sys
from pathlib import Path
from genv_jupyter.isolation.mps import Daemons, Post
post = Post(sys.argv[2], os.getuid())
keeper = Daemons(Path(sys.argv[1]), lambda: {post: 2**30}, sys.argv[3])
print("ready", flush=True)
sys.stdin.read(1)
print(keeper.ensure(post).pid())
"""


def test_two_brokers_that_start_the_same_daemon_at_once_have_one(make: Make, real: str) -> None:
    keeper = make(real)
    command = [sys.executable, "-c", START, str(keeper.directory), DEVICE.device, real]
    gate, opened = os.pipe()  # its end is what all of them wait for
    brokers = [
        subprocess.Popen(command, stdin=gate, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    for broker in brokers:
        assert broker.stdout is not None and broker.stdout.readline() == "ready\n"
    os.close(opened)
    os.close(gate)
    said = {broker.communicate(timeout=60)[0].strip() for broker in brokers}
    assert said == {str(keeper.control(DEVICE).pid())}


def test_a_daemon_outlives_its_killed_broker_and_is_taken_over(make: Make, real: str) -> None:
    keeper = make(real)
    command = [sys.executable, "-c", f"{START}sys.stdout.flush(); os.kill(os.getpid(), 9)"]
    command += [str(keeper.directory), DEVICE.device, real]
    done = subprocess.run(command, input="g", capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGKILL
    pid = int(done.stdout.split()[-1])
    assert processes.alive(pid, None)
    assert ensure(keeper, DEVICE, 2 * GIB).pid() == pid
    assert keeper.control(DEVICE).ceiling() == "2G"
