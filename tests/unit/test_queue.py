"""The queue of a broker: places, turns, what is kept, what nobody takes up, and crashes."""

from __future__ import annotations

from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from genv_jupyter.broker import attach
from genv_jupyter.broker.core import Core
from genv_jupyter.broker.queue import Queue
from genv_jupyter.errors import (
    BadRequest,
    CudaInitialized,
    NoCapacity,
    NotYours,
    OutOfRange,
    UnknownTicket,
)
from genv_jupyter.ledger.rows import EnvironmentRow
from genv_jupyter.model import (
    Environment,
    EnvironmentPatch,
    NewEnvironment,
    Principal,
    QueueTicket,
    Request,
)
from genv_jupyter.notices import Notice
from tests.unit.brokers import GIB, HALF, WHOLE, Bench, Kernel, bench

HOUR = 3600
SMALL = Request(memory="4G")
BOTH = Request(gpus=2)
STRANGER = Principal(realm="local", id="4711", name="eve")


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path) as made:
        yield made


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path, "1x24GiB") as made:
        yield made


def waits(request: Request, wait: int | str = "1h") -> Request:
    return msgspec.structs.replace(request, wait=wait)


def queue(desk: Bench) -> Queue:
    return desk.broker.queue


def tickets(desk: Bench) -> list[QueueTicket]:
    return list(desk.broker.tickets(desk.me))


def turn(desk: Bench, seconds: float = 0.0) -> None:
    """Let time pass and the broker do what it does by itself."""
    desk.tick(seconds)
    queue(desk).round()


def join(
    kernel: Kernel, request: Request, wait: int | str = "1h", *, by: int | None = None
) -> Environment:
    """Ask from the kernel's sidebar, or, with ``by``, from a process."""
    desk = kernel.bench
    return desk.broker.attach(
        desk.me, kernel.id, waits(request, wait), cuda="not_initialized", peer_pid=by
    )


def free(kernel: Kernel) -> None:
    kernel.detach()
    turn(kernel.bench)


def told(desk: Bench) -> list[Notice]:
    return [notice for notice in desk.broker.notices(desk.me) if notice.kind == "queue"]


# -- getting in line ------------------------------------------------------------------------------


def test_with_room_nobody_waits(desk: Bench) -> None:
    kernel = desk.kernel()
    after = join(kernel, WHOLE)
    assert after.state == "granted" and after.pending is None and tickets(desk) == []
    assert after.request == WHOLE, "it has what it asked for: there is nothing to wait for"


def test_without_room_the_request_waits_and_the_old_grants_stay(one: Bench) -> None:
    holder, kernel = one.kernel("a.ipynb"), one.kernel("b.ipynb")
    holder.attach(HALF)
    kernel.attach(SMALL)
    before = kernel.now.grants
    after = join(kernel, WHOLE, "30m")
    assert after.state == "waiting" and after.pending == waits(WHOLE, "30m")
    assert after.request == SMALL and after.grants == before
    [ticket] = tickets(one)
    assert (ticket.environment, ticket.position, ticket.state) == (kernel.id, 1, "waiting")
    assert ticket.name == "b.ipynb" and ticket.user == one.me.name
    assert ticket.until is not None and ticket.until.timestamp() == one.clock.now + 1800
    free(holder)
    assert kernel.devices == [one.device(0)] and kernel.now.pending is None
    assert tickets(one) == [], "whoever had something before is there already"


def test_places_are_in_the_order_they_came(one: Bench) -> None:
    holder = one.kernel("a.ipynb")
    holder.attach(WHOLE)
    others = [one.kernel(f"{name}.ipynb") for name in "bcd"]
    for other in others:
        one.pass_time(1)
        join(other, WHOLE)
    assert [(t.position, t.name) for t in tickets(one)] == [
        (1, "b.ipynb"),
        (2, "c.ipynb"),
        (3, "d.ipynb"),
    ]
    assert "behind c.ipynb of" in tickets(one)[2].message
    free(holder)
    assert [bool(other.devices) for other in others] == [True, False, False]


