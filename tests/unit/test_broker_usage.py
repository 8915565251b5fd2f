"""What an environment really uses: its peak, how busy its device is, and what cannot be known."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from genv_jupyter.advice import GIVE_BACK
from genv_jupyter.broker.meters import MEMORY_SECONDS
from genv_jupyter.broker.usage_view import AGAIN
from genv_jupyter.devices.source import Inventory, ProcessReading
from genv_jupyter.errors import NotYours, UnknownEnvironment
from genv_jupyter.model import GrantUsage, Principal, Request
from tests.unit.brokers import GIB, HALF, WHOLE, Bench, Kernel, bench

MIB = 2**20


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path) as made:
        yield made


@pytest.fixture
def real(desk: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """The same with devices that are not called simulated: only on those is there advice."""
    read = desk.source.read

    def unmarked() -> Inventory:
        return msgspec.structs.replace(read(), simulated=False)

    monkeypatch.setattr(desk.source, "read", unmarked)
    desk.tick(1)
    return desk


def seen(desk: Bench, kernel: Kernel) -> GrantUsage:
    """Return the usage of a kernel's only grant."""
    (usage,) = desk.broker.usage(desk.me, kernel.id).grants
    return usage


def hold(desk: Bench, kernel: Kernel, memory: int | None) -> None:
    """Let the kernel's process hold so much on the first device, and read it."""
    desk.source.devices[0].processes = [ProcessReading(kernel.process.pid, memory, "compute")]
    desk.tick(1)


