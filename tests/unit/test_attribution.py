"""To which environment a process belongs: what is proved counts, and nothing else."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from genv_jupyter.broker.attribution import SETTLED, Attribution
from genv_jupyter.devices.source import ProcessReading
from genv_jupyter.isolation import pid_namespaces, processes
from genv_jupyter.isolation.environ import MARKER
from genv_jupyter.model import NewEnvironment, Principal
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


# -- users of a Hub, who have no uid of their own --------------------------------------------------

ANN, MALLORY = (Principal(realm="hub", id=name, name=name) for name in ("ann", "mallory"))


@pytest.fixture
def claim(desk: Bench, monkeypatch: pytest.MonkeyPatch) -> tuple[Kernel, int]:
    """A kernel of a Hub's user, and a process of whomever with its name in a variable."""
    monkeypatch.setattr(processes, "cgroup", lambda pid: None)
    monkeypatch.setattr("os.getpid", lambda: 2**22 + 1)  # the broker is another user's
    desk.broker.end_server(desk.me, desk.server)
    kernel = kernel_of(desk, ANN)
    variables = {**os.environ, MARKER: kernel.id}
    child = subprocess.Popen(["sleep", "600"], env=variables, start_new_session=True)
    desk.children.append(child)
    while processes.marker(child.pid) is None:
        pass
    return kernel, child.pid


def kernel_of(desk: Bench, who: Principal) -> Kernel:
    """Start a kernel of somebody, on a server of theirs in a process of its own."""
    desk.me, desk.server, desk.server_process = who, str(uuid.uuid4()), desk.process()
    desk.register()
    return holding(desk)


@pytest.fixture
def rooms(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """The container of each process, as a test has it; the others are outside."""
    found: dict[int, int] = {}
    monkeypatch.setattr(
        pid_namespaces, "numbers", lambda pid: (pid, pid) if pid in found else (pid,)
    )
    monkeypatch.setattr(
        pid_namespaces, "_shared", lambda one, other, level: found[one] == found[other]
    )
    return found


def test_claim_from_another_container_of_the_same_uid_is_none(
    desk: Bench, claim: tuple[Kernel, int], rooms: dict[int, int]
) -> None:
    kernel, pid = claim
    attribution = desk.broker.core.attribution
    rooms |= {kernel.process.pid: 1, desk.server_process.pid: 1, pid: 2}
    assert owner(desk, pid) is None and attribution.pretends(pid)
    rooms[pid] = 1
    assert owner(desk, pid) == kernel.id
    del rooms[pid]  # on the host itself
    desk.broker.core.attribution = Attribution(desk.broker.books)
    assert owner(desk, pid) is None


def test_claim_in_a_container_that_others_are_in_is_none(
    desk: Bench, claim: tuple[Kernel, int], rooms: dict[int, int]
) -> None:
    kernel, pid = claim
    other = kernel_of(desk, MALLORY)
    rooms |= {it.pid: 1 for it in desk.children}
    assert owner(desk, pid) is None
    assert not desk.broker.core.attribution.pretends(pid), "it may well be ann's"
    for theirs in (other.process.pid, desk.server_process.pid):
        rooms[theirs] = 2
    assert owner(desk, pid) == kernel.id


def test_claim_in_the_cgroup_of_the_kernel_counts_where_nobody_else_is_in_it(
    desk: Bench, claim: tuple[Kernel, int], groups: dict[int, str], rooms: dict[int, int]
) -> None:
    kernel, pid = claim
    kernel_of(desk, MALLORY)
    groups |= {kernel.process.pid: SLICE, pid: SLICE, desk.server_process.pid: SLICE}
    assert owner(desk, pid) is None
    groups[desk.server_process.pid] = "/user.slice/run-10.scope"
    assert owner(desk, pid) == kernel.id


def test_claim_by_uid_counts_outside_of_containers_where_nobody_else_has_it(
    desk: Bench, claim: tuple[Kernel, int]
) -> None:
    kernel, pid = claim
    assert owner(desk, pid) == kernel.id
    other = kernel_of(desk, MALLORY)
    desk.broker.core.attribution = Attribution(desk.broker.books)
    assert owner(desk, pid) is None
    assert owner(desk, other.process.pid) == other.id
