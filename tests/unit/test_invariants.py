"""What must always hold, where no test beside the code already shows it: guard by guard."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar
from unittest import mock

import msgspec
import pytest

from genv_jupyter.broker import choosing, core, directories
from genv_jupyter.broker.events import Publisher
from genv_jupyter.devices.source import Inventory, ProcessReading
from genv_jupyter.errors import NoCapacity, NotYours
from genv_jupyter.isolation.environ import MARKER
from genv_jupyter.ledger.rows import Refused
from genv_jupyter.model import (
    EnvironmentPatch,
    KernelReport,
    NewEnvironment,
    Principal,
    Request,
    ServerReport,
)
from genv_jupyter.placement import Placed
from tests.unit.brokers import GIB, HALF, WHOLE, Bench, bench
from tests.unit.ledgers import counters, sums

T = TypeVar("T")
FULL = 24 * GIB


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path) as made:
        yield made


# -- nothing is given twice -----------------------------------------------------------------------


def test_threads_that_ask_at_once_are_given_nothing_twice(desk: Bench) -> None:
    kernels = [desk.kernel() for _ in range(6)]
    requests = (WHOLE, HALF, Request(gpus=2), Request(memory="9G"), Request(gpus=2, memory="6G"))
    failures: list[BaseException] = []
    barrier = threading.Barrier(len(kernels) + 1)

    def fight(number: int) -> None:
        kernel, choice = kernels[number], random.Random(number)
        barrier.wait()
        try:
            for _ in range(40):
                try:
                    desk.broker.attach(desk.me, kernel.id, choice.choice(requests))
                    desk.broker.detach(desk.me, kernel.id, cuda="not_initialized")
                except NoCapacity:
                    continue
        except BaseException as error:
            failures.append(error)

    def tick() -> None:
        barrier.wait()
        for _ in range(40):
            desk.broker.tick()

    threads = [threading.Thread(target=fight, args=(n,)) for n in range(len(kernels))]
    threads.append(threading.Thread(target=tick))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    state = desk.broker.books.ledger.load()
    assert counters(desk.broker.books.ledger) == sums(state)
    assert {row.id for row in state.grants} == {
        row for rows in desk.broker.books.on_device.values() for row in rows
    }


@pytest.mark.parametrize(
    ("wrong", "constraint"),
    [
        (Placed("", FULL, None, False), "memory_fits"),
        (Placed("", GIB, 6000, False), "compute_fits"),
        (Placed("", GIB, None, True), "exclusive_alone"),
    ],
)
def test_a_wrong_placement_is_refused_by_the_database(
    desk: Bench, wrong: Placed, constraint: str
) -> None:
    kernel, other = desk.kernel(), desk.kernel()
    kernel.attach(HALF)
    before = kernel.now, desk.broker.books.ledger.load()
    wrong = msgspec.structs.replace(wrong, device=desk.device(0))
    with (
        mock.patch.object(choosing, "place", lambda *_: (wrong,)),
        pytest.raises(Refused) as refusal,
    ):
        other.attach(Request(memory="1G"))
    assert refusal.value.constraint == constraint
    assert (kernel.now, desk.broker.books.ledger.load()) == before
    assert other.devices == []
    other.attach(HALF)  # and the next one is served as if nothing had been


# -- only what is free ----------------------------------------------------------------------------


def test_memory_used_beyond_a_grant_is_not_free(desk: Bench) -> None:
    kernel, other = desk.kernel(), desk.kernel()
    kernel.attach(Request(memory=4 * GIB))
    kernel.use(0, 20 * GIB)
    desk.tick()
    with pytest.raises(NoCapacity):
        other.attach(Request(devices=("0",), memory=5 * GIB))
    other.attach(Request(devices=("0",), memory=4 * GIB))


def test_memory_that_no_process_explains_is_not_free(desk: Bench) -> None:
    desk.source.devices[0].external_memory = 20 * GIB
    desk.tick()
    kernel = desk.kernel()
    with pytest.raises(NoCapacity):
        kernel.attach(Request(devices=("0",), memory=5 * GIB))
    with pytest.raises(NoCapacity):
        kernel.attach(Request(devices=("0",)))
    kernel.attach(Request(devices=("0",), memory=4 * GIB))


@pytest.mark.parametrize("listed", [True, False])
def test_no_silence_frees_a_device_where_cuda_lives(desk: Bench, listed: bool) -> None:
    """Its context may be out of sight: in another pid namespace, or in no list at all."""
    for device in desk.source.devices:
        device.processes = [] if listed else None
    kernel, other = desk.kernel(), desk.kernel()
    kernel.attach(WHOLE)
    assert kernel.detach(cuda="initialized").state == "draining"
    for _ in range(2):
        for grant in desk.broker.books.quiet_since:
            desk.broker.books.quiet_since[grant] -= 1000
        desk.tick(1000)
    assert kernel.now.state == "draining"
    with pytest.raises(NoCapacity, match="draining"):
        other.attach(Request(devices=("0",)))
    desk.end(kernel.process)
    desk.broker.end_kernel(desk.me, desk.server, kernel.id)
    other.attach(Request(devices=("0",)))


def test_without_lists_of_processes_no_silence_frees_a_device(desk: Bench) -> None:
    for device in desk.source.devices:
        device.processes = None
    kernel = desk.kernel()
    kernel.attach(WHOLE)
    kernel.detach(cuda="unknown")
    for _ in range(2):
        for grant in desk.broker.books.quiet_since:
            desk.broker.books.quiet_since[grant] -= 1000
        desk.tick(1000)
    assert kernel.now.state == "draining"


# -- whose it is ----------------------------------------------------------------------------------


def test_an_admin_may_change_everything(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(HALF)
    admin = Principal(realm="local", id="4242", name="admin", admin=True)
    desk.broker.patch(admin, kernel.id, EnvironmentPatch(name="named"))
    assert desk.broker.environment(admin, kernel.id).environ == kernel.now.environ
    assert kernel.now.name == "named"
    desk.broker.detach(admin, kernel.id, cuda="not_initialized")
    assert kernel.devices == []


def test_nobody_sees_the_variables_and_processes_of_others(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(HALF)
    kernel.use(0, GIB)
    desk.tick()
    other = Principal(realm="local", id="4242", name="other")
    [seen] = desk.broker.environments(other)
    assert (seen.pid, seen.environ, seen.processes) == (None, None, None)
    assert seen.grants == kernel.now.grants
    assert kernel.now.processes
    with pytest.raises(NotYours):
        desk.broker.environment(other, kernel.id)


def test_somebody_elses_server_cannot_speak_for_a_kernel(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(HALF)
    other = Principal(realm="hub", id="eve", name="eve")
    server = str(uuid.uuid4())
    desk.broker.put_server(other, server, ServerReport(pid=desk.process().pid, version="0"))
    for report in (
        KernelReport(phase="starting", launch=99),
        KernelReport(applied="live", cuda="not_initialized"),
    ):
        with pytest.raises(NotYours):
            desk.broker.put_kernel(other, server, kernel.id, report)
    desk.broker.end_kernel(other, server, kernel.id)
    assert kernel.devices == [desk.device(0)]
    heir = str(uuid.uuid4())
    takes = KernelReport(phase="starting", previous=kernel.id)
    environ = desk.broker.put_kernel(other, server, heir, takes).environ
    assert environ is not None and environ["CUDA_VISIBLE_DEVICES"] == ""


def test_nobody_speaks_for_a_process_of_another_user(desk: Bench) -> None:
    other = Principal(realm="local", id="4242", name="other")
    mine = desk.process().pid
    with pytest.raises(NotYours):
        desk.broker.create(other, NewEnvironment(kind="command", pid=mine))
    with pytest.raises(NotYours):
        desk.broker.put_server(other, str(uuid.uuid4()), ServerReport(pid=mine, version="0"))
    assert desk.broker.environments(desk.me) == []


# -- who it is ------------------------------------------------------------------------------------


def test_a_pid_used_again_is_another_process(desk: Bench) -> None:
    kernel, other = desk.kernel(), desk.kernel()
    kernel.attach(WHOLE)
    row = desk.broker.books.environments[kernel.id]
    assert row.start is not None
    with desk.broker.books.change() as change:  # the kernel began before the process of that pid
        change.put_environment(msgspec.structs.replace(row, start=row.start - 1))
    kernel.use(0, 3 * GIB)
    desk.tick()
    assert kernel.now.state == "held", "its own process is gone"
    assert kernel.now.processes == ()
    assert desk.broker.devices()[0].external_memory == 3 * GIB
    desk.tick(61)
    with pytest.raises(NoCapacity):
        other.attach(Request(devices=("0",)))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start a process of another user")
def test_what_a_process_of_another_user_claims_counts_for_nothing(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(Request(memory=4 * GIB))
    for user, mine in ((None, True), (65534, False)):
        environ = {**os.environ, MARKER: kernel.id}
        child = subprocess.Popen(["sleep", "600"], env=environ, user=user)
        desk.children.append(child)
        assert desk.source.devices[0].processes is not None
        desk.source.devices[0].processes[:] = [ProcessReading(child.pid, GIB, "compute")]
        desk.tick()
        assert [process.pid for process in kernel.now.processes or ()] == [child.pid] * mine
        assert desk.broker.devices()[0].external_memory == (0 if mine else GIB)


def test_live_grants_are_of_one_boot_and_one_pid_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GENV_JUPYTER_HOME", str(tmp_path / "home"))
    found = {directories.live_directory("")}
    monkeypatch.setattr(directories, "boot_id", lambda: "00000000-after-a-reboot")
    found.add(directories.live_directory(""))
    monkeypatch.setattr(directories, "pid_namespace", lambda: "pid1")
    found.add(directories.live_directory(""))
    assert len(found) == 3


# -- one sampler ----------------------------------------------------------------------------------


def test_viewers_cost_no_readings(desk: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = 0
    read = desk.source.read

    def counted() -> Inventory:
        nonlocal reads
        reads += 1
        return read()

    async def at_once(verb: Callable[[], T]) -> T:
        return verb()

    async def scenario() -> None:
        publisher = Publisher(desk.broker, at_once, desk.me)
        for _ in range(50):
            await publisher.listen(None, None)
            desk.broker.devices()
            desk.broker.health()
            desk.broker.environments(desk.me)
        for number in range(5):
            desk.source.devices[0].utilization = number
            desk.tick()
            await publisher.publish()

    desk.tick()
    monkeypatch.setattr(desk.source, "read", counted)
    # The reading at hand stays fresh, however slow this machine is.
    monkeypatch.setattr(core, "time", mock.Mock(monotonic=lambda: 1.0))
    desk.broker.core._read_at = desk.broker.core._last_ended = 1.0
    asyncio.run(scenario())
    assert reads == 5, "one for each round of housekeeping"
