"""Simulated devices, and the port that all sources share."""

from __future__ import annotations

import pytest

from genv_jupyter.devices.simulated import SimulatedDevice, SimulatedSource, simulated_uuid
from genv_jupyter.devices.source import ProcessReading, open_source
from genv_jupyter.errors import BadRequest

GIB = 2**30


@pytest.mark.parametrize(
    ("spec", "sizes"),
    [
        ("2x24GiB", [24 * GIB] * 2),
        ("1x80GiB,2x24GiB", [80 * GIB, 24 * GIB, 24 * GIB]),
        (" 1 x 80GiB , 24G ", [80 * GIB, 24 * 10**9]),
        ("3X16gib", [16 * GIB] * 3),
    ],
)
def test_spec_makes_the_devices(spec, sizes):
    inventory = open_source(spec).read()
    assert inventory.simulated
    assert inventory.trouble is None
    assert [device.memory_total for device in inventory.devices] == sizes
    assert [device.memory_free for device in inventory.devices] == sizes
    assert [device.index for device in inventory.devices] == list(range(len(sizes)))
    assert [device.uuid for device in inventory.devices] == [
        simulated_uuid(index) for index in range(len(sizes))
    ]


@pytest.mark.parametrize(
    "spec",
    ["x", "0x24GiB", "2x", ",", "2x24GiB,", "257x1GiB", "1x-4G", "2x24", "1x99999999999E", "two"],
)
def test_bad_spec_is_refused_with_a_hint(spec):
    with pytest.raises(BadRequest) as caught:
        open_source(spec)
    assert "GENV_JUPYTER_SIMULATE" in caught.value.hint
    assert spec in caught.value.message


def test_uuids_are_stable_and_names_say_simulated():
    (device,) = open_source("1x24GiB").read().devices
    assert device.uuid == "GPU-51b00000-0000-4000-8000-000000000000"
    assert device.name == "Simulated GPU 24 GiB"


def test_changes_show_in_the_next_reading():
    source = SimulatedSource([SimulatedDevice("GPU-1", 0, 10 * GIB, memory_reserved=GIB)])
    assert source.read().devices[0].memory_used == 0
    device = source.devices[0]
    device.external_memory = 2 * GIB
    device.processes = [
        ProcessReading(9, GIB, "compute", "python"),
        ProcessReading(7, None, "mps"),
    ]
    reading = source.read().devices[0]
    assert reading.memory_used == 3 * GIB
    assert [process.pid for process in reading.processes or ()] == [7, 9]
    device.processes = None
    assert source.read().devices[0].processes is None
    source.trouble = "It burns."
    assert source.read().trouble == "It burns."


def test_lost_device_stays_listed_and_tells_nothing():
    source = SimulatedSource.from_spec("2x24GiB")
    source.devices[0].health = "lost"
    lost, other = source.read().devices
    assert (lost.health, lost.memory_free, lost.processes) == ("lost", None, None)
    assert lost.memory_used is None
    assert other.health == "ok"
    source.close()
