"""The history of use, over simulated devices: what is kept, lost and said, and shown."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from genv_jupyter.broker.history import QUIET_SECONDS
from genv_jupyter.broker.service import Broker
from genv_jupyter.errors import NotYours, Unavailable, UnknownDevice, UnknownEnvironment
from genv_jupyter.ledger import records as records_module
from genv_jupyter.ledger import samples, sqlite
from genv_jupyter.ledger.live import LiveLedger
from genv_jupyter.ledger.records import RecordsLedger
from genv_jupyter.ledger.samples import DeviceSample, Samples
from genv_jupyter.model import Principal, Request
from genv_jupyter.reports import DevicePoint, UsageReport
from genv_jupyter.rollup import DeviceSums
from tests.unit.brokers import GIB, HALF, WHOLE, Bench

STRANGER = Principal(realm="local", id="4242", name="eve")


class Desk(Bench):
    """A broker that keeps records."""

    def open(self) -> Broker:
        records = RecordsLedger(self.path.with_name("records.sqlite"))
        records.open()
        return Broker(
            LiveLedger(self.path),
            self.source,
            self.policy,
            records=records,
            clock=self.clock,
            steady=self.steady,
        )

    def die(self) -> None:
        """Be replaced by a new broker, without a word."""
        self.settle()
        history = self.broker.core.history
        assert history is not None
        self.broker.core.history = None
        self.broker.close()
        self.broker = self.open()

    def settle(self) -> None:
        """Wait until what was handed over is written."""
        assert self.broker.records is not None
        self.broker.records._queue.join()

    def watch(self, seconds: int) -> None:
        for _ in range(seconds):
            self.tick(1)
        self.settle()

    def past(self, number: int = 0, ago: float = 3600, step: int | None = 60) -> list[DevicePoint]:
        history = self.broker.past.device(self.device(number), self.clock.now - ago, step)
        return list(history.points)

    def report(self, by: str = "environment", ago: float = 3600) -> UsageReport:
        return self.broker.past.report(self.me, self.clock.now - ago, by)  # type: ignore[arg-type]

    def rows(self, table: str, step: int) -> int:
        with closing(sqlite3.connect(self.path.with_name("records.sqlite"))) as connection:
            query = f"SELECT count(*) FROM {table} WHERE step = ?"
            return int(connection.execute(query, [step]).fetchone()[0])


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path / "ledger.sqlite")
    made.clock.now -= 0.5  # seconds are read in their middle, so each belongs to one span
    made.broker.close()
    made.broker = made.open()
    yield made
    made.close()


def seconds(points: list[DevicePoint]) -> int:
    return sum(point.seconds for point in points)


def about(mean: int) -> object:
    """Return a mean over time: how long a reading takes, some milliseconds, is real here."""
    return pytest.approx(mean, rel=0.01)


def test_means_and_peaks_of_a_device(desk: Desk) -> None:
    device = desk.source.devices[0]
    for used, busy in ((2 * GIB, 0), (4 * GIB, 50), (6 * GIB, 100)):
        device.external_memory, device.utilization = used, busy
        desk.watch(20)
    (point,) = desk.past()
    assert (point.seconds, point.memory_peak) == (60, 6 * GIB)
    assert point.memory_used == about(4 * GIB)
    assert (point.utilization, point.utilization_peak) == (50, 100)
    assert (point.memory_granted, point.share) == (0, 0)
    fine = desk.past(step=10, ago=120)
    assert [it.utilization for it in fine] == [0, 0, 50, 50, 100, 100]
    assert [it.memory_peak for it in fine] == [it * GIB for it in (2, 2, 4, 4, 6, 6)]


def test_how_warm_a_device_was_and_what_power_it_took(desk: Desk) -> None:
    device = desk.source.devices[0]
    for warm, power in ((40, 100_000), (None, None), (60, 300_000)):
        device.temperature, device.power = warm, power
        desk.watch(20)
    (point,) = desk.past()
    assert (point.temperature, point.temperature_peak) == (50, 60)
    assert point.power == about(200_000)
    assert [it.temperature for it in desk.past(1)] == [None]


def test_what_happened_to_grants_is_told_of_their_device_and_of_their_environment(
    desk: Desk,
) -> None:
    kernel, other = desk.kernel(), desk.kernel()
    kernel.attach(WHOLE)
    other.attach(WHOLE)
    (number,) = [i for i in (0, 1) if desk.device(i) in kernel.devices]
    desk.watch(30)
    kernel.process.kill()
    kernel.process.wait()
    desk.broker.end_kernel(desk.me, desk.server, kernel.id)
    desk.watch(30)
    past, since = desk.broker.past, desk.clock.now - 3600
    found = past.device(desk.device(number), since, None, desk.me).events
    # That the environment ended was on no device, but is a mark on those that it held.
    assert [it.event for it in found] == ["GrantAdded", "GrantReleased", "EnvironmentEnded"]
    assert {it.environment for it in found} == {kernel.id}
    assert {it.name for it in found} == {"a.ipynb"}
    assert found[-1].reason
    assert past.environment(desk.me, kernel.id, since, None).events == found
    strange = past.device(desk.device(number), since, None, STRANGER).events
    assert {(it.name, it.reason, it.user) for it in strange} == {(None, None, desk.me.name)}
    assert past.device(desk.device(number), desk.clock.now - 10, None, desk.me).events == ()


def test_what_the_driver_does_not_say_is_unknown_and_no_zero(desk: Desk) -> None:
    desk.source.devices[0].utilization = None
    desk.watch(10)
    (point,) = desk.past()
    assert (point.utilization, point.utilization_peak, point.memory_used) == (None, None, 0)


def test_a_gap_is_a_gap(desk: Desk) -> None:
    desk.watch(60)
    desk.source.devices[0].health = "lost"
    desk.watch(120)
    desk.source.devices[0].health = "ok"
    desk.pass_time(600)  # a host that slept
    desk.watch(60)
    points = desk.past()
    assert [point.seconds for point in points] == [60, 59], "a first reading begins the count"
    assert (points[1].at - points[0].at).total_seconds() == 780


def test_a_clock_that_is_set_back_loses_nothing_and_counts_nothing_twice(desk: Desk) -> None:
    desk.watch(120)
    desk.clock.now -= 90
    desk.watch(120)
    desk.clock.now += 3600
    desk.watch(60)
    desk.broker.core.history.write(int(desk.clock.now), whole=True)
    desk.settle()
    with closing(sqlite3.connect(desk.path.with_name("records.sqlite"))) as connection:
        query = "SELECT sum(seen) FROM device_samples WHERE device = ? AND step = ?"
        for step in (60, 3600):
            assert connection.execute(query, [desk.device(0), step]).fetchone()[0] == pytest.approx(
                300_000, abs=300
            )


def test_a_restart_in_the_middle_of_a_minute_and_an_hour_keeps_the_sums(desk: Desk) -> None:
    kernel = desk.kernel()
    kernel.attach(WHOLE)
    for _ in range(5):
        desk.watch(25)
        desk.broker.close()
        desk.broker = desk.open()
    (row,) = desk.report().rows
    assert row.held_seconds == 125
    assert seconds(desk.past(step=10)) == seconds(desk.past(step=60)) == row.held_seconds


def test_a_broker_that_is_killed_loses_a_minute_at_most(desk: Desk) -> None:
    kernel = desk.kernel()
    kernel.attach(HALF)
    desk.watch(300)
    desk.die()
    (row,) = desk.report().rows
    assert 300 - 60 <= row.held_seconds <= 300
    assert row.name == "a.ipynb"


def test_gpu_hours_are_share_times_time(desk: Desk) -> None:
    half, whole = desk.kernel("half.ipynb"), desk.kernel("whole.ipynb")
    half.attach(HALF)
    whole.attach(WHOLE)
    desk.watch(100)
    half.detach()
    desk.watch(100)
    report = desk.report()
    assert [(row.name, row.gpu_seconds, row.held_seconds) for row in report.rows] == [
        ("whole.ipynb", 200, 200),
        ("half.ipynb", 50, 100),
    ]
    assert report.seen_seconds == 200 and report.simulated
    (user,) = desk.report("user").rows
    assert (user.user, user.gpu_seconds) == (desk.me.name, 250)
    by_device = {row.key: row.gpu_seconds for row in desk.report("device").rows}
    assert sorted(by_device.values()) == [50, 200]


def test_a_grant_counts_from_when_it_was_given(desk: Desk) -> None:
    kernel = desk.kernel()
    desk.watch(2)
    desk.pass_time(3)
    kernel.attach(WHOLE)
    desk.tick(1)
    (row,) = desk.report().rows
    assert row.held_seconds == 1, "of the four seconds since the last reading"


def test_memory_counts_where_there_is_no_ceiling(desk: Desk) -> None:
    kernel = desk.kernel()
    kernel.attach(Request(memory="6GiB"))
    desk.watch(100)
    (row,) = desk.report().rows
    assert row.gpu_seconds == pytest.approx(25, abs=1)


def test_idle_is_what_is_held_and_not_used(desk: Desk) -> None:
    kernel = desk.kernel()
    kernel.attach(WHOLE)
    (number,) = [i for i in (0, 1) if desk.device(i) in kernel.devices]
    desk.watch(50)
    kernel.use(number, 3 * GIB)
    desk.source.devices[number].utilization = 80
    desk.watch(30)
    desk.source.devices[number].utilization = None
    desk.watch(20)
    (row,) = desk.report().rows
    assert (row.held_seconds, row.idle_seconds, row.known_seconds) == (100, 50, 80)
    assert row.memory_peak == 3 * GIB
    past = desk.broker.past.environment(desk.me, kernel.id, desk.clock.now - 3600, 10)
    (series,) = past.devices
    assert series.device == desk.device(number)
    assert {point.idle for point in series.points} == {1.0, 0.0, None}
    assert series.points[-1].memory_used == 3 * GIB


def test_an_ended_environment_is_remembered_for_its_owner_only(desk: Desk) -> None:
    kernel = desk.kernel()
    kernel.attach(WHOLE)
    desk.watch(30)
    desk.broker.end_kernel(desk.me, desk.server, kernel.id)
    desk.watch(61)
    past = desk.broker.past
    since = desk.clock.now - 3600
    assert past.environment(desk.me, kernel.id, since, None).name == "a.ipynb"
    with pytest.raises(NotYours):
        past.environment(STRANGER, kernel.id, since, None)
    with pytest.raises(UnknownEnvironment):
        past.environment(desk.me, "nobody", since, None)
    with pytest.raises(UnknownDevice):
        past.device("GPU-none", since, None)
    (row,) = past.report(STRANGER, since, "environment").rows
    assert (row.name, row.user) == (None, desk.me.name)
    admin = Principal(realm="local", id="0", name="root", admin=True)
    assert past.report(admin, since, "environment").rows[0].name == "a.ipynb"


def test_a_quiet_host_writes_a_row_a_minute_and_shows_every_ten_seconds(desk: Desk) -> None:
    desk.watch(QUIET_SECONDS)
    assert desk.rows("device_samples", 60) == 0, "written before it is due"
    desk.watch(60)
    assert desk.rows("device_samples", 10) == 0
    assert desk.rows("device_samples", 60) == 2 * 10
    assert desk.rows("device_samples", 3600) == 2
    fine = desk.past(step=10, ago=700)
    assert len(fine) == 66 and {point.seconds for point in fine[:-1]} == {10}


def test_a_device_that_works_is_kept_every_ten_seconds_and_the_quiet_one_is_not(
    desk: Desk,
) -> None:
    desk.source.devices[0].utilization = 7
    desk.watch(121)
    assert desk.rows("device_samples", 10) == 12
    assert len(desk.past(0, step=10, ago=600)) == len(desk.past(1, step=10, ago=600)) == 13


def test_a_disk_that_refuses_loses_samples_says_so_and_stalls_nobody(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.05)
    desk.broker.close()
    desk.broker = desk.open()
    kernel = desk.kernel()
    where = desk.path.with_name("records.sqlite")
    with closing(sqlite3.connect(where, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        kernel.attach(WHOLE)
        with caplog.at_level(logging.WARNING):
            desk.watch(62)
        with pytest.raises(Unavailable):
            desk.report()
        other.execute("ROLLBACK")
    assert "samples of use could not be kept" in caplog.text
    lost = desk.broker.records.lost_samples
    assert lost > 0
    desk.watch(61)
    assert desk.report().lost_samples == lost
    (notice,) = [it for it in desk.broker.health().notices if "history of use" in it]
    assert notice.startswith(f"{lost} samples")


def test_samples_that_wait_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records_module, "WAITING_SAMPLES", 3)
    records = RecordsLedger(tmp_path / "records.sqlite")
    two = Samples(now=100, devices=tuple(DeviceSample(10, at, "a", DeviceSums()) for at in (0, 10)))
    for _ in range(3):  # nobody writes yet: the disk hangs
        records.enqueue_samples(two)
    assert records.lost_samples == 4
    records.open()
    records._queue.join()
    records.enqueue_samples(two)
    assert records.lost_samples == 4, "what was written made room"
    records._queue.join()
    many = tuple(DeviceSample(10, at, "a", DeviceSums()) for at in range(0, 50, 10))
    records.enqueue_samples(Samples(now=100, devices=many))
    assert records.lost_samples == 4, "of a host that is too large there would be no history"
    records.close()


def test_rows_are_bounded_by_age_and_by_number(tmp_path: Path) -> None:
    records = RecordsLedger(tmp_path / "records.sqlite")
    records.open()
    now = 1_800_000_000

    def put(*ats: int, step: int = 10) -> None:
        many = tuple(DeviceSample(step, at, "GPU-a", DeviceSums(seen=1)) for at in ats)
        records.run(lambda it: samples.put(it, Samples(now=now, devices=many), most=5))

    def kept(step: int = 10) -> list[int]:
        return sorted(records.run(lambda it: samples.device_points(it, "GPU-a", step, 0, step)))

    put(now - 7 * 3600, now - 3600)
    assert kept() == [now - 3600]
    put(*range(now, now + 100, 10))
    assert kept() == list(range(now + 50, now + 100, 10))
    put(*range(now, now + 36000, 3600), step=3600)
    assert len(kept(3600)) == 5 and len(kept()) == 5
    records.close()
