"""Devices under maintenance: nobody gets anything new there, and who holds something keeps it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from genv_jupyter.broker.upkeep import LONGEST, Upkeep
from genv_jupyter.errors import BadRequest, Forbidden, NoCapacity, Unavailable, UnknownDevice
from genv_jupyter.ledger.records import RecordsLedger
from genv_jupyter.maintenance import DevicePatch
from genv_jupyter.model import Device, Principal, Request
from genv_jupyter.notices import Notice
from tests.unit.brokers import HALF, WHOLE, Bench, bench

ADMIN = Principal(realm="local", id="4243", name="carol", admin=True)
DRAIN = DevicePatch(maintenance=True, reason="a new fan")
BACK = DevicePatch(maintenance=False)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Bench]:
    """A broker whose records are there."""
    records = RecordsLedger(tmp_path / "records.sqlite")
    records.open()
    with bench(tmp_path) as made:
        keep(made, records)
        yield made
    records.close()


def keep(desk: Bench, records: RecordsLedger) -> None:
    core = desk.broker.core
    core.upkeep = Upkeep(core, desk.broker.lock, records)


def drain(desk: Bench, number: int, body: DevicePatch = DRAIN) -> Device:
    return desk.broker.patch_device(ADMIN, str(number), body)


def notices(desk: Bench) -> list[Notice]:
    return [it for it in desk.broker.notices(desk.me) if it.kind == "maintenance"]


def test_a_drained_device_is_given_to_nobody(desk: Bench) -> None:
    found = drain(desk, 0)
    assert found.uuid == desk.device(0) and found.maintenance is not None
    assert (found.maintenance.by, found.maintenance.reason) == ("carol", "a new fan")
    for request in (HALF, Request(memory="1G"), WHOLE):
        kernel = desk.kernel()
        kernel.attach(request)
        assert kernel.devices == [desk.device(1)]
        kernel.detach()
    with pytest.raises(NoCapacity) as refused:
        desk.kernel().attach(Request(gpus=2))
    assert "by carol: a new fan" in refused.value.message
    named = Request(devices=("0",), fraction=0.1)
    with pytest.raises(
        NoCapacity, match=r"GPU 0 is under maintenance since .* by carol: a new fan"
    ):
        desk.kernel().attach(named)


def test_who_is_there_keeps_it_and_is_told(desk: Bench) -> None:
    kernel, other = desk.kernel(), desk.kernel()
    kernel.attach(HALF)
    drain(desk, 0)
    (notice,) = notices(desk)
    assert notice.environment == kernel.id and notice.actions == ("release", "dismiss")
    assert "GPU 0 is under maintenance since" in notice.message
    with pytest.raises(NoCapacity, match=r"holds 12 GiB.*under maintenance"):
        other.attach(Request(devices=("0",), memory="1G"))
    kernel.attach(HALF)
    kernel.attach(Request(fraction=0.25))
    assert kernel.devices == [desk.device(0)]
    kernel.restart()
    assert kernel.devices == [desk.device(0)]
    kernel.detach()
    desk.tick(1)
    assert notices(desk) == []
    with pytest.raises(NoCapacity):
        kernel.attach(Request(devices=("0",), memory="1G"))


def test_putting_it_back_ends_it(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(HALF)
    drain(desk, 0)
    assert drain(desk, 0, BACK).maintenance is None
    assert notices(desk) == []
    other = desk.kernel()
    other.attach(HALF)
    assert other.devices == [desk.device(0)]
    assert drain(desk, 0, BACK).maintenance is None  # again is nothing


def test_it_lasts_over_a_restart_of_the_broker(desk: Bench) -> None:
    records = desk.broker.core.upkeep.records
    assert records is not None
    drain(desk, 0)
    drain(desk, 0, DevicePatch(maintenance=True, reason="a new\n card"))
    desk.reopen()
    keep(desk, records)
    found = desk.broker.devices()[0].maintenance
    assert found is not None and found.reason == "a new card"
    desk.register()
    kernel = desk.kernel()
    kernel.attach(HALF)
    assert kernel.devices == [desk.device(1)]


def test_a_device_that_comes_back_is_still_under_maintenance(desk: Bench) -> None:
    drain(desk, 0)
    gone = desk.source.devices.pop(0)
    desk.tick(2)
    assert gone.uuid not in {device.uuid for device in desk.broker.devices(fresh=True)}
    desk.source.devices.insert(0, gone)
    desk.tick(2)
    assert desk.broker.devices(fresh=True)[0].maintenance is not None
    kernel = desk.kernel()
    kernel.attach(HALF)
    assert kernel.devices == [desk.device(1)]


def test_who_waits_in_the_queue_gets_it_when_it_is_back(desk: Bench) -> None:
    drain(desk, 0)
    drain(desk, 1)
    kernel = desk.kernel()
    desk.broker.attach(desk.me, kernel.id, Request(fraction=0.5, wait="1h"))
    desk.broker.queue.round()
    assert kernel.now.state == "waiting" and kernel.devices == []
    drain(desk, 1, BACK)
    desk.broker.queue.round()
    assert kernel.devices == [desk.device(1)]


def test_the_change_is_told_to_who_listens(desk: Bench) -> None:
    desk.broker.changes(desk.me)
    drain(desk, 1)
    told = desk.broker.changes(desk.me)
    assert told is not None
    (device,) = told.devices
    assert device.uuid == desk.device(1) and device.maintenance is not None


def test_administrators_alone_drain(desk: Bench) -> None:
    desk.broker.core.kind = "host"
    for body in (DRAIN, BACK):
        with pytest.raises(Forbidden):
            desk.broker.patch_device(desk.me, "0", body)
    assert desk.broker.devices()[0].maintenance is None


def test_what_cannot_be_drained_is_said(desk: Bench) -> None:
    with pytest.raises(UnknownDevice):
        drain(desk, 7)
    with pytest.raises(BadRequest, match="201 characters"):
        drain(desk, 0, DevicePatch(maintenance=True, reason="x" * (LONGEST + 1)))
    desk.broker.core.upkeep.records = None
    with pytest.raises(Unavailable):
        drain(desk, 0)
    assert desk.broker.devices()[0].maintenance is None
