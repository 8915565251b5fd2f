"""What users see of each other on a broker that serves several."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from traitlets.config import Config

from genv_jupyter.broker.config import BrokerConfig
from genv_jupyter.broker.discretion import SOMEBODY
from genv_jupyter.broker.events import Listener, Publisher
from genv_jupyter.broker.history_view import Past
from genv_jupyter.errors import NoCapacity, NotYours
from genv_jupyter.events import Event
from genv_jupyter.ledger.rows import EnvironmentRow
from genv_jupyter.ledger.samples import Holder
from genv_jupyter.model import Principal
from tests.unit.brokers import HALF, WHOLE, Bench, bench

OTHER = Principal(realm="local", id="4242", name="bob")
ADMIN = Principal(realm="local", id="4243", name="carol", admin=True)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path) as made:
        yield made


def see(desk: Bench, level: str) -> None:
    desk.broker.core.config = BrokerConfig(Config({"Discretion": {"others_see": level}}))


@pytest.mark.parametrize(
    ("level", "user", "name", "path"),
    [
        ("path", True, "a.ipynb", "notebooks/a.ipynb"),
        ("name", True, None, None),
        ("taken", False, None, None),
    ],
)
def test_others_see_what_the_policy_lets_them(
    desk: Bench, level: str, user: bool, name: str | None, path: str | None
) -> None:
    see(desk, level)
    kernel = desk.kernel(path="notebooks/a.ipynb")
    kernel.attach(WHOLE)
    shown = desk.broker.environment(ADMIN, kernel.id)
    assert (shown.user, shown.name) == (desk.me.name, "a.ipynb") and shown.environ
    (other,) = desk.broker.environments(OTHER)
    assert (other.user == desk.me.name, other.name, other.path) == (user, name, path)
    assert other.environ is None and other.processes is None and other.pid is None
    assert (other.request is not None) == (level == "path")
    (grant,) = [it for device in desk.broker.devices(viewer=OTHER) for it in device.grants]
    assert (grant.user == desk.me.name, grant.name) == (user, name)
    (own,) = [it for device in desk.broker.devices(viewer=desk.me) for it in device.grants]
    assert (own.user, own.name) == (desk.me.name, "a.ipynb")


@pytest.mark.parametrize("level", ["path", "name", "taken"])
def test_a_refusal_tells_no_more_than_that(desk: Bench, level: str) -> None:
    see(desk, level)
    for path in ("secret-1.ipynb", "secret-2.ipynb"):
        desk.kernel(path=path).attach(WHOLE)
    with pytest.raises(NoCapacity) as refused:
        desk.broker.place(OTHER, HALF)
    said = str(refused.value.payload())
    assert ("secret-1" in said) == (level == "path")
    assert (desk.me.name in said) == (level != "taken")
    assert "holds all of it" in said


def test_each_listener_sees_as_its_own_principal(desk: Bench) -> None:
    async def at_once(verb: Callable[[], object]) -> object:
        return verb()

    async def scenario() -> None:
        publisher = Publisher(desk.broker, at_once, desk.me)
        mine = await publisher.listen(None, None)
        others = await publisher.listen(None, None, OTHER)
        intruder = await publisher.listen(desk.server, None, OTHER)
        admins = await publisher.listen(None, None, ADMIN)
        for listener in (mine, others, intruder, admins):
            told(listener)
        kernel = desk.kernel(path="a.ipynb")
        kernel.attach(HALF)
        await publisher.publish()
        for listener in (mine, admins):
            (event,) = told(listener)
            (shown,) = event.environments
            assert shown.path == "a.ipynb" and shown.environ
        (event,) = told(others)
        (shown,) = event.environments
        assert shown.path is None and shown.environ is None and event.usage == ()
        (event,) = told(intruder)
        assert event.wants == ()  # it is no server of theirs
        server = await publisher.listen(desk.server, None)
        told(server)
        desk.broker.restart(desk.me, kernel.id)
        await publisher.publish()
        assert [want.action for event in told(intruder) for want in event.wants] == []
        assert "restart" in [want.action for event in told(server) for want in event.wants]

    asyncio.run(scenario())


def told(listener: Listener) -> list[Event]:
    found = []
    while not listener.queue.empty():
        line = listener.queue.get_nowait()
        assert line is not None
        found.append(msgspec.json.decode(line, type=Event))
    return found


@pytest.mark.parametrize(("level", "named"), [("path", True), ("name", True), ("taken", False)])
def test_a_refusal_to_touch_and_a_place_in_line_name_no_more(
    desk: Bench, level: str, named: bool
) -> None:
    see(desk, level)
    kernel = desk.kernel(path="secret.ipynb")
    kernel.attach(HALF)
    with pytest.raises(NotYours) as refused:
        desk.broker.detach(OTHER, kernel.id)
    assert (desk.me.name in refused.value.message) == named
    process = desk.process()
    theirs = EnvironmentRow.nobody(OTHER.key)
    theirs = msgspec.structs.replace(theirs, id="theirs", pid=process.pid)
    with desk.broker.books.change() as change:
        change.put_environment(theirs)
    user, name = desk.broker.label_of(kernel.id, theirs.id)
    assert (user == desk.me.name, name is not None) == (named, level == "path")
    own = desk.kernel(path="other.ipynb")
    assert desk.broker.label_of(kernel.id, own.id) == (desk.me.name, "secret.ipynb")


def test_history_names_nobody_where_users_are_hidden(tmp_path: Path) -> None:
    class Nothing:
        """No history: only what is made of holders matters here."""

    hidden = [True]
    past = Past(Nothing(), lambda: 0.0, (), lambda: True, lambda: hidden[0])  # type: ignore[arg-type]
    holders = {
        "a": Holder(environment="a", owner="local:1", user="ann", name="x", seen=0),
        "b": Holder(environment="b", owner=OTHER.key, user="bob", name="y", seen=0),
    }
    shown = past._shown(holders, OTHER)
    assert (shown["b"], shown["a"].owner, shown["a"].user) == (holders["b"], "others", SOMEBODY)
    assert past._shown(holders, ADMIN) == holders
    hidden[0] = False
    assert past._shown(holders, OTHER) == holders


def test_why_something_is_so_is_told_to_its_owner(desk: Bench) -> None:
    """It may have paths, pids, and what a program has said."""
    kernel = desk.kernel()
    kernel.attach(HALF)
    desk.tell(kernel.id, phase="restarting")
    desk.tell(kernel.id, failure="No such file: /home/ann/kingfisher/python")
    for who, told in ((desk.me, True), (ADMIN, True), (OTHER, False)):
        (seen,) = desk.broker.environments(who)
        assert ("kingfisher" in (seen.reason or "")) == told, who
