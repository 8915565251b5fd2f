"""Outsiders who come onto a device after it was granted: the holder is told, nobody is accused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from genv_jupyter.broker import contention
from genv_jupyter.devices.source import ProcessReading
from genv_jupyter.isolation import processes
from genv_jupyter.model import Request
from genv_jupyter.notices import Notice
from tests.unit.brokers import GIB, HALF, WHOLE, Bench, Kernel, bench

MIB = 2**20


@pytest.fixture(params=[True])
def desk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Bench]:
    """A bench in the host's own pid namespace, or (parameter false) in another."""
    monkeypatch.setattr(processes, "in_initial_namespace", lambda: request.param)
    with bench(tmp_path) as made:
        yield made


def shows(desk: Bench, *listed: ProcessReading) -> None:
    desk.source.devices[0].processes = list(listed)
    desk.tick(1)


def state(kernel: Kernel) -> str:
    (grant,) = kernel.now.grants
    return grant.state


def notices(desk: Bench) -> list[Notice]:
    return [it for it in desk.broker.notices(desk.me) if it.kind == "contended"]


def stranger(desk: Bench, memory: int | None = GIB) -> ProcessReading:
    return ProcessReading(desk.process().pid, memory, "compute", "python")


@pytest.mark.parametrize("request_", [WHOLE, HALF])
def test_outsider_who_comes_after_the_grant_makes_it_contended(
    desk: Bench, request_: object
) -> None:
    kernel = desk.kernel()
    kernel.attach(request_)  # type: ignore[arg-type]
    desk.tick(1)
    assert (state(kernel), notices(desk)) == ("granted", [])
    outsider = stranger(desk)
    shows(desk, outsider)
    assert state(kernel) == "contended"
    assert desk.broker.devices()[0].grants[0].state == "contended"
    (notice,) = notices(desk)
    assert notice.environment == kernel.id
    assert f"Process {outsider.pid} (python) of {desk.me.name} belongs to no" in notice.message
    assert "onto GPU 0" in notice.message
    assert "1 GiB" in notice.message
    shows(desk)
    assert (state(kernel), notices(desk)) == ("granted", [])


def test_clock_that_is_set_back_hides_nobody_and_accuses_nobody(desk: Bench) -> None:
    early = stranger(desk)
    shows(desk, early)
    desk.pass_time(5)
    kernel = desk.kernel()
    kernel.attach(Request(devices=("0",), memory="4GiB"))
    shows(desk, early)
    desk.clock.now -= 3600
    shows(desk, early)
    assert state(kernel) == "granted"
    late = stranger(desk)
    shows(desk, early, late)
    assert state(kernel) == "contended"
    (notice,) = notices(desk)
    assert f"Process {late.pid} " in notice.message and "more" not in notice.message
    shows(desk, late)
    shows(desk, early, late)
    assert "did 1 more" in notices(desk)[0].message, "it had left, and has come back"


def test_outsider_who_was_there_before_is_no_news(desk: Bench) -> None:
    outsider = stranger(desk)
    shows(desk, outsider)
    desk.pass_time(5)
    kernel = desk.kernel()
    kernel.attach(HALF)
    shows(desk, outsider)
    assert (kernel.devices, state(kernel)) == ([desk.device(1)], "granted"), "placed elsewhere"
    kernel.attach(HALF)
    other = desk.kernel()
    desk.pass_time(1)
    other.attach(type(HALF)(fraction=0.5, devices=("0",)))
    shows(desk, outsider)
    assert state(other) == "granted"
    assert notices(desk) == []


def test_own_processes_the_desktop_and_trifles_contend_with_nobody(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(HALF)
    desk.tick(1)
    pid = desk.process().pid
    shows(
        desk,
        ProcessReading(kernel.process.pid, GIB, "compute"),
        ProcessReading(pid, GIB, "graphics", "Xorg"),
        ProcessReading(desk.process().pid, 20 * MIB, "compute"),
    )
    assert (state(kernel), notices(desk)) == ("granted", [])


@pytest.mark.parametrize("desk", [False], indirect=True)
def test_in_a_container_nobody_is_accused_before_the_driver_names_one_of_ours(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(HALF)
    desk.tick(1)
    outsider = stranger(desk)
    shows(desk, outsider)
    assert state(kernel) == "granted", "that pid may be the kernel's own on the host"
    shows(desk, outsider, ProcessReading(kernel.process.pid, GIB, "compute"))
    assert state(kernel) == "contended"


def test_after_a_restart_of_the_broker_only_who_started_later_is_late(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(HALF)
    desk.tick(1)
    outsider = stranger(desk)
    shows(desk, outsider)
    desk.clock.now = processes.started_at(processes.start_of(outsider.pid) or 0) - 3600
    with desk.broker.books.change() as change:  # the grant is older than the process, on its clock
        (grant,) = desk.broker.books.grants_of(kernel.id)
        from genv_jupyter.broker.books import replaced

        change.change_grant(grant, replaced(grant, since=desk.clock.now))
    desk.reopen()
    desk.tick(1)
    assert state(kernel) == "contended"
    with desk.broker.books.change() as change:
        (grant,) = desk.broker.books.grants_of(kernel.id)
        change.change_grant(grant, replaced(grant, since=desk.clock.now + 7200))
    desk.reopen()
    desk.tick(1)
    assert state(kernel) == "granted"


def test_several_are_told_as_one_notice_with_the_largest_first() -> None:
    made = [
        contention.Outsider(
            device="GPU-1", pid=pid, start=1, memory=memory, kind="compute", name=None, uid=None
        )
        for pid, memory in ((5, None), (6, 3 * GIB), (7, GIB))
    ]
    assert contention.said("GPU 1", tuple(made), str) == (
        "Process 6 belongs to no environment. It came onto GPU 1 after that was granted to you and "
        "holds 3 GiB there, as did 2 more."
    )
