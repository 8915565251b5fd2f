"""The MPS daemon of whoever runs the host: used where that is configured, and left alone."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from traitlets.config import Config

from genv_jupyter.api import rendezvous
from genv_jupyter.broker.config import BrokerConfig
from genv_jupyter.errors import BrokerDown, Unavailable
from genv_jupyter.isolation import inherited, processes
from genv_jupyter.isolation.environ import MARKER, MPS_MEMORY, MPS_PIPE, MPS_THREADS, NO_MPS
from genv_jupyter.isolation.mps import FIRST_PAUSE, GRACE, TRIES
from genv_jupyter.isolation.mps_control import ControlDaemon
from genv_jupyter.model import Request
from tests.integration.mps_bench import MpsBench, mps_bench
from tests.integration.test_mps_attach import ON, mps_of, real
from tests.integration.test_mps_clients import STAND_IN
from tests.unit.brokers import HALF, WHOLE

__all__ = ["real"]


@contextmanager
def operators(program: str, device: str = "") -> Iterator[ControlDaemon]:
    """Run a daemon as an operator does, for some device or for all."""
    with tempfile.TemporaryDirectory(prefix="gj") as name:
        daemon = ControlDaemon(Path(name) / "op", device, program)
        daemon.start()
        try:
            yield daemon
        finally:
            end(daemon)


def end(daemon: ControlDaemon) -> None:
    pid = daemon.pid()
    if pid is not None:
        start = processes.start_of(pid)
        os.kill(pid, signal.SIGKILL)
        while processes.alive(pid, start):
            pass


def configured(pipe: object) -> BrokerConfig:
    return BrokerConfig(Config({"MpsDaemons": {"pipe_directory": str(pipe)}}))


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for answers however busy this machine is; what is to hang does so for longer."""
    monkeypatch.setattr("genv_jupyter.isolation.mps_control.ASK_SECONDS", 30.0)


@pytest.fixture
def daemon(real: str) -> Iterator[ControlDaemon]:
    with operators(real) as made:
        yield made


@pytest.fixture
def desk(real: str, daemon: ControlDaemon) -> Iterator[MpsBench]:
    with mps_bench(real, config=configured(daemon.directory)) as made:
        yield made


def test_it_is_joined_and_its_limits_are_its_own(desk: MpsBench, daemon: ControlDaemon) -> None:
    now = desk.kernel().attach(HALF)
    assert mps_of(now) == {
        MPS_PIPE: str(daemon.directory),
        MPS_THREADS: "50",
        # Its own number of this device is not known: it may have several.
        MPS_MEMORY: f"{desk.device(0)}={12 * 1024}M",
    }
    (limits,) = [grant.limits for grant in now.grants]
    assert limits.memory.strength == "driver" and "run by the operator" in limits.memory.reason
    assert daemon.ceiling() is None, "nothing was changed in it"
    assert not (desk.directory / "mps").exists(), "none of ours was started"


def test_it_is_never_ended(desk: MpsBench, daemon: ControlDaemon) -> None:
    pid = daemon.pid()
    kernel = desk.kernel()
    kernel.attach(Request(devices=("0",), fraction=0.5))
    desk.broker.tick_mps()
    kernel.detach()
    for _ in range(2):
        desk.broker.tick_mps()
        desk.pass_time(GRACE)
    desk.kernel().attach(Request(devices=("0",)))
    desk.kernel().attach(HALF)
    desk.reopen()
    desk.broker.core.mps.adopt()
    desk.broker.close()
    assert daemon.pid() == pid and daemon.healthy()
    assert (daemon.directory / "control").exists()


def test_one_that_does_not_run_is_said_and_not_started(
    desk: MpsBench, daemon: ControlDaemon
) -> None:
    end(daemon)
    kernel = desk.kernel()
    now = kernel.attach(HALF)
    assert mps_of(now)[MPS_PIPE] == NO_MPS
    assert "the operator's MPS daemon does not listen" in now.grants[0].limits.memory.reason
    for tries in range(TRIES + 1):
        with pytest.raises(Unavailable, match="the operator's MPS daemon does not listen"):
            kernel.attach(ON)
        desk.pass_time(FIRST_PAUSE * 2**tries)
    assert daemon.pid() is None
    daemon.start()  # as its operator does, whenever that is
    desk.pass_time(FIRST_PAUSE * 2**TRIES)
    assert mps_of(kernel.attach(ON))[MPS_PIPE] == str(daemon.directory)


def test_one_that_dies_under_a_grant_is_not_started(desk: MpsBench, daemon: ControlDaemon) -> None:
    desk.kernel().attach(HALF)
    end(daemon)
    for _ in range(3):
        desk.pass_time(60)
        desk.broker.tick_mps()
    assert daemon.pid() is None
    assert "does not listen" in (desk.daemons.trouble(desk.post(0)) or "")


