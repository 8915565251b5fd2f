"""How warm a device is and what power it takes: shown, and no news when it has hardly moved."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from genv_jupyter.devices.simulated import SimulatedDevice
from tests.unit.brokers import Bench, bench


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path) as made:
        made.source.devices[0].temperature, made.source.devices[0].power = 40, 60_000
        made.tick(1)
        made.broker.changes(made.me)
        yield made


def told(desk: Bench) -> list[str]:
    """Let a second pass, and return the devices that are told of."""
    desk.tick(1)
    event = desk.broker.changes(desk.me)
    return [] if event is None else [device.uuid for device in event.devices]


def first(desk: Bench) -> SimulatedDevice:
    return desk.source.devices[0]


def test_idle_device_whose_sensors_flicker_is_no_news(desk: Bench) -> None:
    for temperature, power in ((41, 62_000), (40, 64_900), (39, 55_100), (41, 60_000)):
        first(desk).temperature, first(desk).power = temperature, power
        assert told(desk) == []
    assert desk.broker.devices()[0].temperature == 41, "whoever asks is told what it is now"


@pytest.mark.parametrize(("field", "value"), [("temperature", 42), ("power", 65_000)])
def test_what_has_moved_is_told(desk: Bench, field: str, value: int) -> None:
    setattr(first(desk), field, value)
    assert told(desk) == [desk.device(0)]
    assert told(desk) == [], "once"


def test_slow_drift_is_told_when_it_adds_up(desk: Bench) -> None:
    news = []
    for temperature in range(41, 51):
        first(desk).temperature = temperature
        news += told(desk)
    assert len(news) == 5, "every 2 degrees"


def test_sensor_that_is_not_told_any_more_is_news(desk: Bench) -> None:
    first(desk).temperature = None
    assert told(desk) == [desk.device(0)]
    assert desk.broker.devices()[0].temperature is None


@pytest.mark.parametrize(
    ("health", "said"),
    [
        ("lost", "GPU 0 has fallen off the bus"),
        ("unknown", "GPU 0 could not be read this time"),
        ("unreliable", "GPU 0 is not to be relied on"),
        ("ok", None),
    ],
)
def test_trouble_of_a_device_is_a_sentence(desk: Bench, health: str, said: str | None) -> None:
    first(desk).health = health  # type: ignore[assignment]
    desk.tick(1)
    trouble = desk.broker.devices()[0].trouble
    assert trouble is None if said is None else said in (trouble or "")
