"""Whether processes work through MPS, as the clients of its daemon tell (a stand-in: no GPU)."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from genv_jupyter.devices.source import ProcessReading
from genv_jupyter.isolation import processes
from genv_jupyter.isolation.environ import MARKER, MPS_PIPE
from genv_jupyter.isolation.mps_control import ControlDaemon
from genv_jupyter.model import Environment, Request
from tests.integration.mps_bench import MpsBench, mps_bench
from tests.unit.brokers import GIB, Kernel

STAND_IN = str(Path(__file__).parent / "mps_stand_in.py")
PART = Request(devices=("0",), memory="4GiB")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for answers however busy this machine is; what is to hang does so for longer."""
    monkeypatch.setattr("genv_jupyter.isolation.mps_control.ASK_SECONDS", 30.0)
    monkeypatch.setattr("genv_jupyter.broker.leaving.SECONDS", 30.0)


@pytest.fixture
def desk() -> Iterator[MpsBench]:
    with mps_bench(STAND_IN) as made:
        yield made


def says(desk: MpsBench, **answers: str | None) -> None:
    settings = desk.directory / "mps" / "stand-in.json"
    known = json.loads(settings.read_text()) if settings.exists() else {}
    settings.write_text(json.dumps({**known, **answers}))


def clients(desk: MpsBench, *pids: int) -> None:
    says(desk, get_server_list="71", get_client_list="\n".join(map(str, pids)))


def look(desk: MpsBench, kernel: Kernel) -> Environment:
    desk.tick()
    desk.broker.tick_mps()
    return kernel.now


def verified(environment: Environment) -> tuple[bool | None, bool | None]:
    (grant,) = environment.grants
    return grant.limits.memory.verified, grant.limits.compute.verified


def child(desk: MpsBench, kernel: Kernel, **variables: str) -> subprocess.Popen[bytes]:
    """Start another process of a kernel's family."""
    environ = {**os.environ, MARKER: kernel.id, **variables}
    started = subprocess.Popen(["sleep", "600"], env=environ)
    desk.children.append(started)
    while processes.marker(started.pid) != kernel.id:  # until it is another program
        pass
    return started


def use(desk: MpsBench, pid: int) -> None:
    found = desk.source.devices[0].processes
    assert found is not None
    found.append(ProcessReading(pid, GIB, "compute"))


def test_a_client_is_verified_once_it_uses_the_device(desk: MpsBench) -> None:
    kernel = desk.kernel()
    kernel.attach(Request(devices=("0",), fraction=0.5))
    clients(desk)
    assert verified(look(desk, kernel)) == (None, None)
    kernel.use(0, GIB)
    clients(desk, kernel.process.pid)
    now = look(desk, kernel)
    assert verified(now) == (True, True) and now.reason is None
    assert "were seen to be clients" in now.grants[0].limits.memory.reason


def test_one_that_is_no_client_has_no_cap_and_is_told_so(desk: MpsBench) -> None:
    kernel = desk.kernel()
    kernel.attach(PART)
    clients(desk, 4711)
    kernel.use(0, GIB)
    desk.broker.changes(desk.me)
    now = look(desk, kernel)
    assert verified(now) == (False, None)
    assert now.reason is not None and now.reason.startswith("Cap not enforced on GPU 0.")
    assert "before MPS was set up" in now.reason and "Restart" in now.reason
    assert now.grants[0].limits.memory.reason.startswith("Cap not enforced on GPU 0.")
    event = desk.broker.changes(desk.me)
    assert event is not None and [it.id for it in event.environments] == [kernel.id]
    clients(desk, kernel.process.pid)
    desk.pass_time(2)
    assert verified(look(desk, kernel)) == (True, None) and kernel.now.reason is None


