"""The broker against students, odd process trees, stepping clocks, full disks and lost devices."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest
from traitlets.config import Config

from genv_jupyter.api import rendezvous
from genv_jupyter.broker import attach, claims
from genv_jupyter.broker.config import BrokerConfig
from genv_jupyter.devices.simulated import SimulatedDevice
from genv_jupyter.devices.source import Inventory
from genv_jupyter.errors import (
    BadRequest,
    Conflict,
    GpuError,
    NoCapacity,
    TooMany,
    Unavailable,
)
from genv_jupyter.events import Event
from genv_jupyter.isolation import processes
from genv_jupyter.model import (
    EnvironmentPatch,
    KernelReport,
    NewEnvironment,
    Principal,
    Request,
    ServerReport,
)
from genv_jupyter.policy import Policy
from tests.unit.brokers import GIB, HALF, WHOLE, Bench, bench


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path) as made:
        yield made


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path, policy=Policy(confirm_seconds=0.3)) as made:
        yield made


class Viewer:
    """Follows the changes, as a sidebar does."""

    def __init__(self, desk: Bench) -> None:
        self.desk = desk
        self.devices: dict[str, Any] = {}
        self.environments: dict[str, Any] = {}
        self.take(desk.broker.snapshot(desk.me))

    def take(self, event: Event) -> None:
        self.devices.update({device.uuid: device for device in event.devices})
        self.environments.update({row.id: row for row in event.environments})
        for gone in event.removed:
            self.devices.pop(gone, None)
            self.environments.pop(gone, None)

    def follow(self) -> Event | None:
        event = self.desk.broker.changes(self.desk.me)
        if event is not None:
            self.take(event)
        return event

    def check(self) -> None:
        self.follow()
        fresh = self.desk.broker.snapshot(self.desk.me)
        assert self.devices == {device.uuid: device for device in fresh.devices}
        assert self.environments == {row.id: row for row in fresh.environments}


# -- processes ------------------------------------------------------------------------------------


def test_no_descriptor_left_is_no_proof_of_death(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(WHOLE)

    def full(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with mock.patch.object(processes, "_beginning", full), pytest.raises(OSError):
        desk.tick(120)
    desk.tick()
    assert kernel.devices == [desk.device(0)]
    assert kernel.now.state == "granted"


def test_a_process_whose_first_thread_has_ended_is_alive() -> None:
    code = (
        "import ctypes, threading, time\n"
        "threading.Thread(target=time.sleep, args=(600,)).start()\n"
        "print(flush=True)\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None and child.stdout.readline()
        start = processes.start_of(child.pid)
        while Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.01)
        assert processes.alive(child.pid, start)
    finally:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


def test_a_zombie_is_dead() -> None:
    child = subprocess.Popen(["sleep", "600"])
    start = processes.start_of(child.pid)
    assert processes.alive(child.pid, start)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not processes.alive(child.pid, start)
    child.wait()


# -- clocks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [-7200.0, 7200.0])
def test_a_step_of_the_clock_neither_ends_nor_prolongs_a_restart(desk: Bench, step: float) -> None:
    kernel = desk.kernel()
    kernel.attach(WHOLE)
    desk.tell(kernel.id, phase="restarting")
    desk.end(kernel.process)
    desk.clock.now += step
    desk.tick()
    assert kernel.devices == [desk.device(0)], "the restart may still come"
    desk.pass_time(61)
    desk.broker.tick()
    assert kernel.id not in [row.id for row in desk.broker.environments(desk.me)]


# -- reports --------------------------------------------------------------------------------------


def test_a_report_repeated_is_no_new_process(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(Request(memory=20 * GIB))
    desk.tell(kernel.id, cuda="initialized")
    kernel.attach(Request(memory=4 * GIB), cuda="initialized")
    desk.tell(kernel.id, phase="running", pid=kernel.process.pid)
    other = desk.kernel("b.ipynb")
    with pytest.raises(NoCapacity):
        other.attach(Request(memory=15 * GIB, devices=("0",)))


def test_a_report_repeated_makes_nothing_live(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(WHOLE, cuda="initialized", restart=True)
    again = desk.tell(kernel.id, phase="running", pid=kernel.process.pid)
    assert again.applied == "at_restart"


def test_a_late_word_of_a_start_does_not_undo_it(desk: Bench) -> None:
    kernel = desk.starting(launch=7)
    process = desk.process()
    desk.tell(kernel, phase="running", pid=process.pid, launch=7)
    late = desk.tell(kernel, phase="starting", launch=7)
    assert late.pid == process.pid
    desk.tick(120)
    assert desk.broker.environment(desk.me, kernel).pid == process.pid


def test_a_word_of_an_ended_kernel_does_not_raise_it(desk: Bench) -> None:
    kernel = desk.kernel()
    desk.end(kernel.process)
    desk.broker.end_kernel(desk.me, desk.server, kernel.id)
    with pytest.raises(GpuError):
        desk.tell(kernel.id, kernel_state="dead")
    assert desk.broker.environments(desk.me) == []


@pytest.mark.parametrize("launch", [2**63, 10**40, -1, -(2**63) - 1])
def test_an_impossible_launch_is_refused(desk: Bench, launch: int) -> None:
    with pytest.raises(BadRequest):
        desk.starting(launch=launch)
    assert desk.broker.environments(desk.me) == []


@pytest.mark.parametrize("form", ["{{{}}}", "urn:uuid:{}", "{}\n"])
def test_only_one_way_to_write_an_id(desk: Bench, form: str) -> None:
    with pytest.raises(BadRequest):
        desk.starting(form.format(uuid.uuid4()))


def test_a_kernel_at_its_restart_is_not_taken_by_another_server(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(WHOLE)
    thief = str(uuid.uuid4())
    report = ServerReport(pid=desk.process().pid, version="0.1.0")
    desk.broker.put_server(desk.me, thief, report)
    desk.tell(kernel.id, phase="restarting")
    desk.end(kernel.process)
    claim = KernelReport(phase="running", pid=desk.process().pid)
    with pytest.raises(Conflict):
        desk.broker.put_kernel(desk.me, thief, kernel.id, claim)
    assert kernel.devices == [desk.device(0)]


def test_a_handover_survives_a_crash(desk: Bench) -> None:
    for _ in range(6):  # ids sort as chance has it
        old = desk.kernel("old.ipynb")
        old.attach(Request(memory=GIB))
        new = desk.kernel("new.ipynb", previous=old.id)
        desk.reopen()
        desk.end(old.process)
        desk.broker.end_kernel(desk.me, desk.server, old.id)
        assert len(new.devices) == 1
        desk.end(new.process)
        desk.broker.end_kernel(desk.me, desk.server, new.id)


def test_an_id_used_again_is_nobodys_predecessor(desk: Bench) -> None:
    old = desk.kernel("old.ipynb")
    old.attach(Request(memory=GIB))
    heir = desk.kernel("heir.ipynb", previous=old.id)
    heir.attach(Request(memory=2 * GIB))
    desk.end(old.process)
    desk.broker.end_kernel(desk.me, desk.server, old.id)
    heir.detach()
    again = desk.starting(old.id)
    process = desk.process()
    desk.tell(again, phase="running", pid=process.pid)
    desk.broker.attach(desk.me, again, Request(memory=3 * GIB), cuda="not_initialized")
    desk.tell(heir.id, path="x.ipynb")
    assert heir.now.environ is not None and not heir.now.environ["CUDA_VISIBLE_DEVICES"]
    desk.end(process)
    desk.broker.end_kernel(desk.me, desk.server, again)
    assert heir.devices == []


# -- release --------------------------------------------------------------------------------------


def test_each_release_waits_for_its_own_quiet_seconds(quick: Bench) -> None:
    kernel = quick.kernel()
    kernel.attach(WHOLE)
    kernel.detach(cuda="unknown")
    quick.tick()
    kernel.attach(WHOLE)
    time.sleep(0.4)
    kernel.detach(cuda="unknown")
    quick.tick()
    assert kernel.now.state == "draining", "quiet for no time at all"
    time.sleep(0.4)
    quick.tick()
    assert kernel.now.state == "released"
    assert not quick.broker.books.quiet_since


def test_quiet_times_do_not_pile_up(quick: Bench) -> None:
    for _ in range(3):
        kernel = quick.kernel()
        kernel.attach(WHOLE)
        kernel.detach(cuda="unknown")
        quick.tick()
        quick.end(kernel.process)
        quick.broker.end_kernel(quick.me, quick.server, kernel.id)
    assert not quick.broker.books.quiet_since


# -- a full disk ----------------------------------------------------------------------------------


def test_a_failed_confirmation_leaves_the_old_grant_as_it_was(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(Request(memory=4 * GIB))
    with (
        mock.patch.object(attach, "_confirm", side_effect=Unavailable("The disk is full.")),
        pytest.raises(Unavailable),
    ):
        kernel.attach(Request(memory=20 * GIB))
    assert desk.broker.books.slots[desk.device(0)].granted == 4 * GIB
    assert [grant.memory for grant in kernel.now.grants] == [4 * GIB]


def test_what_could_not_even_be_undone_is_undone_later(desk: Bench) -> None:
    kernel = desk.kernel()
    full = Unavailable("The disk is full.")
    with (
        mock.patch.object(attach, "_confirm", side_effect=full),
        mock.patch.object(attach, "undo", side_effect=full),
        pytest.raises(Unavailable),
    ):
        kernel.attach(WHOLE)
    assert [grant.state for grant in kernel.now.grants] == ["reserved"]
    desk.tick()
    assert kernel.now.grants == ()


# -- wants ----------------------------------------------------------------------------------------


def test_an_old_want_gives_no_device_that_was_given_back(desk: Bench) -> None:
    kernel = desk.kernel()
    desk.broker.attach(desk.me, kernel.id, WHOLE, cuda="not_initialized")
    kernel.detach()
    wants = desk.broker.take_wants(desk.server)
    assert all(not (want.environ or {})["CUDA_VISIBLE_DEVICES"] for want in wants)


def test_nothing_is_wanted_of_a_kernel_that_is_gone(desk: Bench) -> None:
    kernel = desk.kernel()
    desk.broker.attach(desk.me, kernel.id, WHOLE, cuda="not_initialized")
    desk.broker.restart(desk.me, kernel.id)
    desk.end(kernel.process)
    desk.broker.end_kernel(desk.me, desk.server, kernel.id)
    assert desk.broker.take_wants(desk.server) == ()


# -- devices --------------------------------------------------------------------------------------


def vanish(desk: Bench, number: int) -> SimulatedDevice:
    return desk.source.devices.pop(number)


def test_viewers_see_a_grant_lost_and_found(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(WHOLE)
    viewer = Viewer(desk)
    device = vanish(desk, 0)
    desk.tick()
    viewer.check()
    assert [grant.state for grant in kernel.now.grants] == ["lost"]
    desk.source.devices.insert(0, device)
    desk.tick()
    viewer.check()
    assert [grant.state for grant in kernel.now.grants] == ["granted"]


def test_a_lost_device_is_told_once(desk: Bench) -> None:
    kernel, other = desk.kernel(), desk.kernel("b.ipynb")
    kernel.attach(WHOLE)
    other.use(1, GIB)
    vanish(desk, 0)
    viewer = Viewer(desk)
    desk.tick()
    viewer.follow()
    desk.tick()
    assert viewer.follow() is None


def test_a_lost_device_goes_with_its_last_grant(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(WHOLE)
    viewer = Viewer(desk)
    gone = vanish(desk, 0).uuid
    desk.tick()
    desk.end(kernel.process)
    desk.broker.end_kernel(desk.me, desk.server, kernel.id)
    desk.tick()
    assert gone not in [device.uuid for device in desk.broker.devices()]
    viewer.check()


@pytest.mark.parametrize("memory", [8 * GIB, None])
def test_a_device_that_shrinks_under_a_grant_stops_nothing(desk: Bench, memory: int | None) -> None:
    kernel, other = desk.kernel(), desk.kernel("b.ipynb")
    kernel.attach(Request(memory=12 * GIB))
    whole = desk.source.read()
    small = msgspec.structs.replace(whole.devices[0], memory_total=memory, memory_free=None)
    changed = msgspec.structs.replace(whole, devices=(small, whole.devices[1]))
    with mock.patch.object(desk.source, "read", lambda: changed):
        desk.tick()
        with pytest.raises(NoCapacity):
            other.attach(Request(memory=GIB, devices=("0",)))
        other.attach(WHOLE)
        assert other.devices == [desk.device(1)]
        assert kernel.detach().state == "released"


def test_one_lost_device_of_a_pool_does_not_hide_the_others(desk: Bench) -> None:
    desk.register(pool=f"{desk.device(0)},{desk.device(1)}")
    rest = desk.device(1)
    kernel = desk.kernel()
    vanish(desk, 0)
    desk.tick()
    kernel.attach(HALF)
    assert kernel.devices == [rest]


def test_a_pool_seen_without_a_driver_is_read_as_cuda_reads_it(desk: Bench) -> None:
    desk.register(pool=f"GPU-nothing,{desk.device(1)}")
    assert desk.broker.devices(desk.server) == []


def test_pools_do_not_pile_up(desk: Bench) -> None:
    for number in range(300):
        desk.register(pool=f"0,x{number}")
        desk.broker.devices(desk.server)
    assert len(desk.broker.core._pools._known) < 200


def test_while_the_driver_hangs_only_the_round_waits_for_it(desk: Bench) -> None:
    kernel, other = desk.kernel(), desk.kernel("b.ipynb")
    kernel.attach(WHOLE)
    core, now = desk.broker.core, [0.0]

    def hang() -> tuple[Inventory, float, float]:
        now[0] += 2.0
        return desk.source.read(), now[0] - 2.0, now[0]

    core._last_ended = core._read_at = 0.0
    with (
        mock.patch("genv_jupyter.broker.core.time.monotonic", lambda: now[0]),
        mock.patch.object(core, "read", side_effect=hang) as read,
    ):
        desk.tick()
        now[0] += 10
        other.attach(HALF)
        desk.broker.devices()
        with mock.patch.object(processes, "has_children", return_value=True):
            kernel.detach()
        assert read.call_count == 1
        assert kernel.now.state == "draining", "its children may be there: nobody tells"
    desk.tick()


def test_a_reading_that_is_overtaken_tells_nothing(desk: Bench) -> None:
    core = desk.broker.core
    old = core.read()
    desk.source.devices[0].external_memory = 10 * GIB
    core.refresh()
    core.absorb(*old)
    assert core.books.slots[desk.device(0)].external == 10 * GIB


# -- events ---------------------------------------------------------------------------------------


def test_a_new_broker_counts_other_revisions(desk: Bench) -> None:
    seen = desk.broker.snapshot(desk.me).revision
    desk.reopen()
    assert desk.broker.snapshot(desk.me).revision != seen


def test_an_heir_is_told_anew_when_its_predecessor_changes(desk: Bench) -> None:
    old = desk.kernel("old.ipynb")
    heir = desk.kernel("heir.ipynb", previous=old.id)
    viewer = Viewer(desk)
    viewer.check()
    desk.broker.patch(desk.me, old.id, EnvironmentPatch(name="another"))
    assert heir.id in desk.broker.books.changed_environments
    viewer.check()


def test_one_that_has_ended_asks_and_is_not_ended_meanwhile(tmp_path: Path) -> None:
    with bench(tmp_path, "1x24GiB") as desk:
        ended = []
        for _ in range(2):
            process = desk.process()
            made = desk.broker.create(desk.me, NewEnvironment(kind="command", pid=process.pid))
            desk.broker.attach(desk.me, made.id, HALF)
            desk.end(process)
            ended.append(made.id)
        given = desk.broker.attach(desk.me, ended[1], WHOLE)
        assert [grant.exclusive for grant in given.grants] == [True]
        desk.tick()
        assert not desk.broker.books.environments


# -- another policy -------------------------------------------------------------------------------


def test_another_policy_counts_at_once_whatever_is_read(desk: Bench) -> None:
    said = {"memory_headroom": "4GiB", "compute_overcommit": 1.2}
    desk.broker.obey(BrokerConfig(Config({"PolicySettings": said})))
    assert desk.broker.books.slots[desk.device(0)].capacity == 20 * GIB
    assert Viewer(desk).devices[desk.device(0)].memory_usable == 20 * GIB
    more_than_all_compute(desk)


def test_another_policy_counts_after_a_restart(desk: Bench) -> None:
    desk.policy = Policy(compute_overcommit=12_000)
    desk.reopen()
    more_than_all_compute(desk)


def more_than_all_compute(desk: Bench) -> None:
    for name in ("a.ipynb", "b.ipynb"):
        kernel = desk.kernel(name)
        kernel.attach(Request(devices=(desk.device(0),), fraction=0.6, memory="4G"))
        assert kernel.devices == [desk.device(0)]


# -- one who wants everything ---------------------------------------------------------------------


def test_nobody_fills_the_broker_of_several_users(
    desk: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "MOST", 3)
    desk.broker.core.kind = "host"
    kernels = [desk.starting() for _ in range(2)]
    process = desk.process()
    desk.broker.create(desk.me, NewEnvironment(kind="command", pid=process.pid))
    with pytest.raises(TooMany, match="3 environments"):
        desk.starting()
    with pytest.raises(TooMany, match="3 environments"):
        desk.broker.create(desk.me, NewEnvironment(kind="command", pid=desk.process().pid))
    desk.tell(kernels[0], phase="starting", launch=2)  # those that are there go on
    report = ServerReport(pid=desk.server_process.pid, version="0.1.0")
    for _ in range(2):
        desk.broker.put_server(desk.me, str(uuid.uuid4()), report)
    with pytest.raises(TooMany, match="3 servers"):
        desk.broker.put_server(desk.me, str(uuid.uuid4()), report)
    desk.register()
    other = Principal(realm="hub", id="ann", name="ann")
    assert desk.broker.create(other, NewEnvironment(kind="command", pid=desk.process().pid))
    desk.broker.end_kernel(desk.me, desk.server, kernels[0])
    desk.starting()


# -- words of a stranger --------------------------------------------------------------------------


def test_a_version_of_many_digits_is_only_a_version() -> None:
    assert rendezvous.version_key("9" * 5000) > rendezvous.version_key("1.0")
    assert rendezvous.version_key("\u0663.1") == (1,)