def test_same_request_again_keeps_its_place_and_another_gets_a_new_one(one: Bench) -> None:
    holder, first, second = (one.kernel(f"{name}.ipynb") for name in "abc")
    holder.attach(WHOLE)
    join(first, WHOLE)
    join(second, WHOLE)
    before = tickets(one)[0].id
    one.pass_time(60)
    join(first, WHOLE, "2h")
    again = tickets(one)[0]
    assert (again.id, again.environment) == (before, first.id)
    assert again.until is not None and again.until.timestamp() == one.clock.now + 2 * HOUR
    join(first, HALF)
    assert [ticket.environment for ticket in tickets(one)] == [second.id, first.id]
    with pytest.raises(UnknownTicket):
        queue(one).leave(one.me, before)


def test_refused_request_keeps_the_place_and_one_that_is_met_gives_it_up(desk: Bench) -> None:
    holder, kernel = desk.kernel("a.ipynb"), desk.kernel("b.ipynb")
    holder.attach(SMALL)
    join(kernel, BOTH)
    with pytest.raises(NoCapacity):
        kernel.attach(BOTH)
    assert [ticket.environment for ticket in tickets(desk)] == [kernel.id]
    kernel.attach(HALF)
    assert tickets(desk) == [] and kernel.now.state == "granted"


@pytest.mark.parametrize(
    ("request_", "kind"),
    [
        (Request(gpus=3), OutOfRange),
        (Request(memory="100G"), OutOfRange),
        (Request(gpus=1, wait=0), OutOfRange),
        (Request(gpus=1, wait="soon"), BadRequest),
    ],
)
def test_what_never_comes_is_not_waited_for(
    desk: Bench, request_: Request, kind: type[Exception]
) -> None:
    kernel = desk.kernel()
    with pytest.raises(kind):
        join(kernel, request_, "1h" if request_.wait is None else request_.wait)
    assert tickets(desk) == []


def test_what_would_come_too_late_is_not_waited_for(one: Bench) -> None:
    holder, kernel = one.kernel("a.ipynb"), one.kernel("b.ipynb")
    holder.attach(WHOLE)
    with pytest.raises(CudaInitialized, match="would not be seen"):
        one.broker.attach(one.me, kernel.id, waits(WHOLE), cuda="initialized")
    after = one.broker.attach(one.me, kernel.id, waits(WHOLE), cuda="initialized", restart=True)
    assert after.state == "waiting"


# -- whose turn it is -----------------------------------------------------------------------------


def test_who_does_not_wait_is_behind_all_who_do(desk: Bench) -> None:
    holder, first, third = (desk.kernel(f"{name}.ipynb") for name in "abc")
    holder.attach(WHOLE)
    join(first, BOTH)
    with pytest.raises(NoCapacity) as refusal:
        third.attach(SMALL)
    assert "kept for b.ipynb of" in refusal.value.message
    assert "--wait" in refusal.value.hint
    assert desk.device(1) in refusal.value.details["reasons"]
    with pytest.raises(NoCapacity):
        desk.broker.place(desk.me, SMALL)
    free(holder)
    assert len(first.devices) == 2


def test_holder_may_have_less_whoever_waits(one: Bench) -> None:
    holder, first = one.kernel("a.ipynb"), one.kernel("b.ipynb")
    holder.attach(HALF)
    join(first, WHOLE, "5h")
    turn(one, HOUR)
    holder.attach(SMALL)
    assert holder.now.grants[0].memory == 4_000_000_000
    with pytest.raises(NoCapacity, match="kept for b"):
        holder.attach(HALF)


