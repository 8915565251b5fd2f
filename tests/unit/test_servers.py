"""Reservations for Jupyter servers: nothing counted twice, and nobody comes between."""

from __future__ import annotations

import os
import pwd
import uuid
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from traitlets.config import Config

from genv_jupyter.broker import failpoints
from genv_jupyter.broker.config import BrokerConfig
from genv_jupyter.devices.source import ProcessReading
from genv_jupyter.errors import (
    BadRequest,
    Conflict,
    Forbidden,
    GpuError,
    NoCapacity,
    OutOfRange,
    QuotaExceeded,
    UnknownEnvironment,
    UnknownUser,
)
from genv_jupyter.model import (
    Environment,
    KernelReport,
    NewEnvironment,
    Principal,
    Request,
    ServerReport,
)
from genv_jupyter.reserving import NewReservation
from tests.unit.brokers import GIB, HALF, WHOLE, Bench, bench

HUB = Principal(realm="hub", id="the-hub", name="the-hub", admin=True)
ANN = Principal(realm="hub", id="ann", name="ann")
BOB = Principal(realm="hub", id="bob", name="bob")


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path, "1x24GiB") as made:
        made.broker.core.kind = "host"
        made.me = ANN
        yield made


def reserve(there: Bench, request: Request = HALF, **more: object) -> Environment:
    new = NewReservation(**{"user": "ann", "request": request, **more})
    return there.broker.reserve(HUB, new)


def register(there: Bench, reservation: str | None, by: Principal | None = None) -> None:
    """A server starts that was told of a reservation."""
    there.server = str(uuid.uuid4())
    there.server_process = there.process()
    report = ServerReport(pid=there.server_process.pid, version="0.1.0", reservation=reservation)
    there.broker.put_server(by or there.me, there.server, report)


def serve(there: Bench, request: Request = HALF, **more: object) -> Environment:
    made = reserve(there, request, **more)
    register(there, made.id)
    return now(there, made)


def now(there: Bench, made: Environment, by: Principal = HUB) -> Environment:
    return there.broker.environment(by, made.id)


def ended(there: Bench, made: Environment) -> bool:
    try:
        now(there, made)
    except UnknownEnvironment:
        return True
    return False


def stranger(there: Bench, request: Request) -> Environment | GpuError:
    """What somebody else gets now."""
    process = there.process()
    made = there.broker.create(BOB, NewEnvironment(kind="command", pid=process.pid))
    try:
        return there.broker.attach(BOB, made.id, request)
    except GpuError as error:
        there.end(process)
        return error


def held(there: Bench) -> int:
    return there.broker.books.slots[there.device(0)].granted


def rest(there: Bench, made: Environment) -> int:
    return sum(grant.memory for grant in now(there, made).grants)


# -- making one ----------------------------------------------------------------------------------


def test_what_is_reserved_is_the_users_and_nobody_elses(there: Bench) -> None:
    made = reserve(there, WHOLE, server="gpu")
    assert (made.kind, made.state, made.user, made.name) == (
        "server",
        "reserved",
        "ann",
        "server gpu",
    )
    (grant,) = made.grants
    assert grant.exclusive
    refused = stranger(there, HALF)
    assert isinstance(refused, NoCapacity)
    assert "server of ann holds all of it" in str(refused)
    assert there.broker.books.environments[made.id].owner == "hub:ann"
    assert now(there, made, ANN).environ is None


def test_only_administrators_reserve(there: Bench) -> None:
    for caller in (ANN, BOB):
        with pytest.raises(Forbidden):
            there.broker.reserve(caller, NewReservation(user="ann", request=HALF))
    assert not held(there)


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"request": Request(fraction=0.5, wait=60)}, BadRequest),
        ({"request": Request(fraction=0.5, duration="1h")}, BadRequest),
        ({"request": Request()}, BadRequest),
        ({"within": 0}, GpuError),
        ({"within": "2h"}, OutOfRange),
        ({"realm": "local", "user": "nobody-of-that-name"}, UnknownUser),
        ({"user": ""}, BadRequest),
    ],
)
def test_bad_reservations_change_nothing(
    there: Bench, more: dict[str, object], error: type[GpuError]
) -> None:
    with pytest.raises(error) as told:
        reserve(there, **more)  # type: ignore[arg-type]
    assert 400 <= told.value.status < 500
    assert told.value.hint
    assert not held(there)


def test_an_account_of_the_host_is_an_owner(there: Bench) -> None:
    made = reserve(there, realm="local", user=pwd.getpwuid(os.getuid()).pw_name)
    assert there.broker.books.environments[made.id].owner == f"local:{os.getuid()}"


