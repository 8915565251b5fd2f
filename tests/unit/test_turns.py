"""Turns: one environment at a time on a device, in order, and never in a circle."""

from __future__ import annotations

import fcntl
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from genv_jupyter import turn
from genv_jupyter.broker.turns import Ticket, Turns
from genv_jupyter.errors import BadRequest, OutOfRange

A, B, C = "GPU-a", "GPU-b", "GPU-c"


class Desk:
    """Turns with a clock that is turned, and processes that are named."""

    def __init__(self, directory: Path) -> None:
        self.now = 1000.0
        self.families: dict[int, str] = {}
        self.told: list[str] = []
        self.turns = Turns(
            directory / "turns",
            self.families.get,
            lambda environment, viewer: ("ada", f"{environment}.ipynb"),
            lambda: self.now,
        )

    def enter(self, environment: str, *devices: str, since: float | None = None) -> Ticket:
        self.now += 1
        return self.turns.enter(environment, devices, since, lambda: self.told.append(environment))


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


@pytest.fixture
def locker(desk: Desk) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock of device A, as the holder at an earlier broker does."""
    path = desk.turns._file(A)
    code = (
        "import fcntl, os, sys; fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT); "
        "fcntl.lockf(fd, fcntl.LOCK_EX); print('locked', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "locked\n"
    yield process
    process.kill()
    process.communicate()


def test_first_come_first_served(desk: Desk) -> None:
    one, two, three = (desk.enter(name, A) for name in ("one", "two", "three"))
    assert [ticket.yours for ticket in (one, two, three)] == [True, False, False]
    assert desk.turns.view(one).locks == (str(desk.turns._file(A)),)
    view = desk.turns.view(three)
    assert (view.state, view.locks) == ("waiting", ())
    assert [(it.environment, it.state) for it in view.ahead] == [
        ("one", "holding"),
        ("two", "waiting"),
    ]
    assert (view.ahead[0].user, view.ahead[0].name) == ("ada", "one.ipynb")
    desk.told.clear()
    desk.turns.leave(one)
    assert two.yours and not three.yours
    assert set(desk.told) == {"two", "three"}, "both are told how they stand now"
    desk.turns.leave(three)
    desk.turns.leave(two)
    assert not desk.turns.holding and not desk.turns.waiting


def test_all_devices_or_none(desk: Desk) -> None:
    one, two = desk.enter("one", A), desk.enter("two", B)
    assert one.yours and two.yours, "devices of their own"
    both = desk.enter("both", A, B)
    after = desk.enter("after", B)
    assert not both.yours
    desk.turns.leave(two)
    assert not both.yours and not after.yours, "nobody is passed over, even where B is free"
    elsewhere = desk.enter("elsewhere", C)
    assert elsewhere.yours
    desk.turns.leave(one)
    assert both.yours and not after.yours


def test_who_has_other_devices_by_now_waits_for_those_in_its_place(desk: Desk) -> None:
    on_a, on_b, moved = desk.enter("1", A), desk.enter("2", B), desk.enter("3", A)
    later = desk.enter("4", B)
    desk.turns.move(moved, (A,))
    assert desk.turns.waiting == [moved, later]
    desk.turns.move(moved, (B,))
    desk.turns.leave(on_a)
    assert on_b.yours and not moved.yours, "its old device is free, and of no use to it"
    desk.turns.leave(on_b)
    assert moved.yours and not later.yours
    desk.turns.move(moved, (A, B))
    assert moved.yours and moved.devices == {A, B}
    on_c = desk.enter("5", C)
    desk.turns.move(moved, (C,))
    assert on_c.yours and not moved.yours and later.yours
    desk.turns.move(moved, ())
    assert moved.yours, "nothing is attached: there is nothing to wait for"


def test_turn_within_a_turn_is_of_the_same_devices(desk: Desk) -> None:
    one, two = desk.enter("one", A), desk.enter("two", A)
    again = desk.enter("one", A, B)  # has attached another device since
    assert again.yours and again.devices == {A}
    assert desk.turns.view(again).locks == (), "they are held already"
    desk.turns.leave(one)
    assert not two.yours
    desk.turns.leave(again)
    assert two.yours


def test_second_process_of_an_environment_shares_its_turn(desk: Desk) -> None:
    one, two = desk.enter("one", A), desk.enter("two", A)
    again, other = desk.enter("two", A), desk.enter("two", A, B)
    desk.turns.leave(one)
    assert two.yours and again.yours and not other.yours
    desk.turns.leave(two)
    assert not other.yours
    desk.turns.leave(again)
    assert other.yours


def test_no_devices_no_waiting(desk: Desk) -> None:
    desk.enter("one", A)
    assert desk.enter("two").yours


def test_those_who_come_back_have_their_old_places(desk: Desk) -> None:
    desk.turns.open = False
    late, early = desk.enter("late", A, since=950.0), desk.enter("early", A, since=900.0)
    fresh = desk.enter("fresh", A)
    assert desk.turns.held_up and not (late.yours or early.yours or fresh.yours)
    desk.turns.open = True
    desk.turns.settle()
    assert early.yours
    desk.turns.leave(early)
    assert late.yours and not fresh.yours


def test_nobody_gets_ahead_by_a_clock(desk: Desk) -> None:
    desk.enter("holder", A)
    first = desk.enter("first", A)
    boaster = desk.enter("boaster", A, since=10.0**12)  # from the future: at the end
    assert desk.turns.waiting == [first, boaster]
    desk.now -= 500  # the clock is turned back
    second = desk.enter("second", A)
    assert desk.turns.waiting == [first, boaster, second]


def test_lock_that_outlived_its_broker_is_respected(
    desk: Desk, locker: subprocess.Popen[str]
) -> None:
    desk.families[locker.pid] = "before"
    ticket = desk.enter("now", A)
    other = desk.enter("other", B)
    assert not ticket.yours and other.yours and desk.turns.held_up
    (ahead,) = desk.turns.view(ticket).ahead
    assert (ahead.environment, ahead.state) == ("before", "holding")
    locker.kill()
    locker.wait()
    desk.turns.settle()
    assert ticket.yours and not desk.turns.held_up


def test_lock_of_the_own_family_is_a_turn_within_a_turn(
    desk: Desk, locker: subprocess.Popen[str]
) -> None:
    desk.families[locker.pid] = "one"
    ticket = desk.enter("one", A)
    assert ticket.yours
    assert desk.turns.view(ticket).locks == (), "its parent has them"


def test_lock_of_nobody_that_is_known_counts_too(desk: Desk, locker: subprocess.Popen[str]) -> None:
    ticket = desk.enter("one", A)
    assert not ticket.yours
    assert desk.turns.view(ticket).ahead[0].environment is None


def test_what_cannot_be_asked_is_taken_for_held(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", full)
        ticket = desk.enter("one", A)
        assert not ticket.yours and desk.turns.held_up, "it is looked at again"
    desk.turns.settle()
    assert ticket.yours


def test_asking_for_a_lock_does_not_end_ones_own(desk: Desk, tmp_path: Path) -> None:
    desk.enter("one", A)
    assert desk.turns._locker(A) is None
    path = desk.turns._file("a/../b c")
    assert path.parent == tmp_path / "turns", "no device leads elsewhere"
    assert oct(path.parent.stat().st_mode)[-3:] == "700"


@settings(max_examples=60, stateful_step_count=40, deadline=None)
class Line(RuleBasedStateMachine):
    """Environments come and go in any order; what must hold holds after each step."""

    def __init__(self) -> None:
        super().__init__()
        # No lock is ever held here: the directory is not even made.
        self.desk = Desk(Path(f"/nonexistent/{os.getpid()}"))
        self.desk.turns._locker = lambda device: None  # type: ignore[method-assign]
        self.tickets: list[Ticket] = []

    @rule(environment=st.sampled_from("vwxyz"), devices=st.sets(st.sampled_from([A, B, C])))
    def enter(self, environment: str, devices: set[str]) -> None:
        self.tickets.append(self.desk.enter(environment, *devices))

    @precondition(lambda self: self.tickets)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(self.tickets))
        self.tickets.remove(ticket)
        self.desk.turns.leave(ticket)

    @invariant()
    def one_environment_on_a_device(self) -> None:
        for device in (A, B, C):
            found = {it.environment for it in self.desk.turns.holding if device in it.devices}
            assert len(found) <= 1

    @invariant()
    def whoever_waits_waits_for_somebody(self) -> None:
        turns = self.desk.turns
        assert [it.since for it in turns.waiting] == sorted(it.since for it in turns.waiting)
        for ticket in turns.waiting:
            ahead = turns.view(ticket).ahead
            assert ahead, "nobody is in the way, and it was not given"
            assert not ticket.devices <= turns._held_by(ticket.environment)
        assert not (turns.waiting and not turns.holding), "all wait, and nobody has anything"

    @invariant()
    def nobody_is_passed_over(self) -> None:
        for first, second in pairwise(self.desk.turns.waiting):
            assert first.since <= second.since

    def teardown(self) -> None:
        for ticket in list(self.tickets):
            self.desk.turns.leave(ticket)
        assert not self.desk.turns.holding and not self.desk.turns.waiting


TestLine = Line.TestCase


def test_two_processes_never_hold_one_lock(desk: Desk, locker: subprocess.Popen[str]) -> None:
    with desk.turns._file(A).open("r+") as file, pytest.raises(BlockingIOError):
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize("limit", [math.inf, -math.inf, math.nan, 0, -1, "soon", ""])
def test_limit_that_is_no_duration_is_refused(limit: float | str) -> None:
    with pytest.raises((BadRequest, OutOfRange)):
        turn(limit)


def test_limit_may_be_a_part_of_a_second() -> None:
    assert (turn(0.2).seconds, turn("5m").seconds, turn().seconds) == (1, 300, None)