def test_device_is_held_after_a_while_and_the_queue_says_so(desk: Bench) -> None:
    one, two = desk.kernel("a.ipynb"), desk.kernel("b.ipynb")
    one.attach(Request(devices=("0",), memory="4G"))
    two.attach(Request(devices=("1",), memory="4G"))
    first = desk.kernel("c.ipynb")
    join(first, WHOLE, "5h")
    turn(desk)
    assert tickets(desk)[0].held == ()
    turn(desk, 301)
    [ticket] = tickets(desk)
    assert ticket.held == (desk.device(0),) and "GPU 0 is kept for it" in ticket.message
    small = desk.kernel("d.ipynb")
    small.attach(SMALL)
    assert small.devices == [desk.device(1)]
    with pytest.raises(NoCapacity, match="GPU 0 is kept for c"):
        desk.kernel().attach(Request(devices=("0",), memory="4G"))
    free(one)
    assert first.devices == [desk.device(0)]


def test_lease_that_is_over_in_time_is_let_past(desk: Bench) -> None:
    holder, first, third = (desk.kernel(f"{name}.ipynb") for name in "abc")
    holder.attach(Request(gpus=1, duration="2h"))
    join(first, BOTH, "5h")
    [ticket] = tickets(desk)
    assert ticket.expected is not None and ticket.guess is False
    assert ticket.expected.timestamp() == desk.clock.now + 2 * HOUR
    assert "when a lease ends" in ticket.message
    with pytest.raises(NoCapacity):
        third.attach(Request(memory="4G", duration="3h"))
    third.attach(Request(memory="4G", duration="1h"))
    assert third.devices == [desk.device(1)]


def test_refusal_says_when_there_should_be_room(one: Bench) -> None:
    holder, other = one.kernel("a.ipynb"), one.kernel("b.ipynb")
    holder.attach(Request(gpus=1, duration="2h"))
    with pytest.raises(NoCapacity) as refusal:
        other.attach(WHOLE)
    assert "There should be room at" in refusal.value.message
    assert "when a lease ends" in refusal.value.message
    assert "--wait" in refusal.value.hint and "%gpu ask" in refusal.value.hint
    details = refusal.value.details
    assert details["guess"] is False and details["waiting"] == 0
    assert details["expected"] == msgspec.to_builtins(one.broker.core.stamp()).replace(
        "08:00", "10:00"
    )


def test_history_makes_a_guess_that_is_marked(one: Bench) -> None:
    holder, other = one.kernel("a.ipynb"), one.kernel("b.ipynb")
    for minutes in (10, 20, 30, 40, 50, 60):
        holder.attach(WHOLE)
        turn(one, 60 * minutes)
        free(holder)
        turn(one, 1)  # who has gone is looked at once a second
    holder.attach(WHOLE)
    with pytest.raises(NoCapacity) as refusal:
        other.attach(WHOLE)
    assert "(a guess from how long GPUs were kept here)" in refusal.value.message
    assert refusal.value.details["guess"] is True
    join(other, WHOLE, "5h")
    [ticket] = tickets(one)
    assert ticket.guess is True and ticket.expected is not None
    assert abs(ticket.expected.timestamp() - one.clock.now - 35 * 60) <= 60
    turn(one, 50 * 60)  # too few were kept for longer than that
    assert tickets(one)[0].expected is None and tickets(one)[0].guess is None


# -- leaving --------------------------------------------------------------------------------------


def test_who_leaves_is_passed(one: Bench) -> None:
    holder, first, second = (one.kernel(f"{name}.ipynb") for name in "abc")
    holder.attach(WHOLE)
    join(first, WHOLE)
    join(second, WHOLE)
    queue(one).leave(one.me, tickets(one)[0].id)
    assert first.now.state == "released" and first.now.pending is None
    free(holder)
    assert second.devices and not first.devices


