"""No device that was there vanishes silently."""

from __future__ import annotations

from genv_jupyter.devices.frames import Told
from genv_jupyter.devices.known import Known, Round
from genv_jupyter.devices.source import DeviceReading, ProcessReading


def gpu(index: int, letter: str) -> Told:
    device = DeviceReading(
        uuid=f"GPU-{letter}",
        index=index,
        memory_total=100,
        memory_free=60,
        processes=(ProcessReading(1, 40, "compute"),),
    )
    return Told(index, device.uuid, (device,))


def mig(index: int, letter: str, *instances: str) -> Told:
    uuid = f"GPU-{letter}"
    devices = tuple(
        DeviceReading(uuid=f"MIG-{name}", kind="mig", parent=uuid, parent_index=index)
        for name in instances
    )
    return Told(index, uuid, devices)


def health(known: Known, *told: Told, count: int | None = None, complete: bool = True):
    count = len(told) if count is None else count
    new = Round(count, "1", told={each.index: each for each in told}, complete=complete)
    return {device.uuid: device.health for device in known.combine(new).devices}


def test_lost_gpu_stays_listed_and_the_others_go_on():
    known = Known()
    health(known, gpu(0, "a"), gpu(1, "b"))
    new = Round(2, "1", told={0: gpu(0, "a"), 1: Told(1, "GPU-b", fault="lost")}, complete=True)
    first, second = known.combine(new).devices
    assert (first.health, first.memory_free) == ("ok", 60)
    assert (second.uuid, second.health, second.memory_total) == ("GPU-b", "lost", 100)
    assert second.memory_free is None and second.processes is None
    assert known.any_lost


def test_gpu_that_a_fresh_driver_no_longer_counts_is_lost_and_gives_up_its_number():
    known = Known()
    known.opened(2)
    health(known, gpu(0, "a"), gpu(1, "b"))
    assert not known.opened(1)
    new = Round(1, "1", told={0: gpu(0, "b")}, complete=True)
    devices = {device.uuid: device for device in known.combine(new).devices}
    assert (devices["GPU-b"].health, devices["GPU-b"].index) == ("ok", 0)
    assert (devices["GPU-a"].health, devices["GPU-a"].index) == ("lost", None)
    assert health(known, gpu(0, "a"), gpu(1, "b")) == {"GPU-a": "ok", "GPU-b": "ok"}
    assert not known.any_lost


def test_device_that_was_not_reached_is_unknown_with_its_last_reading():
    known = Known()
    health(known, gpu(0, "a"), gpu(1, "b"))
    assert health(known, gpu(1, "b"), count=2, complete=False) == {
        "GPU-a": "unknown",
        "GPU-b": "ok",
    }
    stale = known.stale("It hangs.")
    assert [device.health for device in stale.devices] == ["unknown", "unknown"]
    assert stale.devices[0].memory_free == 60
    assert stale.trouble == "It hangs."


def test_lost_device_is_not_called_unknown_while_the_driver_hangs():
    known = Known()
    health(known, gpu(0, "a"))
    health(known, Told(0, "GPU-a", fault="lost"))
    assert known.stale(None).devices[0].health == "lost"


def test_gpu_that_nobody_ever_saw_is_told_in_a_sentence():
    known = Known()
    new = Round(
        2,
        "1",
        told={0: gpu(0, "a"), 1: Told(1, None, fault="lost", why="GPU is lost")},
        complete=True,
    )
    inventory = known.combine(new)
    assert [device.uuid for device in inventory.devices] == ["GPU-a"]
    assert "GPU 1 fell off the bus (GPU is lost)" in (inventory.trouble or "")


def test_mig_instances_are_devices_and_go_with_a_new_layout():
    known = Known()
    assert health(known, gpu(0, "a"), gpu(1, "b")) == {"GPU-a": "ok", "GPU-b": "ok"}
    assert health(known, gpu(0, "a"), mig(1, "b", "1", "2")) == {
        "GPU-a": "ok",
        "MIG-1": "ok",
        "MIG-2": "ok",
    }
    assert health(known, gpu(0, "a"), mig(1, "b", "3")) == {"GPU-a": "ok", "MIG-3": "ok"}
    assert health(known, gpu(0, "a"), mig(1, "b")) == {"GPU-a": "ok"}
    assert health(known, gpu(0, "a"), gpu(1, "b")) == {"GPU-a": "ok", "GPU-b": "ok"}


def test_mig_instances_are_lost_with_their_gpu():
    known = Known()
    health(known, mig(0, "a", "1", "2"), gpu(1, "b"))
    assert health(known, Told(0, "GPU-a", fault="lost"), gpu(1, "b")) == {
        "MIG-1": "lost",
        "MIG-2": "lost",
        "GPU-b": "ok",
    }


def test_devices_are_in_index_order():
    known = Known()
    health(known, gpu(2, "c"), mig(0, "a", "1", "2"), gpu(1, "b"), count=3)
    assert [device.uuid for device in known.stale(None).devices] == [
        "MIG-1",
        "MIG-2",
        "GPU-b",
        "GPU-c",
    ]
