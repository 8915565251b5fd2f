"""What the listeners of a broker are told, and when nothing is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from genv_jupyter.broker.events import Listener, Publisher
from genv_jupyter.broker.quotas import Quotas
from genv_jupyter.errors import OutOfRange
from genv_jupyter.events import Event
from genv_jupyter.ledger.records import RecordsLedger
from genv_jupyter.model import Request
from genv_jupyter.quotas import QuotaLimits
from tests.unit.brokers import HALF, Bench, bench

T = TypeVar("T")


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path) as made:
        yield made


async def at_once(verb: Callable[[], T]) -> T:
    return verb()


def told(listener: Listener) -> list[Event]:
    found = []
    while not listener.queue.empty():
        line = listener.queue.get_nowait()
        assert line is not None
        found.append(msgspec.json.decode(line, type=Event))
    return found


def test_what_the_snapshot_has_is_not_told_again(desk: Bench) -> None:
    async def scenario() -> None:
        publisher = Publisher(desk.broker, at_once, desk.me)
        desk.kernel()
        listener = await publisher.listen(None, None)
        await publisher.publish()
        assert [event.snapshot for event in told(listener)] == [True]

    asyncio.run(scenario())


def test_one_who_comes_while_a_change_is_told_does_not_miss_it(desk: Bench) -> None:
    async def scenario() -> None:
        kernel = desk.kernel()
        late: list[Listener] = []

        async def run(verb: Callable[[], T]) -> T:
            if first.queue.empty() and not late:
                publisher.run = at_once
                late.append(await publisher.listen(desk.server, None))
                kernel.attach(HALF)
            return verb()

        publisher = Publisher(desk.broker, at_once, desk.me)
        first = await publisher.listen(None, None)
        told(first)
        publisher.run = run
        await publisher.publish()
        held = [event.environments[-1].grants for event in told(late[0])]
        assert held[0] == () and held[-1] != ()

    asyncio.run(scenario())


def test_a_server_hears_nothing_of_devices_outside_its_pool(desk: Bench) -> None:
    async def scenario() -> None:
        desk.register(pool="0")
        publisher = Publisher(desk.broker, at_once, desk.me)
        listener = await publisher.listen(desk.server, None)
        told(listener)
        desk.source.devices[1].utilization = 50
        desk.tick()
        await publisher.publish()
        assert told(listener) == []
        desk.source.devices[0].utilization = 50
        desk.tick()
        await publisher.publish()
        assert [[d.uuid for d in event.devices] for event in told(listener)] == [[desk.device(0)]]

    asyncio.run(scenario())


def test_a_change_that_cannot_be_told_does_not_silence_the_next(
    desk: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        publisher = Publisher(desk.broker, at_once, desk.me)
        listener = await publisher.listen(None, None)
        told(listener)
        serving = asyncio.create_task(publisher.serve())
        with monkeypatch.context() as broken:
            broken.setattr(desk.broker, "changes_for", lambda principals: 1 / 0)
            publisher.nudge()
            while "could not be told" not in caplog.text:
                await asyncio.sleep(0.01)
        desk.kernel()
        publisher.nudge()
        line = await listener.queue.get()
        assert line is not None and b"a.ipynb" in line
        serving.cancel()

    asyncio.run(scenario())


def test_servers_alone_hear_what_was_counted_also_where_nothing_else_has_changed(
    desk: Bench,
) -> None:
    async def scenario() -> None:
        publisher = Publisher(desk.broker, at_once, desk.me)
        viewer = await publisher.listen(None, None)
        server = await publisher.listen(desk.server, None)
        (first,) = told(server)
        assert first.figures is not None and sum(first.figures.attaches) == 0
        kernel = desk.kernel()
        await publisher.publish()
        told(viewer), told(server)
        with pytest.raises(OutOfRange):
            kernel.attach(Request(gpus=3))
        await publisher.publish()
        await publisher.publish()
        assert told(viewer) == []
        (event,) = told(server)
        assert event.figures is not None and sum(event.figures.attaches) == 1

    asyncio.run(scenario())


def test_a_rule_of_quotas_is_told_once_and_who_listens(desk: Bench, tmp_path: Path) -> None:
    records = RecordsLedger(tmp_path / "records.sqlite")
    records.open()
    desk.broker.core.quotas = Quotas(desk.broker.core, records)

    async def scenario() -> None:
        publisher = Publisher(desk.broker, at_once, desk.me)
        listener = await publisher.listen(None, None, desk.me)
        [first] = told(listener)
        assert first.health is not None
        assert (first.health.quotas, first.health.user) == (0, desk.me.name)

        seen = [0]
        for limits in (QuotaLimits(devices=1), QuotaLimits(devices=2)):
            desk.broker.set_quota(desk.me, "default", limits)
            for _ in range(2):
                await publisher.publish()
            [event] = told(listener)
            assert event.health is not None
            seen.append(event.health.quotas)
        assert seen == sorted(set(seen)), "each change is another number"
        desk.broker.set_quota(desk.me, "default", None)
        await publisher.publish()
        assert [it.health.quotas for it in told(listener) if it.health] == [0]

    asyncio.run(scenario())
    records.close()


def test_since_when_a_kernel_is_as_it_is_is_told(desk: Bench) -> None:
    kernel = desk.kernel()
    since = desk.broker.core.stamp()
    desk.tell(kernel.id, kernel_state="busy", kernel_state_since=since)
    told_now = desk.broker.environment(desk.me, kernel.id)
    assert (told_now.kernel_state, told_now.kernel_state_since) == ("busy", since)
    assert told_now.idle_since is None
