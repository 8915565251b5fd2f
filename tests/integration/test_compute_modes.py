"""Compute mode exclusive process while one user shares a device under MPS, and what it was after.

NVIDIA's real control daemon and a fake driver: this proves what we set and put back, not what
NVIDIA's driver does in that mode.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from traitlets.config import Config

from genv_jupyter.broker.compute_modes import APART, ComputeModes
from genv_jupyter.broker.config import BrokerConfig
from genv_jupyter.broker.service import Broker
from genv_jupyter.devices.nvml import NvmlSource
from genv_jupyter.errors import NoCapacity
from genv_jupyter.isolation.mps import GRACE, Post
from genv_jupyter.ledger.live import LiveLedger
from genv_jupyter.model import Environment, NewEnvironment, Principal, Request
from tests.debian import unpacked
from tests.fakedriver import GIB, FakeDriver, device, uuid
from tests.integration.mps_bench import MpsBench

pytestmark = pytest.mark.skipif(
    os.getuid() != 0, reason="NOT TESTED: only root changes compute modes"
)
DEFAULT, PROHIBITED, EXCLUSIVE = 0, 2, 3
A, B = uuid(0), uuid(1)
ANN, BEN = 4711, 4712
ON = BrokerConfig(Config({"MpsDaemons": {"exclusive_mode": True}}))
SHARE = Request(devices=("0",), fraction=0.25)


class ModesBench(MpsBench):
    """A broker as the daemon of a host has it: the driver's devices, and their compute modes."""

    nvml: NvmlSource | None = None

    def open(self) -> Broker:
        self.nvml = NvmlSource(deadline=60.0)
        broker = Broker(
            LiveLedger(self.path),
            self.nvml,
            self.policy,
            clock=self.clock,
            steady=self.steady,
            mps=self.directory / "mps",
            mps_program=self.program,
            config=self.config,
        )
        daemons = broker.core.mps.daemons
        assert daemons is not None
        self.kept = self.directory / "compute-modes.json"
        broker.core.mps.modes = ComputeModes(broker.core, broker.lock, daemons, self.kept)
        return broker

    def crash(self) -> None:
        """Go on with what kill -9 leaves: files, daemons, and what the driver has."""
        if self.nvml is not None:
            self.nvml.close()
        self.reopen()
        self.broker.core.mps.adopt()
        self.round()

    def round(self) -> None:
        self.tick(1.0)
        self.broker.tick_mps()

    def attach(self, uid: int, request: Request = SHARE) -> Environment:
        who = Principal(realm="local", id=str(uid), name=f"user {uid}")
        sleeper = subprocess.Popen(["sleep", "600"], user=uid)
        self.children.append(sleeper)
        made = self.broker.create(who, NewEnvironment(kind="command", pid=sleeper.pid))
        return self.again(uid, made, request)

    def again(self, uid: int, made: Environment, request: Request) -> Environment:
        who = Principal(realm="local", id=str(uid), name=f"user {uid}")
        pid = made.pid
        self.broker.attach(who, made.id, request, cuda="not_initialized", peer_pid=pid)
        return self.broker.environment(who, made.id)

    def leave(self) -> None:
        """End the environment that came last."""
        self.end(self.children[-1])
        self.round()

    @property
    def notices(self) -> str:
        return " ".join(self.broker.core.notices)


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    with FakeDriver(tmp_path, {"devices": [device(0), device(1)]}) as driver:
        for name, value in driver.environ.items():
            monkeypatch.setenv(name, value)
        yield driver


@pytest.fixture
def make(driver: FakeDriver) -> Iterator[Any]:
    with tempfile.TemporaryDirectory(prefix="gj") as name:
        place = Path(name)
        place.chmod(0o755)
        program = shutil.copy(unpacked("nvidia-cuda-mps") / "usr/bin/nvidia-cuda-mps-control", name)
        (place / "broker").mkdir(mode=0o711)
        made: list[ModesBench] = []

        def make(config: BrokerConfig = ON) -> ModesBench:
            made.append(ModesBench(place / "broker", str(program), config=config))
            return made[-1]

        yield make
        for bench in made:
            daemons = bench.daemons
            bench.close()
            for uid in (ANN, BEN):
                for name in (A, B):
                    pid = daemons.control(Post(name, uid)).pid()
                    if pid is not None:
                        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def desk(make: Any) -> ModesBench:
    made: ModesBench = make()
    return made


def runs_under_mps(environment: Environment) -> bool:
    (grant,) = environment.grants
    return grant.limits.memory.strength == "driver"