def test_groups_that_the_hub_tells_bound_its_users(tmp_path: Path) -> None:
    limits = {"default": {"devices": 0}, "groups": {"lab": {"devices": 1}}}
    with bench(tmp_path, "1x24GiB", config=BrokerConfig(Config(QuotaSettings=limits))) as there:
        there.broker.core.kind = "host"
        with pytest.raises(QuotaExceeded):
            reserve(there)
        assert reserve(there, groups=("lab",))


def test_one_setting_makes_a_user_of_the_hub_an_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, account = pwd.getpwnam, pwd.struct_passwd(("ann", "x", 4711, 4711, "", "/", "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwnam", lambda name: account if name == "ann" else known(name))
    config = BrokerConfig(Config(HubAccess={"local_users": True}))
    with bench(tmp_path, config=config) as there:
        there.broker.core.kind = "host"
        made = reserve(there, user="ann", groups=("lab",))
        owner = there.broker.books.environments[made.id].owner
        assert owner == "local:4711"
        assert "lab" in there.broker.core.identities.of(owner).groups
        for name in ("nobody-of-that-name", "root"):
            with pytest.raises(Forbidden):
                reserve(there, user=name)
        assert len(there.broker.books.environments) == 1


def test_a_refusal_names_holders_and_keeps_what_was_reserved_before(there: Bench) -> None:
    before = reserve(there, HALF)
    assert isinstance(stranger(there, HALF), Environment)
    with pytest.raises(NoCapacity) as told:
        reserve(there, WHOLE)
    assert [it["user"] for it in told.value.details["holders"] if it["user"] == "bob"]
    assert rest(there, before) == now(there, before).grants[0].memory > 0


def test_a_new_reservation_stands_in_place_of_the_same_servers(there: Bench) -> None:
    before, other = reserve(there, HALF), reserve(there, Request(memory=GIB), server="other")
    after = reserve(there, Request(memory=20 * GIB))
    assert ended(there, before)
    assert not ended(there, other)
    assert held(there) == rest(there, after) + GIB


def test_reservations_are_on_the_owners_quota(tmp_path: Path) -> None:
    config = BrokerConfig(Config(QuotaSettings={"users": {"ann": {"devices": 1}}}))
    with bench(tmp_path, "3x24GiB", config=config) as there:
        there.broker.core.kind = "host"
        there.me = ANN
        made = serve(there, WHOLE)
        with pytest.raises(QuotaExceeded):
            reserve(there, HALF, server="another")
        assert reserve(there, WHOLE, user="bob")
        again = reserve(there, HALF)  # in its place
        assert ended(there, made)
        register(there, again.id)
        kernel = there.kernel()
        kernel.attach(WHOLE)  # half of it is reserved: more than that, and no more than one
        other = there.kernel()
        with pytest.raises(QuotaExceeded):
            other.attach(Request(memory=GIB))
        kernel.detach()
        kernel.attach(HALF)
        other.attach(HALF)
        with pytest.raises(QuotaExceeded):
            there.kernel().attach(Request(memory=GIB))


def test_what_stands_in_its_place_is_not_counted_beside_it(tmp_path: Path) -> None:
    config = BrokerConfig(Config(QuotaSettings={"users": {"ann": {"devices": 1}}}))
    with bench(tmp_path, config=config) as there:
        there.broker.core.kind = "host"
        reserve(there, Request(devices=("0",), fraction=0.5))
        assert isinstance(stranger(there, Request(devices=("0",), memory=GIB)), Environment)
        (grant,) = reserve(there, WHOLE).grants
        assert grant.device == there.device(1)


def test_a_reservation_is_no_environment_of_the_quota(tmp_path: Path) -> None:
    config = BrokerConfig(Config(QuotaSettings={"users": {"ann": {"environments": 1}}}))
    with bench(tmp_path, "3x24GiB", config=config) as there:
        there.broker.core.kind = "host"
        there.me = ANN
        serve(there, WHOLE)
        there.kernel().attach(HALF)
        reserve(there, HALF, server="another")
        with pytest.raises(QuotaExceeded):
            there.kernel().attach(HALF)


# -- its life ------------------------------------------------------------------------------------


def test_it_is_held_from_the_registration_to_the_end_of_the_server(there: Bench) -> None:
    made = reserve(there, WHOLE)
    register(there, made.id)
    assert now(there, made).state == "granted"
    assert now(there, made).server == there.server
    there.tick(3600)
    assert not ended(there, made)
    there.broker.end_server(ANN, there.server)
    assert ended(there, made)
    assert not held(there)


def test_it_is_free_when_the_server_was_killed(there: Bench) -> None:
    made = serve(there, WHOLE)
    there.end(there.server_process)
    there.tick()
    assert ended(there, made)
    assert not held(there)


def test_a_server_that_was_replaced_has_no_say_in_it_any_more(there: Bench) -> None:
    made = serve(there)
    before = there.server
    there.end(there.server_process)
    register(there, made.id)  # before anybody has noticed the end
    again = there.process()
    there.broker.put_server(ANN, before, ServerReport(pid=again.pid, version="0.1.0"))
    there.broker.end_server(ANN, before)
    there.tick()
    assert now(there, made).state == "granted"


def test_it_is_free_when_no_server_comes_in_time(there: Bench) -> None:
    made = reserve(there, WHOLE, within=90)
    there.tick(89)
    assert not ended(there, made)
    there.tick(2)
    assert ended(there, made)
    register(there, made.id)
    assert not held(there)


def test_it_outlives_the_broker(there: Bench) -> None:
    made = serve(there, HALF)
    kernel = there.kernel()
    kernel.attach(Request(memory=4 * GIB))
    before = now(there, made).grants
    there.reopen()
    there.broker.core.kind = "host"
    assert now(there, made).grants == before
    kernel.detach()
    assert rest(there, made) == before[0].memory + 4 * GIB


def test_its_owner_gives_it_back(there: Bench) -> None:
    made = serve(there, HALF)
    gone = there.broker.detach(ANN, made.id)
    assert gone.state == "released"
    assert ended(there, made)
    assert not held(there)


def test_nobody_attaches_to_the_reservation_itself(there: Bench) -> None:
    made = serve(there, HALF)
    with pytest.raises(Conflict):
        there.broker.attach(ANN, made.id, WHOLE)
    with pytest.raises(GpuError):
        there.broker.put_kernel(ANN, there.server, made.id, KernelReport(phase="starting"))
    there.broker.end_kernel(ANN, there.server, made.id)
    assert rest(there, made)


def test_somebody_elses_reservation_leads_nowhere(there: Bench) -> None:
    made = reserve(there, WHOLE)
    register(there, made.id, BOB)
    there.me = BOB
    with pytest.raises(NoCapacity):
        there.kernel().attach(HALF)
    assert now(there, made).state == "reserved"
    there.me = ANN
    register(there, made.id)
    first = there.server
    register(there, made.id)  # another server of the same user, while the first one lives
    assert now(there, made).server == first
    with pytest.raises(NoCapacity):
        there.kernel().attach(HALF)


def test_nonsense_for_a_reservation_is_no_reason_not_to_register(there: Bench) -> None:
    register(there, None)
    for name in ("", "x" * 5000, str(uuid.uuid4()), there.kernel().id):
        register(there, name)
        assert there.server in there.broker.books.servers
        assert not there.broker.books.reserved


# -- drawing on it -------------------------------------------------------------------------------


@pytest.mark.parametrize("whole", [False, True])
def test_two_kernels_share_what_is_reserved(there: Bench, whole: bool) -> None:
    made = serve(there, WHOLE if whole else HALF)
    all_of_it = held(there)
    one, two = there.kernel(), there.kernel()
    quarter = Request(fraction=0.25)
    for kernel in (one, two):
        kernel.attach(quarter)
        assert isinstance(stranger(there, Request(memory=13 * GIB)), NoCapacity)
    assert one.devices == two.devices
    if whole:
        assert rest(there, made) > 0
        assert isinstance(stranger(there, Request(memory=GIB // 2)), NoCapacity)
    else:
        assert rest(there, made) == 0
        assert held(there) == all_of_it
    for kernel in (one, two):
        kernel.detach()
    assert held(there) == all_of_it
    assert (now(there, made).grants[0].exclusive, len(now(there, made).grants)) == (whole, 1)


def test_a_whole_device_is_drawn_and_given_back(there: Bench) -> None:
    made = serve(there, WHOLE)
    kernel = there.kernel()
    kernel.attach(WHOLE)
    assert kernel.now.grants[0].exclusive
    assert now(there, made).grants == ()
    assert now(there, made).state == "granted"
    there.broker.end_kernel(ANN, there.server, kernel.id)
    there.end(kernel.process)
    there.tick()
    assert now(there, made).grants[0].exclusive
    assert isinstance(stranger(there, Request(memory=GIB)), NoCapacity)


def test_what_is_more_than_reserved_comes_out_of_everybodys(there: Bench) -> None:
    made = serve(there, HALF)
    kernel = there.kernel()
    kernel.attach(WHOLE)
    assert kernel.now.grants[0].exclusive
    assert rest(there, made) == 0
    kernel.attach(Request(memory=4 * GIB))
    assert isinstance(stranger(there, Request(memory=13 * GIB)), NoCapacity)
    assert isinstance(stranger(there, Request(memory=11 * GIB)), Environment)
    with pytest.raises(NoCapacity):
        kernel.attach(Request(memory=14 * GIB))
    kernel.attach(HALF)


def test_what_a_kernel_held_goes_back_before_anybody_asks(there: Bench) -> None:
    """At every step of the end of a kernel a competitor asks, and never gets it."""
    made = serve(there, WHOLE)
    kernel = there.kernel()
    kernel.attach(HALF)

    def nothing_to_be_had(_: object = None) -> None:
        assert isinstance(stranger(there, Request(memory=GIB)), NoCapacity)

    for step in (
        lambda: there.tell(kernel.id, phase="restarting"),
        lambda: there.end(kernel.process),
        there.tick,
        lambda: there.broker.end_kernel(ANN, there.server, kernel.id),
        there.tick,
    ):
        step()
        nothing_to_be_had()
    assert now(there, made).grants[0].exclusive


def test_it_is_drawn_from_while_others_wait_for_what_is_free(there: Bench) -> None:
    made = serve(there, HALF)
    waiting = stranger(there, Request(gpus=1, wait=3600))
    assert isinstance(waiting, Environment)
    assert waiting.state == "waiting"
    there.tick(600)
    there.broker.queue.round()
    kernel = there.kernel()
    with pytest.raises(NoCapacity):  # more than is reserved
        kernel.attach(Request(memory=16 * GIB))
    kernel.attach(HALF)
    assert rest(there, made) == 0
    with pytest.raises(NoCapacity):  # the other half is kept for who waits
        there.kernel().attach(HALF)


@pytest.mark.parametrize("where", ["inside_reserve", "after_reserve", "inside_confirm"])
def test_a_crash_in_an_attach_loses_nothing_of_it(there: Bench, where: str) -> None:
    made = serve(there, WHOLE)
    before = now(there, made).grants[0]
    kernel = there.kernel()

    class Crash(BaseException):
        pass

    def reach(name: str) -> None:
        if name == where:
            raise Crash

    with (
        mock.patch.object(failpoints, "reach", reach),
        mock.patch("genv_jupyter.broker.attach.undo", lambda *_: None),
        pytest.raises(Crash),
    ):
        kernel.attach(HALF)
    there.reopen()
    there.broker.core.kind = "host"
    after = now(there, made).grants[0]
    assert (after.memory, after.exclusive, after.since) == (before.memory, True, before.since)


@pytest.mark.parametrize("where", ["inside_server_reserve", "after_server_reserve"])
def test_a_crash_in_a_reservation_leaves_all_or_nothing(there: Bench, where: str) -> None:
    before = reserve(there, HALF)

    def reach(name: str) -> None:
        if name == where:
            raise KeyboardInterrupt

    with mock.patch.object(failpoints, "reach", reach), pytest.raises(KeyboardInterrupt):
        reserve(there, WHOLE)
    there.reopen()
    assert ended(there, before) == (where == "after_server_reserve")
    (row,) = [it for it in there.broker.books.environments.values() if it.kind == "server"]
    assert row.deadline is not None


def test_a_device_that_has_become_smaller_is_no_reason_to_fail(there: Bench) -> None:
    made = serve(there, WHOLE)
    kernel, other = there.kernel(), there.kernel()
    kernel.attach(Request(memory=4 * GIB))
    other.attach(Request(memory=2 * GIB))
    there.source.devices[0].memory_total = 12 * GIB
    there.broker.core.outdate()
    there.tick()
    kernel.detach()
    other.detach()
    assert now(there, made).grants[0].exclusive
    assert isinstance(stranger(there, Request(memory=GIB)), NoCapacity)


def test_what_a_desktop_leaves_of_a_whole_device_is_nobody_elses(there: Bench) -> None:
    processes = there.source.devices[0].processes
    assert processes is not None
    processes.append(ProcessReading(1, GIB // 2, "graphics"))
    there.tick()
    serve(there, WHOLE)
    there.kernel().attach(HALF)
    processes.clear()
    there.tick()
    assert isinstance(stranger(there, Request(memory=GIB // 4)), NoCapacity)


def test_kernels_that_live_on_keep_what_they_have_drawn(there: Bench) -> None:
    made = serve(there, WHOLE)
    kernel = there.kernel()
    kernel.attach(HALF)
    there.end(there.server_process)
    there.tick()
    assert ended(there, made)
    assert kernel.devices
    assert isinstance(stranger(there, HALF), Environment)
    there.end(kernel.process)
    there.tick()
    there.tick()
    assert isinstance(stranger(there, HALF), Environment)
