"""To which environment a process belongs: what is proved counts, and nothing else."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from genv_jupyter.broker.attribution import SETTLED
from genv_jupyter.devices.source import ProcessReading
from genv_jupyter.isolation import processes
from genv_jupyter.isolation.environ import MARKER
from genv_jupyter.model import NewEnvironment
from tests.unit.brokers import GIB, HALF, Bench, Kernel, bench

SLICE = "/user.slice/run-1.scope"


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path) as made:
        yield made


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> dict[int, str]:
    """The control group of each process, as a test has it."""
    found: dict[int, str] = {}
    monkeypatch.setattr(processes, "cgroup", found.get)
    monkeypatch.setattr(
        processes, "members", lambda path: [pid for pid, group in found.items() if group == path]
    )
    return found


def owner(desk: Bench, pid: int) -> str | None:
    """Let a process show up on the first device, and return whose it is."""
    desk.source.devices[0].processes = [ProcessReading(pid, GIB, "compute")]
    desk.tick(1)
    (usage,) = (it for it in desk.broker.core.usage.values() if it.reading.processes)
    if usage.own:
        ((found, seen),) = usage.own.items()
        assert [process.pid for process in seen] == [pid]
        assert usage.external == 0 and not usage.outside
        assert usage.environments == GIB
        return found
    assert [it.pid for it in usage.outside] == [pid]
    assert (usage.external, usage.environments) == (GIB, 0)
    return None


def holding(desk: Bench) -> Kernel:
    kernel = desk.kernel()
    kernel.attach(HALF)
    return kernel


def test_process_in_the_cgroup_that_a_kernel_has_to_itself_is_its(
    desk: Bench, groups: dict[int, str]
) -> None:
    kernel, stranger = holding(desk), desk.process()
    groups[kernel.process.pid] = SLICE
    groups[stranger.pid] = f"{SLICE}/below"
    assert owner(desk, stranger.pid) == kernel.id


@pytest.mark.parametrize("shared_by", ["server", "broker", "kernel", "login", "hidden", "nobody"])
def test_cgroup_that_others_share_proves_nothing(
    desk: Bench, groups: dict[int, str], shared_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    login = desk.process()
    while processes.age(processes.start_of(login.pid) or 0) < 0.05:  # older, by the clock's ticks
        pass
    kernel, other, stranger = holding(desk), holding(desk), desk.process()
    groups[kernel.process.pid] = groups[stranger.pid] = SLICE
    if shared_by == "server":
        groups[desk.server_process.pid] = SLICE
    elif shared_by == "broker":
        groups[os.getpid()] = f"{SLICE}/deeper"
    elif shared_by == "login":
        groups[login.pid] = SLICE
    elif shared_by == "hidden":
        monkeypatch.setattr(processes, "members", lambda path: None)
    elif shared_by == "kernel":
        groups[other.process.pid] = SLICE
    else:
        groups[stranger.pid] = "/user.slice/run-10.scope"
    assert owner(desk, stranger.pid) is None


def test_marker_counts_only_where_the_uid_is_its_owners(
    desk: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = holding(desk)
    child = subprocess.Popen(
        ["sleep", "600"], env={**os.environ, MARKER: kernel.id}, start_new_session=True
    )
    desk.children.append(child)
    while processes.marker(child.pid) is None:
        pass
    monkeypatch.setattr(processes, "uid_of", lambda pid: os.getuid() + 1)
    assert owner(desk, child.pid) is None
    monkeypatch.undo()
    assert owner(desk, child.pid) == kernel.id


def test_pid_that_was_used_again_belongs_to_nobody(
    desk: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = holding(desk)
    pid = kernel.process.pid
    assert owner(desk, pid) == kernel.id
    start = processes.start_of(pid)
    assert start is not None
    stat = processes.stat

    def later(which: int) -> processes.Stat | None:
        found = stat(which)
        return found if found is None or which != pid else found._replace(start=start + 100)

    monkeypatch.setattr(processes, "stat", later)
    assert owner(desk, pid) is None


def test_who_belonged_to_nobody_belongs_to_an_environment_that_is_made_for_it(
    desk: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = desk.process()
    monkeypatch.setattr(processes, "age", lambda start: SETTLED)
    assert owner(desk, shell.pid) is None
    made = desk.broker.create(desk.me, NewEnvironment(kind="shell", pid=shell.pid))
    assert owner(desk, shell.pid) == made.id


def test_what_is_known_of_a_process_is_not_looked_up_again(
    desk: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, stranger = holding(desk), desk.process()
    monkeypatch.setattr(processes, "age", lambda start: SETTLED)
    for pid in (kernel.process.pid, stranger.pid):
        owner(desk, pid)
        walks: list[int] = []
        monkeypatch.setattr(
            processes, "ancestors", lambda pid, walks=walks: walks.append(pid) or ()
        )
        desk.tick(1)
        assert walks == []
        monkeypatch.undo()
        monkeypatch.setattr(processes, "age", lambda start: SETTLED)
