"""What owners are told: one notice for each environment and kind, renewed and not repeated."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from genv_jupyter.broker import noticeboard
from genv_jupyter.broker.events import Publisher
from genv_jupyter.errors import NotYours
from genv_jupyter.events import Event
from genv_jupyter.ledger.rows import EnvironmentRow
from genv_jupyter.model import Principal
from genv_jupyter.server.events import Hub
from tests.unit.brokers import Bench, bench
from tests.unit.test_broker_events import at_once, told

OTHER = Principal(realm="local", id="4242", name="someone")
ADMIN = Principal(realm="local", id="0", name="root", admin=True)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path) as made:
        yield made


@pytest.fixture
def row(desk: Bench) -> EnvironmentRow:
    return desk.broker.books.environments[desk.kernel().id]


def messages(desk: Bench, principal: Principal | None = None) -> list[str]:
    return [it.message for it in desk.broker.notices(principal or desk.me)]


def tell(desk: Bench, row: EnvironmentRow, message: str, **more: Any) -> str:
    return desk.broker.core.board.tell(row, more.pop("kind", "cap"), message, **more).id


def test_a_notice_is_told_to_its_owner_and_to_admins_alone(
    desk: Bench, row: EnvironmentRow
) -> None:
    tell(desk, row, "too much")
    assert messages(desk) == messages(desk, ADMIN) == ["too much"]
    assert messages(desk, OTHER) == []


def test_the_same_again_is_the_same_notice_and_no_news(desk: Bench, row: EnvironmentRow) -> None:
    first = tell(desk, row, "too much")
    since = desk.broker.notices(desk.me)[0].since
    assert desk.broker.core.board.news()
    desk.pass_time(60)
    assert tell(desk, row, "too much") == first
    assert [it.since for it in desk.broker.notices(desk.me)] == [since]
    assert not desk.broker.core.board.news()


def test_one_kind_replaces_its_own_and_no_other(desk: Bench, row: EnvironmentRow) -> None:
    tell(desk, row, "too much")
    tell(desk, row, "asleep", kind="idle")
    tell(desk, row, "far too much")
    assert messages(desk) == ["asleep", "far too much"]


def test_numbers_in_the_message_renew_it_where_the_topic_stays(
    desk: Bench, row: EnvironmentRow
) -> None:
    first = tell(desk, row, "11 GiB of 10", topic="cap")
    desk.broker.core.board.news()
    assert tell(desk, row, "12 GiB of 10", topic="cap") == first
    assert messages(desk) == ["12 GiB of 10"] and desk.broker.core.board.news()


@pytest.mark.parametrize(
    ("again", "shown"),
    [
        ({"message": "12 GiB", "topic": "cap"}, False),
        ({"message": "11 GiB", "topic": "cap", "level": "info"}, False),
        ({"message": "11 GiB", "topic": "cap", "level": "error"}, True),
        ({"message": "11 GiB", "topic": "kill"}, True),
    ],
)
def test_what_was_dismissed_comes_back_when_it_is_another_or_worse(
    desk: Bench, row: EnvironmentRow, again: dict[str, Any], shown: bool
) -> None:
    desk.broker.dismiss(desk.me, tell(desk, row, "11 GiB", topic="cap"))
    assert messages(desk) == []
    desk.broker.core.board.news()
    tell(desk, row, **again)
    assert messages(desk) == ([again["message"]] if shown else [])
    assert desk.broker.core.board.news() is shown


def test_what_was_withdrawn_comes_back_though_it_was_dismissed(
    desk: Bench, row: EnvironmentRow
) -> None:
    desk.broker.dismiss(desk.me, tell(desk, row, "too much"))
    desk.broker.core.board.withdraw(row, "cap", "idle")
    tell(desk, row, "too much")
    assert messages(desk) == ["too much"]


def test_nobody_dismisses_what_others_are_told(desk: Bench, row: EnvironmentRow) -> None:
    notice = tell(desk, row, "too much")
    with pytest.raises(NotYours):
        desk.broker.dismiss(OTHER, notice)
    assert messages(desk) == ["too much"]
    desk.broker.dismiss(ADMIN, notice)
    assert messages(desk) == []


def test_the_end_of_an_environment_ends_its_notices_but_not_what_was_ended(desk: Bench) -> None:
    kernel = desk.kernel()
    row = desk.broker.books.environments[kernel.id]
    tell(desk, row, "too much")
    tell(desk, row, "ended for it", kind="ended")
    desk.tick()
    assert messages(desk) == ["too much", "ended for it"]
    desk.end(kernel.process)
    desk.broker.end_kernel(desk.me, desk.server, kernel.id)
    desk.tick()
    assert messages(desk) == ["ended for it"]
    desk.tick(noticeboard.KEPT + 1)
    assert messages(desk) == []


def test_what_is_about_no_environment_has_an_owner_all_the_same(desk: Bench) -> None:
    nobody = EnvironmentRow.nobody(desk.me.key)
    tell(desk, nobody, "a process outside", kind="outside")
    desk.tick()
    (notice,) = desk.broker.notices(desk.me)
    assert notice.environment is None and notice.message == "a process outside"
    assert messages(desk, OTHER) == []


def test_the_board_is_bounded_for_each_owner(desk: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noticeboard, "MOST", 3)
    tell(desk, EnvironmentRow.nobody(OTHER.key), "another's", kind="ended")
    rows = [desk.broker.books.environments[desk.kernel(path=f"{n}").id] for n in range(5)]
    for number, row in enumerate(rows):
        tell(desk, row, f"{number}", kind="ended")
    assert messages(desk) == ["2", "3", "4"]
    assert messages(desk, OTHER) == ["another's"]


def test_what_stands_makes_no_room_or_it_would_be_told_anew_every_second(
    desk: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noticeboard, "MOST", 3)
    rows = [desk.broker.books.environments[desk.kernel(path=f"{n}").id] for n in range(5)]
    first = [tell(desk, row, "over its cap") for row in rows]
    tell(desk, rows[0], "killed", kind="ended")
    desk.broker.core.board.news()
    assert [tell(desk, row, "over its cap") for row in rows] == first
    assert not desk.broker.core.board.news()


def test_new_ones_are_recorded_once(
    desk: Bench, row: EnvironmentRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, str, str]] = []
    board = desk.broker.core.board
    board.record = lambda event, row, *, reason: seen.append((event, row.id, reason))
    for message in ("11 GiB", "12 GiB"):
        tell(desk, row, message, topic="cap")
    assert seen == [("notice", row.id, "cap: 11 GiB")]


def test_listeners_hear_the_whole_list_when_it_has_changed(
    desk: Bench, row: EnvironmentRow
) -> None:
    async def scenario() -> None:
        publisher = Publisher(desk.broker, at_once, desk.me)
        tell(desk, row, "before")
        listener = await publisher.listen(desk.server, None)
        await publisher.publish()
        assert [[it.message for it in e.notices or ()] for e in told(listener)] == [["before"]]
        tell(desk, row, "asleep", kind="idle")
        await publisher.publish()
        (event,) = told(listener)
        assert [it.message for it in event.notices or ()] == ["before", "asleep"]
        assert event.environments == () and event.devices == ()
        await publisher.publish()
        assert told(listener) == []
        desk.kernel(path="b.ipynb")
        await publisher.publish()
        assert [event.notices for event in told(listener)] == [None]
        desk.broker.core.board.withdraw(row, "cap", "idle")
        await publisher.publish()
        assert [event.notices for event in told(listener)] == [()]

    asyncio.run(scenario())


class Browser:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def send(self, text: str) -> None:
        self.events.append(msgspec.json.decode(text, type=Event))

    def end(self) -> None:
        raise AssertionError


def test_the_server_passes_them_on_and_keeps_them_for_who_comes_later(
    desk: Bench, row: EnvironmentRow
) -> None:
    hub, first, second = Hub(), Browser(), Browser()
    hub.publish(desk.broker.snapshot(desk.me))
    hub.join(first, None)
    tell(desk, row, "too much")
    event = desk.broker.changes(desk.me)
    assert event is not None
    alone = msgspec.structs.replace(event, environments=(), devices=(), usage=())
    hub.publish(alone)
    hub.publish(msgspec.structs.replace(alone, notices=None, revision=event.revision + 1))
    hub.join(second, None)
    seen = [first.events[-1].notices, second.events[-1].notices]
    assert [[it.message for it in notices or ()] for notices in seen] == [["too much"]] * 2
    assert len(first.events) == 2, "an event that says nothing is not passed on"
