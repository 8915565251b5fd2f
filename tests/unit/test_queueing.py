"""The queue's decisions: whose turn it is, what is kept for whom, and that nobody waits for ever.

A model of a host runs under them: people come, wait, get devices, and leave; nothing else decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genv_jupyter.demand import Demand, demand_of
from genv_jupyter.errors import GpuError
from genv_jupyter.model import Request
from genv_jupyter.placement import place
from genv_jupyter.policy import Policy
from genv_jupyter.queueing import Decision, Stay, Waiting, behind, decide, expected, open_to
from genv_jupyter.slots import Own, Slot, resolve

GIB = 2**30
CAPACITY = 24 * GIB
POLICY = Policy()
PATIENCE = 300.0

WHOLE, TWO, HALF = Request(gpus=1), Request(gpus=2), Request(fraction=0.5)
SMALL = Request(memory="4G")


@dataclass
class Person:
    """Somebody who asks, and what they hold since when and until when."""

    name: str
    request: Request
    owner: str
    came: float
    stays: float
    says_so: bool = False
    held: tuple[str, ...] = ()
    grants: dict[str, Own] = field(default_factory=dict)
    until: float = 0.0
    got: float | None = None

    @property
    def demand(self) -> Demand:
        return demand_of(self.request)


class Host:
    """Devices, who waits for them in which order, and who has them."""

    def __init__(self, devices: int = 2, capacities: Sequence[int] = ()) -> None:
        sizes = capacities or [CAPACITY] * devices
        self.slots = [
            Slot(uuid=f"GPU-{number}", index=number, capacity=size)
            for number, size in enumerate(sizes)
        ]
        self.now = 0.0
        self.line: list[Person] = []
        self.holders: list[Person] = []
        self.order: list[str] = []

    def comes(
        self, name: str, request: Request, stays: float = 1e9, *, says_so: bool = False
    ) -> Person:
        """Let somebody get in line; with ``says_so`` the time they stay is known to all."""
        if says_so:
            request = Request(**{**fields(request), "duration": max(1, int(stays))})
        person = Person(name, request, f"local:{name}", self.now, stays, says_so)
        self.line.append(person)
        self.serve()
        return person

    def leaves(self, *people: Person) -> None:
        for person in people:
            self.holders.remove(person)
            for device, own in person.grants.items():
                self.slot(device).drop(person.owner, *own)
            person.grants = {}
        self.serve()

    def wait(self, seconds: float) -> None:
        """Let time pass; whoever has stayed as long as they would leaves on the way."""
        end = self.now + seconds
        while leaving := [one for one in self.holders if one.until <= end]:
            self.now = max(self.now, min(one.until for one in leaving))
            self.leaves(*[one for one in leaving if one.until <= self.now])
        self.now = end
        self.serve()

    def serve(self) -> None:
        """Do what is decided until there is nothing left to do, and check it."""
        while True:
            found = self.decide()
            for one in self.line:
                one.held = found.held.get(one.name, one.held)
            if found.given is None:
                return
            number, placed = found.given
            person = self.line[number]
            self.check_passed(number, {part.device for part in placed})
            del self.line[number]
            for part in placed:
                own = Own(part.memory, part.compute, part.exclusive)
                self.slot(part.device).add(person.owner, *own)
                person.grants[part.device] = own
            person.got, person.until = self.now, self.now + person.stays
            self.holders.append(person)
            self.order.append(person.name)
            self.check_capacity()

    def decide(self) -> Decision:
        return decide(self.waiting(), self.stays(), POLICY, PATIENCE)

    def waiting(self) -> list[Waiting]:
        return [
            Waiting(
                environment=one.name,
                owner=one.owner,
                demand=one.demand,
                slots=self.slots,
                own={},
                waited=self.now - one.came,
                held=one.held,
            )
            for one in self.line
        ]

    def stays(self) -> dict[str, list[Stay]]:
        return {
            slot.uuid: [
                Stay(one.name, one.owner, one.grants[slot.uuid], self.left(one))
                for one in self.holders
                if slot.uuid in one.grants
            ]
            for slot in self.slots
        }

    def left(self, person: Person) -> float | None:
        return person.until - self.now if person.says_so else None

    def slot(self, device: str) -> Slot:
        return next(slot for slot in self.slots if slot.uuid == device)

    def open_behind(self, request: Request) -> list[str]:
        """Where somebody who does not wait may be placed."""
        closed = behind(self.waiting(), self.stays(), POLICY, PATIENCE)
        return [slot.uuid for slot in open_to(self.slots, closed, demand_of(request), {})]

    # -- what must hold ---------------------------------------------------------------------

    def check_capacity(self) -> None:
        for slot in self.slots:
            here = [one.grants[slot.uuid] for one in self.holders if slot.uuid in one.grants]
            assert sum(own.memory for own in here) <= slot.capacity
            assert len(here) == 1 or not any(own.exclusive for own in here)

    def check_passed(self, number: int, devices: set[str]) -> None:
        """Whoever is served before somebody else takes nothing that they could use, or that is
        held for them; unless all that delays them is known to take longer."""
        person = self.line[number]
        for other in filter(self.could_ever, self.line[:number]):
            for device in devices:
                if self.could_use(other, device) or device in other.held:
                    assert person.says_so
                    over = self.now + person.stays
                    assert any(one.says_so and one.until >= over for one in self.holders)

    def could_use(self, person: Person, device: str) -> bool:
        """Say whether a device would do for one of what somebody needs, as it is now."""
        if person.demand.devices:
            try:
                named = {slot.uuid for slot in resolve(person.demand.devices, self.slots)}
            except GpuError:
                return False
            if device not in named:
                return False
        one = {**fields(person.request), "devices": (device,)}
        one.pop("gpus", None)
        try:
            place(self.slots, demand_of(Request(**one)), person.owner, POLICY)
        except GpuError:
            return False
        return True

    def could_ever(self, person: Person) -> bool:
        """Say whether somebody could be served if nobody else were here."""
        empty = [Slot(uuid=it.uuid, index=it.index, capacity=it.capacity) for it in self.slots]
        try:
            place(empty, person.demand, person.owner, POLICY)
        except GpuError:
            return False
        return True


def fields(request: Request) -> dict[str, object]:
    names = ("gpus", "fraction", "memory", "devices", "duration")
    return {name: getattr(request, name) for name in names if getattr(request, name) is not None}


# -- single decisions ----------------------------------------------------------------------------


def test_first_come_first_served() -> None:
    host = Host(1)
    first = host.comes("a", WHOLE)
    waiting = [host.comes(name, WHOLE) for name in "bcd"]
    assert host.order == ["a"]
    host.leaves(first)
    host.leaves(waiting[0])
    assert host.order == ["a", "b", "c"]


def test_smaller_one_is_let_past_onto_what_the_first_cannot_use() -> None:
    host = Host(2)
    host.comes("whole", WHOLE)
    host.comes("half", HALF)
    host.comes("waits", WHOLE)
    host.comes("small", SMALL)
    assert host.order == ["whole", "half", "small"]


def test_nobody_is_let_past_onto_what_the_first_could_use() -> None:
    host = Host(2)
    whole = host.comes("whole", WHOLE)
    host.comes("two", TWO)
    host.comes("small", SMALL)
    assert host.order == ["whole"], "GPU 1 is one of the two that are needed"
    host.leaves(whole)
    assert host.order == ["whole", "two"]


def test_somebody_in_another_pool_is_in_nobodys_way() -> None:
    host = Host(2)
    host.comes("a", Request(devices=("0",)))
    host.comes("b", Request(devices=("0",)))
    host.comes("c", Request(devices=("1",)))
    assert host.order == ["a", "c"]


def test_device_that_is_too_small_for_the_first_is_free_for_others() -> None:
    host = Host(capacities=(8 * GIB, 24 * GIB))
    host.comes("a", Request(memory=20 * GIB))
    host.comes("b", Request(memory=20 * GIB))
    host.comes("c", Request(memory=6 * GIB))
    assert host.order == ["a", "c"]
    host.wait(PATIENCE)
    host.comes("d", Request(memory=2 * GIB))
    assert host.order == ["a", "c", "d"], "the small device is not what is held"
    host.comes("e", Request(memory=2 * GIB))
    assert host.order == ["a", "c", "d"]


def test_after_a_while_a_device_is_held() -> None:
    host = Host(2)
    one, two = host.comes("a", HALF), host.comes("b", Request(fraction=0.5, devices=("1",)))
    first = host.comes("waits", WHOLE)
    host.comes("small", SMALL)
    assert host.order == ["a", "b", "small"]
    host.wait(PATIENCE)
    [held] = first.held
    late = host.comes("late", SMALL)
    assert set(late.grants) == {"GPU-0", "GPU-1"} - {held}
    host.leaves(one, two)
    assert first.got == PATIENCE and set(first.grants) == {held}


def test_device_that_is_held_stays_the_same() -> None:
    host = Host(2)
    host.comes("a", HALF)
    soon = host.comes("b", Request(fraction=0.5, devices=("1",)))
    host.comes("c", Request(memory=GIB, devices=("1",)))
    first = host.comes("waits", WHOLE)
    host.wait(PATIENCE)
    assert first.held == ("GPU-0",), "fewer are on it"
    host.leaves(soon)
    assert first.held == ("GPU-0",)


def test_held_is_what_should_be_free_first() -> None:
    host = Host(3)
    host.comes("a", WHOLE, 5000, says_so=True)
    host.comes("b", WHOLE, 4000, says_so=True)
    host.comes("c", WHOLE)
    first = host.comes("waits", WHOLE)
    host.wait(PATIENCE)
    assert first.held == ("GPU-1",)


def test_lease_that_ends_in_time_is_let_past() -> None:
    host = Host(2)
    host.comes("a", WHOLE, 1000, says_so=True)
    first = host.comes("two", TWO)
    host.comes("open", SMALL)
    host.comes("long", SMALL, 1001, says_so=True)
    assert host.order == ["a"]
    host.comes("short", SMALL, 1000, says_so=True)
    assert host.order == ["a", "short"]
    host.wait(1000)
    assert first.got == 1000


def test_lease_does_not_help_past_those_who_may_leave_at_any_moment() -> None:
    host = Host(2)
    host.comes("a", WHOLE)
    host.comes("two", TWO)
    host.comes("short", SMALL, 10, says_so=True)
    assert host.order == ["a"]


def test_lease_that_is_over_says_nothing_any_more() -> None:
    host = Host(1)
    late = host.comes("a", WHOLE, 100, says_so=True)
    late.until = 1e9
    waits = host.comes("b", WHOLE)
    [one] = host.waiting()
    assert expected(one, [], host.stays(), POLICY) == pytest.approx(1e9)
    late.until = -5.0
    assert expected(one, [], host.stays(), POLICY) is None
    assert waits.got is None


def test_newcomers_who_do_not_wait_are_behind_all_who_do() -> None:
    host = Host(2)
    host.comes("a", WHOLE)
    host.comes("two", TWO)
    assert host.open_behind(SMALL) == ["GPU-0"]
    # Somebody whose turn it is and who has not been served yet is not robbed of it.
    host = Host(1)
    host.line.append(Person("b", WHOLE, "local:b", 0.0, 1e9))
    assert host.open_behind(SMALL) == []


def test_what_is_held_may_be_made_less_whoever_waits() -> None:
    host = Host(1)
    holder = host.comes("a", HALF)
    host.comes("b", WHOLE)
    host.now = PATIENCE
    closed = behind(host.waiting(), host.stays(), POLICY, PATIENCE)
    assert set(closed) == {"GPU-0"}
    for request, may in ((SMALL, True), (HALF, True), (Request(fraction=0.75), False)):
        found = open_to(host.slots, closed, demand_of(request), holder.grants)
        assert bool(found) is may, request
    own = {"GPU-0": Own(CAPACITY, None, True)}
    assert open_to(host.slots, closed, demand_of(SMALL), own)
    assert not open_to(host.slots, closed, demand_of(WHOLE), holder.grants)


def test_what_can_never_be_served_here_keeps_nothing() -> None:
    host = Host(2)
    host.comes("three", Request(gpus=3))
    host.comes("gone", Request(devices=("7",)))
    host.wait(PATIENCE)
    host.comes("two", TWO)
    assert host.order == ["two"]


def test_expected_counts_those_ahead() -> None:
    host = Host(2)
    host.comes("a", WHOLE, 100, says_so=True)
    host.comes("b", WHOLE, 200, says_so=True)
    for name in "cde":
        host.comes(name, WHOLE)
    line, stays = host.waiting(), host.stays()
    times = [expected(one, line[:at], stays, POLICY) for at, one in enumerate(line)]
    assert times == [100, 200, None]


# -- whatever happens ----------------------------------------------------------------------------

requests = st.one_of(
    st.builds(Request, gpus=st.integers(1, 3)),
    st.builds(Request, fraction=st.sampled_from((0.25, 0.5, 0.75))),
    st.builds(Request, memory=st.integers(1, 30).map(lambda gib: gib * GIB)),
    st.builds(Request, gpus=st.just(2), memory=st.integers(1, 20).map(lambda gib: gib * GIB)),
    st.builds(Request, devices=st.sampled_from((("0",), ("1",), ("0", "2"), ("9",)))),
)
sizes = st.lists(st.sampled_from((8 * GIB, CAPACITY)), min_size=1, max_size=4)
steps = st.lists(
    st.tuples(requests, st.integers(1, 2000), st.booleans(), st.integers(0, 400)), max_size=40
)


@given(sizes, steps)
@settings(max_examples=60, deadline=None)
def test_nothing_is_given_twice_and_nobody_is_passed_over(
    capacities: list[int], coming: list[tuple[Request, int, bool, int]]
) -> None:
    """``Host`` checks every grant; in the end nobody waits who could be served."""
    host = Host(capacities=capacities)
    for number, (request, stays, says_so, pause) in enumerate(coming):
        host.comes(f"p{number}", request, stays, says_so=says_so)
        host.wait(pause)
    host.wait(2000.0 * len(coming))
    for one in host.line:  # a host that is empty has nothing that would do
        with pytest.raises(GpuError):
            place(host.slots, one.demand, one.owner, POLICY)


@given(requests, st.lists(st.tuples(st.integers(1, 2000), st.booleans()), max_size=12))
@settings(max_examples=50, deadline=None)
def test_equal_requests_are_served_in_the_order_they_came(
    request: Request, stays: list[tuple[int, bool]]
) -> None:
    host = Host(3)
    for number, (seconds, says_so) in enumerate(stays):
        person = host.comes(f"{number:03}", request, seconds)
        person.says_so = says_so  # when they leave is known; what they ask for is the same
        host.wait(seconds / 3)
    host.wait(2000.0 * 12)
    assert host.order == sorted(host.order)


@given(
    st.one_of(requests),
    st.lists(st.tuples(st.integers(30, 600), st.booleans()), min_size=1, max_size=60),
)
@settings(max_examples=20, deadline=None)
def test_stream_of_small_requests_starves_nobody(
    request: Request, stream: list[tuple[int, bool]]
) -> None:
    """However many come, the first is served when its patience and a stay are over."""
    host, longest = Host(3), 600
    for number in range(9):
        host.comes(f"early{number}", Request(memory=7 * GIB), 100 + 50 * number)
    first = host.comes("first", request)
    if not host.could_ever(first):
        return
    turn = 0
    while first.got is None:
        seconds, says_so = stream[turn % len(stream)]
        host.comes(f"late{turn}", Request(memory=3 * GIB), seconds, says_so=says_so)
        host.wait(20)
        turn += 1
        assert host.now <= PATIENCE + longest + 40, "it has waited for too long"
