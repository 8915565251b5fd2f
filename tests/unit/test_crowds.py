"""More processes than a shared grant was made for are told, with MPS and without."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from genv_jupyter.devices.source import ProcessReading
from genv_jupyter.isolation import processes
from genv_jupyter.isolation.environ import MARKER
from genv_jupyter.model import Request
from genv_jupyter.notices import Notice
from tests.unit.brokers import GIB, WHOLE, Bench, Kernel, bench

PART = Request(devices=("0",), memory="4GiB")


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path) as made:
        yield made


def worker(desk: Bench, kernel: Kernel) -> subprocess.Popen[bytes]:
    """Start another process of a kernel's family, and let it use device 0."""
    started = subprocess.Popen(["sleep", "600"], env={**os.environ, MARKER: kernel.id})
    desk.children.append(started)
    while processes.marker(started.pid) != kernel.id:  # until it is another program
        pass
    uses(desk, started.pid)
    return started


def uses(desk: Bench, pid: int) -> None:
    found = desk.source.devices[0].processes
    assert found is not None
    found.append(ProcessReading(pid, GIB, "compute"))


def told(desk: Bench) -> list[Notice]:
    desk.tick()
    return [it for it in desk.broker.notices(desk.me) if it.kind == "mps"]


def test_a_plain_share_whose_family_grows_is_told_and_when_it_shrinks_no_more(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(PART)
    kernel.use(0, GIB)
    assert told(desk) == [] and kernel.now.reason is None
    worker(desk, kernel)
    (notice,) = told(desk)
    assert notice.environment == kernel.id and notice.level == "warning"
    assert "2 processes of it use GPU 0" in notice.message and "--processes" in notice.hint
    assert "processes=2" in (kernel.now.reason or "")
    worker(desk, kernel)
    (later,) = told(desk)
    assert later.id == notice.id and "3 processes" in later.message, "one notice, renewed"
    desk.source.devices[0].processes = []
    assert told(desk) == [] and kernel.now.reason is None


def test_as_many_as_it_was_made_for_are_no_crowd(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(Request(devices=("0",), memory="4GiB", processes=2))
    kernel.use(0, GIB)
    worker(desk, kernel)
    assert told(desk) == []
    worker(desk, kernel)
    assert len(told(desk)) == 1 and "for 2 processes" in (kernel.now.reason or "")


def test_on_a_whole_device_any_number_may_be(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(WHOLE)
    kernel.use(0, GIB)
    worker(desk, kernel)
    assert told(desk) == [] and kernel.now.reason is None


def test_one_that_ends_is_told_nothing_any_more(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(PART)
    kernel.use(0, GIB)
    worker(desk, kernel)
    assert len(told(desk)) == 1
    desk.end(kernel.process)
    desk.broker.end_kernel(desk.me, desk.server, kernel.id)
    assert told(desk) == []


def test_what_they_use_together_is_watched_against_the_grant(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(Request(devices=("0",), memory="1GiB"))
    for _ in range(3):
        worker(desk, kernel)  # each within its cap of 1 GiB, together three times that
    desk.tick()
    for _ in range(60):
        desk.pass_time(1)
        desk.broker.tick()
        desk.broker.tick_rules()
    (notice,) = [it for it in desk.broker.notices(desk.me) if it.kind == "cap"]
    assert "3 GiB of GPU 0 are used here, and 1 GiB granted" in notice.message