def test_only_its_owner_leaves_for_somebody(one: Bench) -> None:
    holder, first = one.kernel("a.ipynb"), one.kernel("b.ipynb")
    holder.attach(WHOLE)
    join(first, WHOLE)
    [ticket] = tickets(one)
    with pytest.raises(NotYours):
        queue(one).leave(STRANGER, ticket.id)
    assert len(tickets(one)) == 1
    queue(one).leave(msgspec.structs.replace(STRANGER, admin=True), ticket.id)
    assert tickets(one) == []


def test_others_see_who_waits_and_not_for_what(one: Bench) -> None:
    holder, first = one.kernel("a.ipynb"), one.kernel("b.ipynb")
    holder.attach(WHOLE)
    join(first, WHOLE)
    [ticket] = one.broker.tickets(STRANGER)
    assert (ticket.user, ticket.name, ticket.request) == (one.me.name, None, None)
    assert "b.ipynb" not in ticket.message


def test_wait_has_an_end(one: Bench) -> None:
    holder, first = one.kernel("a.ipynb"), one.kernel("b.ipynb")
    holder.attach(WHOLE)
    join(first, WHOLE, 60)
    turn(one, 59)
    assert len(tickets(one)) == 1
    turn(one, 1)
    assert tickets(one) == []
    [notice] = told(one)
    assert notice.environment == first.id and "time to wait" in notice.message


def test_kernel_that_ends_leaves_the_line(one: Bench) -> None:
    holder, first = one.kernel("a.ipynb"), one.kernel("b.ipynb")
    holder.attach(WHOLE)
    join(first, WHOLE)
    one.end(first.process)
    one.broker.end_kernel(one.me, one.server, first.id)
    assert tickets(one) == []
    free(holder)


def test_process_that_waited_and_is_killed_leaves_the_line(one: Bench) -> None:
    """A cell's kernel that is restarted, a command of a terminal."""
    holder, first, second = (one.kernel(f"{name}.ipynb") for name in "abc")
    holder.attach(WHOLE)
    waiter = one.process()
    join(first, WHOLE, by=waiter.pid)
    join(second, WHOLE, by=second.process.pid)
    turn(one)
    assert len(tickets(one)) == 2
    one.end(waiter)
    second.restart()
    turn(one)
    assert tickets(one) == []