def test_peak_is_the_most_that_was_seen_and_used_what_is_held_now(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(HALF)
    assert (seen(desk, kernel).memory_used, seen(desk, kernel).memory_peak) == (0, 0)
    for memory in (1 * GIB, 5 * GIB, 2 * GIB):
        hold(desk, kernel, memory)
    usage = seen(desk, kernel)
    assert (usage.memory, usage.memory_used, usage.memory_peak) == (12 * GIB, 2 * GIB, 5 * GIB)
    assert usage.seconds_used == 2, "of three readings, a second apart"
    desk.source.devices[0].processes = []
    desk.tick(1)
    assert (seen(desk, kernel).memory_used, seen(desk, kernel).memory_peak) == (0, 5 * GIB)


def test_peak_survives_a_resize_and_begins_anew_with_a_new_grant(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(HALF)
    hold(desk, kernel, 5 * GIB)
    hold(desk, kernel, 1 * GIB)
    kernel.attach(Request(fraction=0.75))
    desk.tick(1)
    assert seen(desk, kernel).memory_peak == 5 * GIB
    kernel.restart()
    desk.tick(1)
    assert seen(desk, kernel).memory_peak == 5 * GIB, "of the grant, not of the process"
    assert kernel.detach().grants == ()
    desk.pass_time(60)
    kernel.attach(HALF)
    fresh = seen(desk, kernel)
    assert (fresh.memory_peak, fresh.peak_since) == (0, None), "nothing is read yet"
    hold(desk, kernel, 2 * GIB)
    usage = seen(desk, kernel)
    assert usage.memory_peak == 2 * GIB
    assert usage.peak_since is not None and usage.peak_since >= usage.since


def test_peak_of_a_new_broker_says_since_when(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(HALF)
    hold(desk, kernel, 5 * GIB)
    hold(desk, kernel, 1 * GIB)
    desk.pass_time(3600)
    desk.reopen()
    desk.tick(1)
    usage = seen(desk, kernel)
    assert usage.memory_peak == 1 * GIB
    assert usage.peak_since is not None
    assert (usage.peak_since - usage.since).total_seconds() > 3500


def test_sum_with_an_unknown_part_is_unknown(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(HALF)
    hold(desk, kernel, None)
    usage = seen(desk, kernel)
    assert (usage.memory_used, usage.memory_peak) == (None, None)
    hold(desk, kernel, 3 * GIB)
    hold(desk, kernel, None)
    assert (seen(desk, kernel).memory_used, seen(desk, kernel).memory_peak) == (None, 3 * GIB)


@pytest.mark.parametrize(("unexplained", "used"), [(50 * MIB, 0), (300 * MIB, None)])
def test_memory_that_nobody_explains_may_be_ours(
    desk: Bench, unexplained: int, used: int | None
) -> None:
    kernel = desk.kernel()
    kernel.attach(HALF)
    device = desk.source.devices[0]
    device.external_memory = unexplained
    desk.tick(1)
    assert seen(desk, kernel).memory_used == used
    device.external_memory = 0
    device.processes = [ProcessReading(2**22, unexplained, "compute")]  # of another namespace
    desk.tick(1)
    assert seen(desk, kernel).memory_used == used
    device.processes = [ProcessReading(desk.process().pid, 2 * GIB, "compute")]
    desk.tick(1)
    assert seen(desk, kernel).memory_used == 0, "somebody else's, seen as such"
    device.processes = None
    desk.tick(1)
    assert seen(desk, kernel).memory_used is None


def test_load_is_the_devices_over_the_last_minutes(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(WHOLE)
    device = desk.source.devices[0]
    for value in (0, 100, 50):
        device.utilization = value
        desk.tick(1)
    usage = seen(desk, kernel)
    assert (usage.utilization, usage.utilization_max) == (50, 100)
    assert usage.utilization_mean == 38, "of 0 at the start, 0, 100 and 50"
    assert usage.utilization_seconds == 3
    device.utilization = 10
    for _ in range(4):
        desk.tick(MEMORY_SECONDS / 3 - 1)
    usage = seen(desk, kernel)
    assert (usage.utilization_mean, usage.utilization_max) == (10, 10)
    assert usage.utilization_seconds == MEMORY_SECONDS - 3
    device.utilization = None
    desk.tick(2 * MEMORY_SECONDS)
    usage = seen(desk, kernel)
    assert (usage.utilization, usage.utilization_mean, usage.utilization_max) == (None, None, None)


def test_viewers_cost_no_reading(desk: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = desk.kernel()
    kernel.attach(HALF)
    read, readings = desk.source.read, []

    def counted() -> Inventory:
        readings.append(1)
        return read()

    monkeypatch.setattr(desk.source, "read", counted)
    for _ in range(20):
        desk.broker.usage(desk.me, kernel.id)
    assert readings == []
    desk.tick(1)
    desk.source.devices[0].utilization = 100
    for _ in range(20):
        desk.broker.tick()  # no time passes between them: they are one sample
    assert seen(desk, kernel).utilization_mean == 0
    assert seen(desk, kernel).utilization_seconds == 1


def test_others_may_not_see_it(desk: Bench) -> None:
    kernel = desk.kernel()
    stranger = Principal(realm="local", id="4242", name="stranger")
    with pytest.raises(NotYours):
        desk.broker.usage(stranger, kernel.id)
    with pytest.raises(UnknownEnvironment):
        desk.broker.usage(desk.me, "nothing")
    admin = Principal(realm="local", id="4242", name="root", admin=True)
    assert desk.broker.usage(admin, kernel.id).grants == ()


def test_advice_is_served_and_says_of_what_drains_why(real: Bench) -> None:
    desk = real
    kernel = desk.kernel()
    assert "%gpu attach" in desk.broker.usage(desk.me, kernel.id).advice
    kernel.attach(HALF)
    hold(desk, kernel, 11 * GIB)
    assert "GPU 0: the peak is 91 %" in desk.broker.usage(desk.me, kernel.id).advice
    kernel.detach()
    row = desk.broker.books.environments[kernel.id]
    assert row.reason is not None
    assert desk.broker.usage(desk.me, kernel.id).advice == row.reason


def test_usage_is_told_when_it_changes_and_only_then(desk: Bench) -> None:
    def told(kernel: Kernel) -> list[GrantUsage]:
        event = desk.broker.changes(desk.me)
        found = () if event is None else event.usage
        return [
            grant for usage in found if usage.environment == kernel.id for grant in usage.grants
        ]

    kernel, other = desk.kernel("a.ipynb"), desk.kernel("b.ipynb")
    kernel.attach(HALF)
    other.attach(HALF)
    assert [grant.memory_used for grant in told(kernel)] == [0]
    desk.tick(AGAIN)
    assert [grant.peak_since is None for grant in told(kernel)] == [False], "now it is read"
    hold(desk, kernel, 2 * GIB)
    event = desk.broker.changes(desk.me)
    assert event is not None
    assert [usage.environment for usage in event.usage] == [kernel.id], "the other's is the same"
    assert event.usage[0].grants[0].memory_used == 2 * GIB
    desk.source.devices[0].utilization = 70
    desk.tick(1)
    event = desk.broker.changes(desk.me)
    assert event is not None and event.devices and event.usage == ()
    desk.tick(1)
    assert desk.broker.changes(desk.me) is None
    # That of a device may change without any change of the environment.
    desk.source.devices[0].processes = None
    desk.tick(1)
    assert [grant.memory_used for grant in told(other)] == [None]


def test_advice_that_comes_with_time_alone_is_told(real: Bench) -> None:
    desk = real
    kernel = desk.kernel()
    kernel.attach(HALF)
    desk.tick(1)
    desk.broker.changes(desk.me)
    desk.tick(GIVE_BACK)
    event = desk.broker.changes(desk.me)
    assert event is not None and "gives it to others" in event.usage[0].advice


def test_usage_of_others_is_not_told(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(HALF)
    stranger = Principal(realm="local", id="4242", name="stranger")
    assert desk.broker.snapshot(stranger).usage == ()
    assert [it.environment for it in desk.broker.snapshot(desk.me).usage] == [kernel.id]
    event = desk.broker.changes(stranger)
    assert event is not None and event.environments and event.usage == ()


def test_process_of_an_environment_that_is_just_ending_is_of_none(desk: Bench) -> None:
    """Turns are settled on the event loop, without the lock: an error there would stop them all."""
    environment_of = desk.broker.core.attribution.environment_of
    books, pid = desk.broker.books, os.getpid()
    books.by_pid[pid] = "has gone from the other table already"
    assert environment_of(pid) is None


def test_reading_between_two_rounds_is_measured_unless_it_is_close_to_another(
    desk: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    core, measured = desk.broker.core, list[float]()
    take = core.meters.take

    def counted(*readings: object, **times: float) -> None:
        measured.append(times["steady"])
        take(*readings, **times)  # type: ignore[arg-type]

    monkeypatch.setattr(core.meters, "take", counted)
    monkeypatch.setattr("genv_jupyter.broker.core.CLOSE", 3600.0)
    desk.tick(1)
    desk.tick(1)
    assert len(measured) == 2, "a round's is"
    core.refresh()
    assert len(measured) == 2, "an hour has not passed"
    monkeypatch.setattr("genv_jupyter.broker.core.CLOSE", 0.0)
    core.refresh()
    assert len(measured) == 3