def test_a_daemon_that_does_not_answer_is_the_cause(
    desk: MpsBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = desk.kernel()
    kernel.attach(PART)
    kernel.use(0, GIB)
    says(desk, get_server_list=None)
    monkeypatch.setattr("genv_jupyter.isolation.mps_control.ASK_SECONDS", 0.5)
    assert "could not be asked about process" in (look(desk, kernel).reason or "")


def test_a_child_with_other_variables_is_found(desk: MpsBench) -> None:
    kernel = desk.kernel()
    now = kernel.attach(PART)
    assert now.environ is not None
    desk.clock.now -= 3600  # the grant was made long before the child was started
    (grant,) = desk.broker.books.grants_of(kernel.id)
    assert grant.since > desk.clock.now
    desk.clock.now = grant.since + 3600
    other = child(desk, kernel, **{MPS_PIPE: "/tmp/nvidia-mps"})
    kernel.use(0, GIB)
    clients(desk, kernel.process.pid)
    use(desk, other.pid)
    why = look(desk, kernel).reason or ""
    assert f"Process {other.pid} works without MPS" in why and "/tmp/nvidia-mps" in why
    desk.source.devices[0].processes = None
    right = child(desk, kernel, **{MPS_PIPE: str(now.environ[MPS_PIPE])})
    desk.source.devices[0].processes = []
    use(desk, right.pid)
    assert "has our CUDA_MPS_PIPE_DIRECTORY" in (look(desk, kernel).reason or "")
    with (desk.daemon(0).logs / "control.log").open("a") as log:
        told = f"NEW CLIENT {right.pid} from user 0: Server is not ready, push client to pending"
        log.write(f"[2026-01-02 03:04:05.678 Control 70] {told} list\n")
    assert "on its pending list" in (look(desk, kernel).reason or "")


def test_more_processes_than_planned_are_warned_of(desk: MpsBench) -> None:
    kernel = desk.kernel()
    kernel.attach(PART)
    other = child(desk, kernel)
    kernel.use(0, GIB)
    use(desk, other.pid)
    clients(desk, kernel.process.pid, other.pid)
    now = look(desk, kernel)
    assert verified(now) == (True, None)
    assert "2 processes of it use GPU 0" in (now.reason or "")
    assert "processes=2" in (now.reason or "")
    (notice,) = desk.broker.notices(desk.me)
    assert (notice.kind, notice.level) == ("mps", "warning") and "2 processes" in notice.message
    kernel.attach(Request(devices=("0",), memory="4GiB", processes=2), cuda="initialized")
    assert look(desk, kernel).reason is None and desk.broker.notices(desk.me) == []


def test_what_is_known_is_not_asked_again(desk: MpsBench, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = desk.kernel()
    kernel.attach(PART)
    kernel.use(0, GIB)
    clients(desk, kernel.process.pid)
    look(desk, kernel)
    asked: list[str] = []

    def none(daemon: ControlDaemon) -> dict[int, int]:
        asked.append(daemon.device)
        return {}

    monkeypatch.setattr(ControlDaemon, "clients", none)
    look(desk, kernel)
    assert verified(kernel.now) == (True, None) and asked == []
    use(desk, child(desk, kernel).pid)
    for _ in range(8):
        desk.pass_time(1)
        look(desk, kernel)
    assert 2 <= len(asked) <= 5, "one that is missed is looked for ever more seldom"


def test_only_its_own_processes_are_taken_off(
    desk: MpsBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, other = desk.kernel(), desk.kernel()
    for one in (kernel, other):
        one.attach(PART)
    worker = child(desk, kernel)
    clients(desk, kernel.process.pid, other.process.pid, worker.pid, os.getpid())
    taken: list[tuple[int, int | None]] = []

    def take(_: ControlDaemon, client: int, server: int | None = None) -> bool:
        taken.append((client, server))
        return True

    monkeypatch.setattr(ControlDaemon, "terminate_client", take)
    assert desk.broker.leave(desk.me, kernel.id) == kernel.now
    assert sorted(taken) == sorted([(kernel.process.pid, 71), (worker.pid, 71)])


def test_a_daemon_that_is_gone_keeps_nobody_from_leaving(desk: MpsBench) -> None:
    kernel = desk.kernel()
    kernel.attach(PART)
    desk.daemon(0).quit()
    assert desk.broker.leave(desk.me, kernel.id) == kernel.now


def test_client_that_the_driver_does_not_list_is_known_to_be_there(desk: MpsBench) -> None:
    kernel = desk.kernel()
    kernel.attach(PART)
    worker, stranger = child(desk, kernel), desk.process()
    clients(desk, worker.pid, stranger.pid)
    look(desk, kernel)
    environment = look(desk, kernel)
    assert [(it.pid, it.memory) for it in environment.processes or ()] == [(worker.pid, None)]
    (usage,) = desk.broker.usage(desk.me, kernel.id).grants
    assert usage.memory_used is None, "how much is unknown, and not nothing"
    use(desk, worker.pid)
    environment = look(desk, kernel)
    assert [(it.pid, it.memory) for it in environment.processes or ()] == [(worker.pid, GIB)]
    desk.end(worker)
    desk.source.devices[0].processes = []
    look(desk, kernel)
    assert look(desk, kernel).processes == ()
