"""Why a kernel died: said where it was the GPU's, the host's or our doing, and only there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from genv_jupyter.broker import deaths
from genv_jupyter.devices.source import Inventory, Xid
from genv_jupyter.isolation import oom
from genv_jupyter.model import Environment
from tests.unit.brokers import HALF, Bench, Kernel, bench

KILLED = -9


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path) as made:
        yield made


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """What Linux counts; a test changes it."""
    counts = {"group": 3, "host": 7}
    monkeypatch.setattr(oom, "killed_in_group", lambda files: counts["group"])
    monkeypatch.setattr(oom, "killed_on_host", lambda: counts["host"])
    return counts


@pytest.fixture
def kernel(desk: Bench, killed: dict[str, int]) -> Kernel:
    made = desk.kernel()
    made.attach(HALF)
    desk.tick(1)
    return made


def die(desk: Bench, kernel: Kernel, status: int | None) -> Environment:
    """Let a kernel be replaced, as its server tells it."""
    desk.end(kernel.process)
    desk.tell(kernel.id, phase="restarting", died=status)
    return desk.tell(kernel.id, phase="starting")


def errors(desk: Bench, monkeypatch: pytest.MonkeyPatch, number: int, *found: Xid) -> None:
    """Let a device have had critical errors."""
    read = desk.source.read

    def with_errors(*, details: bool = False) -> Inventory:
        inventory = read(details=details)
        devices = list(inventory.devices)
        devices[number] = msgspec.structs.replace(devices[number], xids=found)
        return msgspec.structs.replace(inventory, devices=tuple(devices))

    monkeypatch.setattr(desk.source, "read", with_errors)


def ended(desk: Bench) -> list[str]:
    return [notice.message for notice in desk.broker.notices(desk.me) if notice.kind == "ended"]


def test_error_of_its_gpu_shortly_before_is_told_once_and_goes_with_the_next_start(
    desk: Bench, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors(desk, monkeypatch, 0, Xid(desk.clock.now - 2, 31))
    said = die(desk, kernel, KILLED).ended
    assert said is not None
    assert said.startswith("The kernel before this one died (it was ended by SIGKILL). GPU 0 had")
    assert "Xid 31 (memory page fault" in said
    assert ended(desk) == [said]
    process = desk.process()
    desk.tell(kernel.id, phase="running", pid=process.pid, **desk.seen(kernel.id))
    desk.pass_time(3600)
    desk.end(process)
    desk.tell(kernel.id, phase="restarting")
    assert desk.tell(kernel.id, phase="starting").ended is None, "this time somebody asked for it"


@pytest.mark.parametrize("case", ["nothing", "asked", "old", "elsewhere", "status"])
def test_death_of_its_own_is_not_blamed_on_us(
    desk: Bench, kernel: Kernel, monkeypatch: pytest.MonkeyPatch, killed: dict[str, int], case: str
) -> None:
    recent = Xid(desk.clock.now - 1, 31)
    old = Xid(desk.clock.now - deaths.LATELY - 1, 31)
    if case == "old":
        errors(desk, monkeypatch, 0, old)
    elif case == "elsewhere":
        errors(desk, monkeypatch, 1, recent)
    elif case == "asked":
        errors(desk, monkeypatch, 0, recent)
    elif case == "status":
        killed["group"] += 1
    status = {"asked": None, "status": 1}.get(case, KILLED)
    assert die(desk, kernel, status).ended is None
    assert ended(desk) == []


@pytest.mark.parametrize(
    ("where", "said"),
    [("group", "1 killed in its control group"), ("host", "probably this one too")],
)
def test_kill_for_want_of_memory_is_told(
    desk: Bench, kernel: Kernel, killed: dict[str, int], where: str, said: str
) -> None:
    desk.tick(1)
    killed[where] += 1
    assert said in (die(desk, kernel, KILLED).ended or "")


def test_kill_long_before_is_not_the_cause(
    desk: Bench, kernel: Kernel, killed: dict[str, int]
) -> None:
    killed["group"] += 1
    desk.tick(deaths.LATELY)
    desk.tick(deaths.LATELY)
    assert die(desk, kernel, KILLED).ended is None


def test_what_a_rule_did_is_the_reason_and_stays_one_notice(desk: Bench, kernel: Kernel) -> None:
    row = desk.broker.books.environments[kernel.id]
    desk.broker.core.board.tell(row, "ended", "Ended: 13 GiB were used, 12 GiB granted.")
    said = die(desk, kernel, -15).ended
    assert said is not None and said.endswith("Ended: 13 GiB were used, 12 GiB granted.")
    assert ended(desk) == ["Ended: 13 GiB were used, 12 GiB granted."]


def test_gpu_that_is_gone_is_the_reason(desk: Bench, kernel: Kernel) -> None:
    desk.source.devices[0].health = "lost"
    assert "GPU 0 has fallen off the bus" in (die(desk, kernel, 1).ended or "")


def test_others_do_not_see_why(desk: Bench, kernel: Kernel) -> None:
    desk.source.devices[0].health = "lost"
    die(desk, kernel, KILLED)
    other = msgspec.structs.replace(desk.me, id="4242")
    (seen,) = desk.broker.environments(other)
    assert seen.ended is None


@pytest.mark.parametrize(
    ("line", "file"),
    [
        ("0::/user.slice/a.scope", "user.slice/a.scope/memory.events"),
        ("0::/", "memory.events"),
        ("4:cpu,memory:/docker/abc", "memory/docker/abc/memory.oom_control"),
    ],
)
def test_counters_of_a_process_are_those_of_its_group(tmp_path: Path, line: str, file: str) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "12").mkdir(parents=True)
    (proc / "12" / "cgroup").write_text(f"9:name=systemd:/x\n{line}\n")
    (proc / "vmstat").write_text("nr_free_pages 5\noom_kill 4\n")
    path = groups / file
    path.parent.mkdir(parents=True)
    path.write_text("low 0\noom 3\noom_kill 2\n")
    found = oom.files(12, proc=proc, cgroups=groups)
    assert (oom.killed_in_group(found), oom.killed_on_host(proc=proc)) == (2, 4)
    assert oom.files(13, proc=proc, cgroups=groups) == ()
    assert (oom.killed_in_group(()), oom.killed_on_host(proc=tmp_path)) == (None, None)