def test_by_default_modes_stay_as_they_are(driver: FakeDriver, make: Any) -> None:
    desk = make(BrokerConfig())
    assert runs_under_mps(desk.attach(ANN))
    desk.round()
    assert driver.compute_mode(A) == DEFAULT and not desk.kept.exists()
    assert runs_under_mps(desk.attach(BEN)), "another user gets in"


def test_set_with_the_first_and_put_back_with_the_last(
    driver: FakeDriver, desk: ModesBench
) -> None:
    assert runs_under_mps(desk.attach(ANN))
    assert (driver.compute_mode(A), driver.compute_mode(B)) == (EXCLUSIVE, DEFAULT)
    desk.round()
    assert runs_under_mps(desk.attach(ANN)), "the mode is ours, and no reason against MPS"
    desk.leave()
    assert driver.compute_mode(A) == EXCLUSIVE
    desk.end(desk.children[-2])
    desk.round()
    assert driver.compute_mode(A) == EXCLUSIVE, "its daemon waits for the next one"
    desk.pass_time(GRACE)
    desk.round()
    assert driver.compute_mode(A) == DEFAULT
    assert b"default" not in desk.kept.read_bytes()
    assert runs_under_mps(desk.attach(ANN)), "whatever the last reading shows"
    assert driver.compute_mode(A) == EXCLUSIVE


def test_put_back_in_the_end_although_it_is_shared(driver: FakeDriver, desk: ModesBench) -> None:
    desk.attach(ANN)
    desk.broker.core.mps.close()
    assert driver.compute_mode(A) == DEFAULT
    desk.broker.tick_mps()
    assert driver.compute_mode(A) == DEFAULT, "a round that comes too late changes nothing"


def test_after_a_crash_it_is_put_back_with_the_last(driver: FakeDriver, desk: ModesBench) -> None:
    desk.attach(ANN)
    desk.crash()
    assert driver.compute_mode(A) == EXCLUSIVE, "it is shared still"
    assert runs_under_mps(desk.attach(ANN))
    for child in desk.children[-2:]:
        desk.end(child)
    desk.crash()
    desk.pass_time(GRACE)
    desk.round()
    assert driver.compute_mode(A) == DEFAULT


def test_after_a_crash_and_without_the_setting_it_is_put_back(
    driver: FakeDriver, desk: ModesBench
) -> None:
    desk.attach(ANN)
    desk.config = BrokerConfig()
    desk.crash()
    assert driver.compute_mode(A) == DEFAULT


def test_a_crash_just_before_it_is_set(driver: FakeDriver, desk: ModesBench) -> None:
    """What it was is on disk first: no crash in between leaves a mode that nobody knows of."""
    desk.attach(ANN)
    driver.update_device(A, compute_mode=DEFAULT)
    desk.crash()
    assert driver.compute_mode(A) == EXCLUSIVE and not desk.broker.core.notices


def test_without_a_place_for_what_it_was_nothing_is_set(
    driver: FakeDriver, desk: ModesBench
) -> None:
    (desk.directory / "compute-modes.new").mkdir()
    assert runs_under_mps(desk.attach(ANN))
    assert driver.compute_mode(A) == DEFAULT
    assert "GPU 0: its compute mode cannot be changed (what it was cannot be" in desk.notices


def test_what_was_kept_before_a_reboot_means_nothing(driver: FakeDriver, desk: ModesBench) -> None:
    desk.kept.write_bytes(msgspec.json.encode({"boot": "another", "modes": {A: "default"}}))
    driver.update_device(A, compute_mode=EXCLUSIVE)
    desk.crash()
    assert driver.compute_mode(A) == EXCLUSIVE, "the administrator's own"


@pytest.mark.parametrize("mode", [DEFAULT, PROHIBITED])
def test_what_somebody_else_sets_meanwhile_is_left_and_said(
    driver: FakeDriver, desk: ModesBench, mode: int
) -> None:
    desk.attach(ANN)
    driver.update_device(A, compute_mode=mode)
    desk.round()
    desk.round()
    assert driver.compute_mode(A) == mode
    assert "GPU 0: somebody else has set its compute mode to" in desk.notices
    assert len(desk.broker.core.notices) == 1
    desk.leave()
    desk.pass_time(GRACE)
    desk.round()
    assert driver.compute_mode(A) == mode


def test_what_somebody_else_has_set_is_not_put_back(driver: FakeDriver, desk: ModesBench) -> None:
    desk.attach(ANN)
    driver.update_device(A, compute_mode=PROHIBITED)
    desk.broker.core.mps.close()
    assert driver.compute_mode(A) == PROHIBITED
    assert "GPU 0: somebody else has set its compute mode to prohibited" in desk.notices