def test_process_that_ends_in_the_last_moment_is_given_nothing(
    one: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder, first, second = (one.kernel(f"{name}.ipynb") for name in "abc")
    holder.attach(WHOLE)
    waiter = one.process()
    join(first, WHOLE, by=waiter.pid)
    join(second, WHOLE)
    holder.detach()
    decide = one.broker.core.line.decide

    def after(blocked: Container[str]) -> object:
        found = decide(blocked)
        if waiter.poll() is None:
            one.end(waiter)  # it is the next, and then
        return found

    monkeypatch.setattr(one.broker.core.line, "decide", after)
    turn(one)
    assert first.devices == [] and second.devices == [one.device(0)]


def test_one_that_cannot_be_served_by_our_fault_keeps_nobody_waiting(
    one: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder, first, second = (one.kernel(f"{name}.ipynb") for name in "abc")
    holder.attach(WHOLE)
    join(first, WHOLE)
    join(second, WHOLE)
    begin = attach.begin

    def failing(core: Core, row: EnvironmentRow, request: Request, **more: Any) -> object:
        if row.id == first.id:
            raise ZeroDivisionError
        return begin(core, row, request, **more)

    monkeypatch.setattr(attach, "begin", failing)
    free(holder)
    assert second.devices == [one.device(0)] and tickets(one)[0].environment == second.id
    assert [it.message for it in told(one) if it.environment == first.id] == [
        "Its turn in the queue came, and could not be used. The broker has failed over it, and its "
        "log says more."
    ]


def test_what_was_held_for_an_earlier_wait_is_not_held_for_the_next(desk: Bench) -> None:
    holder, kernel = desk.kernel("a.ipynb"), desk.kernel("b.ipynb")
    holder.attach(BOTH)
    join(kernel, WHOLE)
    turn(desk, 301)
    assert tickets(desk)[0].held
    queue(desk).leave(desk.me, tickets(desk)[0].id)
    join(kernel, WHOLE)
    assert tickets(desk)[0].held == () and "kept" not in tickets(desk)[0].message


def test_server_waits_for_its_users(one: Bench) -> None:
    """A place in line outlives the Jupyter server that asked for it; its kernel does so too."""
    holder, first = one.kernel("a.ipynb"), one.kernel("b.ipynb")
    holder.attach(WHOLE)
    join(first, WHOLE, by=one.server_process.pid)
    one.end(one.server_process)
    turn(one)
    assert len(tickets(one)) == 1
    free(holder)
    assert first.devices


# -- when it comes --------------------------------------------------------------------------------


def served(desk: Bench) -> Kernel:
    """Return a kernel whose turn has come, and nobody is there."""
    holder, first = desk.kernel("a.ipynb"), desk.kernel("b.ipynb")
    holder.attach(WHOLE)
    join(first, WHOLE)
    free(holder)
    assert first.devices == [desk.device(0)]
    return first


def test_server_is_asked_to_apply_what_came(one: Bench) -> None:
    first = served(one)
    wants = one.broker.take_wants(one.server)
    assert [(want.kernel, want.action) for want in wants] == [(first.id, "apply")]


def test_process_that_waits_applies_it_itself(one: Bench) -> None:
    holder, first = one.kernel("a.ipynb"), one.kernel("b.ipynb")
    holder.attach(WHOLE)
    join(first, WHOLE, by=first.process.pid)
    free(holder)
    assert one.broker.take_wants(one.server) == ()
    assert first.now.applied == "pending"
    assert one.applied(first.id).applied == "live"
    assert tickets(one) == [] and told(one) == []


def test_owner_is_told_when_it_is_their_turn(one: Bench) -> None:
    first = served(one)
    [notice] = told(one)
    assert (notice.environment, notice.level) == (first.id, "info")
    assert "b.ipynb has come: GPU 0 is attached" in notice.message
    assert notice.until is not None and notice.until.timestamp() == one.clock.now + 600
    assert {"keep", "release"} <= set(notice.actions)
    [ticket] = tickets(one)
    assert (ticket.state, ticket.position) == ("granted", 0)


def test_what_nobody_takes_up_is_given_back(one: Bench) -> None:
    first, second = served(one), one.kernel("c.ipynb")
    join(second, WHOLE)
    turn(one, 599)
    assert first.devices
    turn(one, 1)
    one.applied(first.id)  # the server has hidden it again
    turn(one)
    assert not first.devices and second.devices
    assert "nobody was there" in next(it for it in told(one) if it.environment == first.id).message


def test_what_is_used_is_taken_up(one: Bench) -> None:
    first = served(one)
    first.use(0, GIB)
    turn(one)
    assert tickets(one) == [] and told(one) == []
    turn(one, HOUR)
    assert first.devices


@pytest.mark.parametrize("how", ["patch", "leave", "attach"])
def test_click_takes_it_up(one: Bench, how: str) -> None:
    first = served(one)
    if how == "patch":
        one.broker.patch(one.me, first.id, EnvironmentPatch(name="mine"))
    elif how == "leave":
        queue(one).leave(one.me, tickets(one)[0].id)
    else:
        first.attach(WHOLE)
    assert tickets(one) == [] and told(one) == []
    turn(one, HOUR)
    assert first.devices


def test_turn_that_comes_too_late_is_told_and_passes(one: Bench) -> None:
    holder, first, second = (one.kernel(f"{name}.ipynb") for name in "abc")
    holder.attach(WHOLE)
    join(first, WHOLE)
    join(second, WHOLE)
    one.broker.patch(one.me, first.id, EnvironmentPatch(cuda="initialized"))
    free(holder)
    assert not first.devices and second.devices
    notice = next(it for it in told(one) if it.environment == first.id)
    assert "could not be used" in notice.message and "restart" in notice.actions


def test_command_that_waits_is_served(one: Bench) -> None:
    holder = one.kernel("a.ipynb")
    holder.attach(WHOLE)
    process = one.process()
    new = NewEnvironment(kind="command", pid=process.pid, name="train")
    made = one.broker.create(one.me, new)
    asked = one.broker.attach(one.me, made.id, waits(WHOLE), peer_pid=process.pid)
    assert asked.state == "waiting"
    free(holder)
    assert one.broker.environment(one.me, made.id).state == "granted"


def test_notebook_that_gets_another_kernel_keeps_its_place(one: Bench) -> None:
    holder, first, second = (one.kernel(f"{name}.ipynb") for name in "abc")
    holder.attach(WHOLE)
    join(first, WHOLE)
    join(second, WHOLE)
    heir = one.kernel("b.ipynb", previous=first.id)
    one.end(first.process)
    one.broker.end_kernel(one.me, one.server, first.id)
    assert [ticket.environment for ticket in tickets(one)] == [heir.id, second.id]
    free(holder)
    assert heir.devices


# -- what others see ------------------------------------------------------------------------------


def test_notebook_that_keeps_two_kernels_keeps_nobody_waiting(desk: Bench) -> None:
    first, other = desk.kernel("first.ipynb"), desk.kernel("other.ipynb")
    first.attach(WHOLE)
    other.attach(WHOLE)
    slow, next_one = desk.kernel("slow.ipynb"), desk.kernel("next.ipynb")
    join(slow, WHOLE, "2h")
    join(next_one, WHOLE, "2h")
    first.detach()
    turn(desk)
    assert slow.devices == [desk.device(0)]
    desk.kernel("slow.ipynb", previous=slow.id)
    turn(desk, HOUR)
    assert slow.devices == [desk.device(0)], "it is being taken over"
    other.detach()
    turn(desk)
    assert next_one.devices == [desk.device(1)]


def test_event_stream_tells_of_the_queue(one: Bench) -> None:
    holder, first = one.kernel("a.ipynb"), one.kernel("b.ipynb")
    holder.attach(WHOLE)
    assert one.broker.snapshot(one.me).queue == ()
    one.broker.changes(one.me)
    join(first, WHOLE)
    event = one.broker.changes(one.me)
    assert event is not None and event.queue is not None
    assert [ticket.environment for ticket in event.queue] == [first.id]
    [environment] = event.environments
    assert environment.state == "waiting"
    one.pass_time(1)
    assert one.broker.changes(one.me) is None, "nothing is sent when nothing changed"
    queue(one).leave(one.me, event.queue[0].id)
    event = one.broker.changes(one.me)
    assert event is not None and event.queue == ()


def test_clocks_that_are_not_quite_in_step_are_no_news(one: Bench) -> None:
    served(one)
    one.broker.queue.round()
    one.tick()
    one.broker.changes(one.me)
    for step in (1.000_01, 0.999_98, 1.000_02):
        one.clock.now += step
        one.steady.now += 1
        one.broker.tick()
        queue(one).round()
        assert one.broker.changes(one.me) is None


def test_crash_loses_no_place(one: Bench) -> None:
    holder, first, second = (one.kernel(f"{name}.ipynb") for name in "abc")
    holder.attach(WHOLE)
    join(first, WHOLE)
    join(second, HALF)
    one.pass_time(90)
    before = tickets(one)
    one.reopen()
    one.tick()
    assert tickets(one) == before
    free(holder)
    assert first.devices and not second.devices
    one.reopen()
    assert [(ticket.environment, ticket.state) for ticket in tickets(one)] == [
        (first.id, "granted"),
        (second.id, "waiting"),
    ]
    one.tick()
    turn(one)
    assert len(told(one)) == 1, "whoever is to take it up is told again"
