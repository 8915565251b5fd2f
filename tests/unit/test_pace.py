"""How often the driver is asked, and how old a reading may be that decides."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from genv_jupyter.broker import core as core_module
from genv_jupyter.broker.events import Listener, Publisher
from genv_jupyter.broker.pace import Pace, Sampling
from genv_jupyter.broker.release import FRESH
from genv_jupyter.devices.source import Inventory, ProcessReading
from genv_jupyter.errors import NoCapacity
from genv_jupyter.model import Request, ServerReport
from genv_jupyter.server.events import Hub
from tests.unit.brokers import GIB, HALF, Bench, Clock, bench


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path, "1x24GiB") as made:
        yield made


def due(pace: Pace, clock: Clock, seconds: int) -> int:
    """Return how often a reading was due in so many rounds, one a second."""
    count = 0
    for _ in range(seconds):
        clock.now += 1
        count += pace.due()
    return count


def test_devices_are_read_once_a_second_while_it_matters_and_seldom_otherwise(desk: Bench) -> None:
    clock, eyes = Clock(), [False]
    pace = Pace(desk.broker, lambda: eyes[0], clock)
    pace.due()
    assert due(pace, clock, 40) == 10
    eyes[0] = True
    assert due(pace, clock, 40) == 40, "somebody looks"
    eyes[0] = False
    kernel = desk.kernel()
    assert due(pace, clock, 40) == 10, "it holds nothing"
    kernel.attach(HALF)
    assert due(pace, clock, 40) == 40, "a cap is set"


def test_pace_is_that_of_the_configuration(desk: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Sampling(interval=5, rest=20)
    monkeypatch.setattr(desk.broker.core.config, "of", lambda kind: settings)
    clock = Clock()
    pace = Pace(desk.broker, lambda: True, clock)
    pace.due()
    assert due(pace, clock, 60) == 12
    assert due(Pace(desk.broker, lambda: False, clock), clock, 60) == 3


@pytest.mark.parametrize(("age", "read"), [(FRESH - 0.1, 0), (FRESH + 0.1, 1)])
def test_placement_relies_on_a_reading_of_two_seconds_and_has_an_older_one_read_anew(
    desk: Bench, monkeypatch: pytest.MonkeyPatch, age: float, read: int
) -> None:
    assert FRESH == 2.0
    desk.tick(1)
    now, readings = [core_module.time.monotonic()], 0
    real = desk.source.read

    def counted(*, details: bool = False) -> Inventory:
        nonlocal readings
        readings += 1
        return real(details=details)

    monkeypatch.setattr(desk.source, "read", counted)
    desk.broker.core.refresh()
    readings = 0
    at = desk.broker.core.last_reading
    monkeypatch.setattr(core_module.time, "monotonic", lambda: now[0])
    now[0] = at + age
    pid = desk.process().pid
    desk.source.devices[0].processes = [ProcessReading(pid, 20 * GIB, "compute")]
    ask = Request(memory="10G")
    if read:
        with pytest.raises(NoCapacity):
            desk.broker.place(desk.me, ask)
    else:
        desk.broker.place(desk.me, ask)
    assert readings == read


def test_server_that_nobody_looks_through_listens_for_its_kernels_alone(desk: Bench) -> None:
    publisher = Publisher(desk.broker, run=None, principal=desk.me)  # type: ignore[arg-type]
    assert not publisher.watched
    publisher.listeners.add(Listener(desk.server, desk.me))
    assert publisher.watched, "it has not said that nobody looks"
    report = ServerReport(pid=desk.server_process.pid, version="0.1.0", watched=False)
    desk.broker.put_server(desk.me, desk.server, report)
    assert not publisher.watched
    publisher.listeners.add(Listener(None, desk.me))
    assert publisher.watched
    publisher.listeners.clear()
    publisher.listeners.add(Listener(desk.server, desk.me))
    desk.register()
    assert publisher.watched


def test_hub_says_whether_a_browser_listens() -> None:
    told: list[bool] = []
    hub = Hub(told.append)
    first, second = Mock(), Mock()
    hub.join(first, None)
    hub.join(second, None)
    hub.leave(first)
    hub.leave(second)
    assert told == [True, True, True, False]