def test_an_old_reading_is_not_taken_for_somebody_else(
    driver: FakeDriver, desk: ModesBench
) -> None:
    desk.attach(ANN)
    desk.broker.tick_mps()  # the last reading is of before
    assert driver.compute_mode(A) == EXCLUSIVE and not desk.broker.core.notices


def test_nobody_else_gets_in_and_the_reason_is_said(driver: FakeDriver, desk: ModesBench) -> None:
    desk.attach(ANN)
    for uid, request in (
        (BEN, SHARE),
        (ANN, Request(devices=("0",), fraction=0.25, mps="off")),
    ):
        with pytest.raises(NoCapacity) as refused:
            desk.attach(uid, request)
        assert "in compute mode exclusive process, which lets in nobody" in str(
            refused.value.details["reasons"][A]
        )
    other = desk.attach(BEN, Request(fraction=0.25))
    assert [grant.device for grant in other.grants] == [B]
    assert driver.compute_mode(B) == EXCLUSIVE


def test_the_idle_daemon_of_another_makes_way(driver: FakeDriver, desk: ModesBench) -> None:
    desk.attach(ANN)
    desk.leave()
    assert driver.compute_mode(A) == EXCLUSIVE
    desk.attach(BEN, Request(devices=("0",), fraction=0.25, mps="off"))
    assert driver.compute_mode(A) == DEFAULT, "before a process of theirs wants a context"
    assert desk.daemons.control(Post(A, ANN)).pid() is None
    desk.leave()
    desk.attach(ANN)
    desk.leave()
    assert runs_under_mps(desk.attach(BEN))
    assert driver.compute_mode(A) == EXCLUSIVE
    assert desk.daemons.running(A) == (Post(A, BEN),)


def test_a_whole_device_is_as_it_was(driver: FakeDriver, desk: ModesBench) -> None:
    desk.attach(ANN)
    desk.leave()
    desk.attach(BEN, Request(devices=("0",)))
    assert driver.compute_mode(A) == DEFAULT


def test_going_on_without_mps_puts_it_back(driver: FakeDriver, desk: ModesBench) -> None:
    held = desk.attach(ANN)
    now = desk.again(ANN, held, Request(devices=("0",), fraction=0.25, mps="off"))
    assert not runs_under_mps(now)
    assert driver.compute_mode(A) == DEFAULT


def test_where_others_work_already_it_is_not_set(driver: FakeDriver, desk: ModesBench) -> None:
    desk.attach(BEN, Request(devices=("0",), fraction=0.25, mps="off"))
    assert runs_under_mps(desk.attach(ANN))
    desk.round()
    assert driver.compute_mode(A) == DEFAULT
    driver.set_processes(B, [{"pid": os.getpid(), "memory": GIB, "kind": "compute"}])
    desk.tick(10.0)
    desk.attach(ANN, Request(devices=("1",), fraction=0.25))
    desk.round()
    assert driver.compute_mode(B) == DEFAULT, "a process outside any environment"


def test_where_it_may_not_be_set_it_is_said_and_shared(
    driver: FakeDriver, desk: ModesBench
) -> None:
    driver.update(may_administer=False)
    assert runs_under_mps(desk.attach(ANN))
    desk.round()
    assert "GPU 0: its compute mode cannot be changed (Insufficient Permissions)" in desk.notices
    assert len(desk.broker.core.notices) == 1
    driver.update(may_administer=True)
    desk.pass_time(APART)
    desk.round()
    assert driver.compute_mode(A) == EXCLUSIVE and not desk.broker.core.notices


def test_what_cannot_be_put_back_is_tried_again(driver: FakeDriver, desk: ModesBench) -> None:
    desk.attach(ANN)
    driver.update(may_administer=False)
    desk.leave()
    desk.pass_time(GRACE)
    desk.round()
    assert driver.compute_mode(A) == EXCLUSIVE and "cannot be changed" in desk.notices
    driver.update(may_administer=True)
    desk.pass_time(APART)
    desk.round()
    assert driver.compute_mode(A) == DEFAULT and not desk.broker.core.notices


def test_a_setting_that_is_taken_back_puts_it_back(driver: FakeDriver, desk: ModesBench) -> None:
    desk.attach(ANN)
    desk.broker.obey(BrokerConfig())
    desk.round()
    assert driver.compute_mode(A) == DEFAULT
    assert runs_under_mps(desk.attach(BEN))


def test_a_mode_of_the_administrators_stays(driver: FakeDriver, desk: ModesBench) -> None:
    driver.update_device(A, compute_mode=EXCLUSIVE)
    desk.tick(10.0)
    assert not runs_under_mps(desk.attach(ANN))
    desk.leave()
    desk.broker.core.mps.close()
    assert driver.compute_mode(A) == EXCLUSIVE