def test_one_for_another_device_is_not_joined(real: str) -> None:
    with (
        operators(real, "GPU-99999999") as daemon,
        mps_bench(real, config=configured(daemon.directory)) as desk,
    ):
        now = desk.kernel().attach(HALF)
        assert "does not serve it" in now.grants[0].limits.memory.reason


def test_one_that_names_the_device_by_part_of_its_uuid_is_joined(real: str) -> None:
    with mps_bench(real) as other:
        uuid = other.device(0)
    with (
        operators(real, f"GPU-99999999,{uuid[:12]}") as daemon,
        mps_bench(real, config=configured(daemon.directory)) as desk,
    ):
        now = desk.kernel().attach(Request(devices=("0",), fraction=0.5))
        assert mps_of(now)[MPS_PIPE] == str(daemon.directory)


@pytest.mark.skipif(os.getuid() != 0, reason="NOT TESTED: needs root to run one as another user")
def test_one_of_just_anybody_is_not_joined(real: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="gj") as name:
        Path(name).chmod(0o755)
        program = str(shutil.copy(real, Path(name) / "control"))
        daemon = ControlDaemon(Path(name) / "op", "", program, 4711)
        daemon.start()
        try:
            with mps_bench(real, config=configured(daemon.directory)) as desk:
                now = desk.kernel().attach(HALF)
                assert "does not listen" in now.grants[0].limits.memory.reason
        finally:
            end(daemon)


def test_one_that_speaks_other_commands_is_refused() -> None:
    """Of MPS v3 it is only known that it knows none of ours: whatever it says is no number."""
    with operators(STAND_IN) as daemon:
        answers = {"get_default_active_thread_percentage": "error: unknown module"}
        (daemon.directory.parent / "stand-in.json").write_text(json.dumps(answers))
        with mps_bench(STAND_IN, config=configured(daemon.directory)) as desk:
            now = desk.kernel().attach(HALF)
            assert "no answer that is understood" in now.grants[0].limits.memory.reason
            assert "version 3" in now.grants[0].limits.memory.reason


# -- inherited ------------------------------------------------------------------------------------


def passed_on(monkeypatch: pytest.MonkeyPatch) -> str | None:
    """Return what a broker that is started now is told of the daemon that was there before."""
    told: list[dict[str, str]] = []

    def popen(*_: object, env: dict[str, str], **__: object) -> None:
        told.append(env)
        raise OSError("no broker is started for this test")

    with monkeypatch.context() as context, pytest.raises(BrokerDown):
        context.setattr(subprocess, "Popen", popen)
        rendezvous.start_broker()
    assert MPS_PIPE not in told[0]
    return told[0].get(inherited.OPERATORS_MPS)


def test_what_was_there_before_us_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MARKER, raising=False)
    monkeypatch.delenv(MPS_PIPE, raising=False)
    assert passed_on(monkeypatch) is None
    monkeypatch.setenv(MPS_PIPE, "/run/mps")
    assert passed_on(monkeypatch) == "/run/mps"


def test_what_we_have_set_ourselves_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MARKER, "of a kernel")
    monkeypatch.setenv(MPS_PIPE, NO_MPS)
    monkeypatch.delenv("JPY_PARENT_PID", raising=False)
    assert passed_on(monkeypatch) is None
    server = subprocess.Popen(["/bin/sleep", "600"], env={MPS_PIPE: "/run/mps"})
    try:
        monkeypatch.setenv("JPY_PARENT_PID", str(server.pid))
        assert passed_on(monkeypatch) == "/run/mps", "its Jupyter server's"
    finally:
        server.kill()
        server.wait()


@pytest.mark.parametrize("found", ["", NO_MPS, "relative"])
def test_inherited_where_nothing_was_is_our_own(
    real: str, monkeypatch: pytest.MonkeyPatch, found: str
) -> None:
    monkeypatch.setenv(inherited.OPERATORS_MPS, found)
    with mps_bench(real, config=configured("inherited")) as desk:
        assert desk.daemons.ours


def test_inherited_is_what_was_passed_on(
    real: str, daemon: ControlDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(inherited.OPERATORS_MPS, str(daemon.directory))
    with mps_bench(real) as desk:
        assert desk.daemons.ours, "only where that is configured"
    with mps_bench(real, config=configured("inherited")) as desk:
        assert mps_of(desk.kernel().attach(HALF))[MPS_PIPE] == str(daemon.directory)
        desk.kernel().attach(WHOLE)


def test_a_path_that_is_none_is_a_mistake() -> None:
    (said,) = configured("mps/here").problems
    assert "neither an absolute path nor 'inherited'" in said
