"""Placement under everything that happens to devices, against a model that keeps no counters.

The model is a list of grants. What is free, who may have it and which device comes first is
worked out from that list each time, in the words of the rules and not in those of the code.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from genv_jupyter.demand import Demand, demand_of
from genv_jupyter.errors import NoCapacity, OutOfRange
from genv_jupyter.model import Health, Request
from genv_jupyter.placement import Own, Placed, Slot, place, satisfied
from genv_jupyter.policy import Policy

MIB = 2**20
Between = Literal["last", "never", "always"]
OWNERS = ("local:1", "local:2")
ENVIRONMENTS = tuple(f"{owner}/{number}" for owner in OWNERS for number in range(2))
SIZES = (8_000 * MIB, 24_000 * MIB, 24_001 * MIB)


def owner_of(environment: str) -> str:
    return environment.split("/")[0]


@dataclass
class Given:
    """A grant as the model remembers it: what counts, and whether it was given back."""

    environment: str
    device: str
    memory: int
    compute: int
    exclusive: bool
    draining: bool = False


@dataclass
class Card:
    """A device as the model knows it."""

    uuid: str
    index: int
    capacity: int
    compute_outside: int = 0
    graphics: int = 0
    users: frozenset[str] = frozenset()
    health: Health = "ok"
    grants: list[Given] = field(default_factory=list)


requests = st.one_of(
    st.builds(Request, gpus=st.integers(1, 4)),
    st.builds(Request, fraction=st.integers(1, 99).map(lambda percent: percent / 100)),
    st.builds(Request, memory=st.integers(1, 25_000).map(lambda mib: mib * MIB)),
    st.builds(
        Request,
        memory=st.integers(1, 9_000).map(lambda mib: mib * MIB),
        fraction=st.sampled_from((0.1, 0.5, 0.9)),
    ),
    st.builds(
        Request, gpus=st.integers(2, 3), memory=st.integers(1, 9_000).map(lambda mib: mib * MIB)
    ),
)


class Placement(RuleBasedStateMachine):
    """Attach, detach, resize, drain; devices come, go and are used by outsiders."""

    def __init__(self) -> None:
        super().__init__()
        self.cards: list[Card] = []
        self.slots: list[Slot] = []
        self.alive: set[str] = set()  # environments in which CUDA lives
        self.policy = Policy()

    @initialize(
        sizes=st.lists(st.sampled_from(SIZES), min_size=1, max_size=4),
        overcommit=st.sampled_from((10_000, 15_000)),
        between=st.sampled_from(("last", "never", "always")),
    )
    def begin(self, sizes: list[int], overcommit: int, between: Between) -> None:
        self.policy = Policy(compute_overcommit=overcommit, share_between_users=between)
        for size in sizes:
            self.device_added(size)

    # -- what happens -----------------------------------------------------------------------

    @rule(
        environment=st.sampled_from(ENVIRONMENTS),
        request=requests,
        named=st.sets(st.integers(0, 5), max_size=2),
    )
    def attach(self, environment: str, request: Request, named: set[int]) -> None:
        indices = sorted(named & {card.index for card in self.cards})
        demand = demand_of(request)
        if indices and demand.count == len(indices):
            fields = {key: getattr(request, key) for key in ("gpus", "fraction", "memory")}
            demand = demand_of(Request(**fields, devices=tuple(map(str, indices))))
        held = {card.uuid: given for card in self.cards for given in self._held(card, environment)}
        own = {
            uuid: Own(given.memory, given.compute or None, given.exclusive)
            for uuid, given in held.items()
        }
        before = [repr(slot) for slot in self.slots]
        try:
            placed = place(self.slots, demand, owner_of(environment), self.policy, own)
        except OutOfRange:
            assert self._never(demand)
            placed = None
        except NoCapacity as refusal:
            self._check_refusal(refusal, environment, demand)
            placed = None
        assert [repr(slot) for slot in self.slots] == before, "place() changed a slot"
        if placed is None:
            return
        self._check_grants(environment, demand, placed)
        self._give(environment, placed, held)
        wanted = {part.device: Own(part.memory, part.compute, part.exclusive) for part in placed}
        assert satisfied(wanted, demand, self.slots)

    @rule(environment=st.sampled_from(ENVIRONMENTS))
    def detach(self, environment: str) -> None:
        for card in self.cards:
            for given in self._held(card, environment):
                self._let_go(card, given)

    @rule(environment=st.sampled_from(ENVIRONMENTS))
    def cuda_initialised(self, environment: str) -> None:
        self.alive.add(environment)

    @rule(environment=st.sampled_from(ENVIRONMENTS))
    def process_ended(self, environment: str) -> None:
        self.alive.discard(environment)
        for card in self.cards:
            for given in self._held(card, environment):
                if given.draining:
                    self._drop(card, given)

    @precondition(lambda self: len(self.cards) < 5)
    @rule(size=st.sampled_from(SIZES))
    def device_added(self, size: int) -> None:
        index = len(self.cards)
        uuid = f"GPU-{index:08x}"
        self.cards.append(Card(uuid=uuid, index=index, capacity=size))
        self.slots.append(Slot(uuid=uuid, index=index, capacity=size))

    @rule(which=st.integers(0, 4), health=st.sampled_from(("ok", "lost", "unknown", "unreliable")))
    def health_changed(self, which: int, health: Health) -> None:
        if which < len(self.cards):
            self.cards[which].health = self.slots[which].health = health

    @rule(
        which=st.integers(0, 4),
        compute=st.sampled_from((0, 0, 10, 400, 9_000)),
        graphics=st.sampled_from((0, 300, 1_024, 1_300)),
        users=st.frozensets(st.sampled_from((*OWNERS, "local:3")), max_size=1),
    )
    def outsiders_appear_or_leave(
        self, which: int, compute: int, graphics: int, users: frozenset[str]
    ) -> None:
        if which < len(self.cards):
            card, slot = self.cards[which], self.slots[which]
            card.compute_outside, card.graphics = compute * MIB, graphics * MIB
            slot.external = card.compute_outside + card.graphics
            slot.graphics = card.graphics
            card.users = slot.users = users if compute else frozenset()

    # -- what must hold ---------------------------------------------------------------------

    @invariant()
    def nothing_is_given_twice(self) -> None:
        for card in self.cards:
            assert sum(given.memory for given in card.grants) <= card.capacity
            for owner in OWNERS:
                assert self._ceilings(card, owner) <= self.policy.compute_overcommit
            if any(given.exclusive for given in card.grants):
                assert len(card.grants) == 1, "an exclusive grant is alone"

    @invariant()
    def slots_say_what_the_grants_come_to(self) -> None:
        for card, slot in zip(self.cards, self.slots, strict=True):
            assert slot.granted == sum(given.memory for given in card.grants)
            assert slot.exclusive == sum(given.exclusive for given in card.grants)
            assert slot.shared == sum(not given.exclusive for given in card.grants)
            for owner in OWNERS:
                mine = [g for g in card.grants if owner_of(g.environment) == owner]
                assert slot.owners.get(owner, 0) == len(mine)
                assert slot.compute.get(owner, 0) == sum(given.compute for given in mine)
            assert all(slot.owners.values()) and all(slot.compute.values())

    # -- the model --------------------------------------------------------------------------

    def _held(self, card: Card, environment: str) -> list[Given]:
        return [given for given in card.grants if given.environment == environment]

    def _ceilings(self, card: Card, owner: str) -> int:
        return sum(g.compute for g in card.grants if owner_of(g.environment) == owner)

    def _candidates(self, demand: Demand) -> list[Card]:
        if not demand.devices:
            return self.cards
        return [card for card in self.cards if str(card.index) in demand.devices]

    def _need(self, card: Card, demand: Demand) -> int:
        if demand.memory is not None:
            return demand.memory
        assert demand.fraction is not None
        return card.capacity * demand.fraction // 10_000

    def _never(self, demand: Demand) -> bool:
        cards = self._candidates(demand)
        large = [c for c in cards if demand.exclusive or self._need(c, demand) <= c.capacity]
        return len(large) < demand.count

    def _does(self, card: Card, environment: str, demand: Demand) -> bool:
        """Say whether a device does for a demand, by the rules."""
        others = [given for given in card.grants if given.environment != environment]
        if card.health == "lost" or any(given.exclusive for given in others):
            return False
        if demand.exclusive:
            return not others and not self._outsiders(card)
        room = card.capacity - card.compute_outside - card.graphics
        room -= sum(given.memory for given in others)
        owner = owner_of(environment)
        never = self.policy.share_between_users == "never"
        if never and self._others(card, owner) and not self._held(card, environment):
            return False
        ceilings = sum(g.compute for g in others if owner_of(g.environment) == owner)
        allowed = self.policy.compute_overcommit - (demand.compute or 0)
        return self._need(card, demand) <= room and (not demand.compute or ceilings <= allowed)

    def _outsiders(self, card: Card) -> bool:
        desktop = max(1_024 * MIB, card.capacity * 5 // 100)
        return card.compute_outside > 64 * MIB or card.graphics > desktop

    def _others(self, card: Card, owner: str) -> bool:
        """Say whether another user works on a device."""
        users = {owner_of(given.environment) for given in card.grants} | card.users
        return bool(users - {owner})

    def _preference(self, card: Card, environment: str, demand: Demand) -> tuple[int, int, int]:
        """Smaller is better: the order of candidates as the design words it."""
        mine = any(given.environment == environment for given in card.grants)
        if mine:
            return (0, 0, card.index)
        if card.health != "ok":
            return (9, 0, card.index)
        if demand.exclusive:
            return (1, 0, card.index)
        owner = owner_of(environment)
        left = card.capacity - card.compute_outside - card.graphics
        left -= sum(given.memory for given in card.grants)
        apart = self.policy.share_between_users == "last" and self._others(card, owner)
        if any(owner_of(g.environment) == owner for g in card.grants):
            return (2 if apart else 1, left, card.index)
        if apart:
            return (6, left, card.index)
        if card.grants:
            return (3, left, card.index)
        return (5 if self._outsiders(card) else 4, 0, card.index)

    def _check_refusal(self, refusal: NoCapacity, environment: str, demand: Demand) -> None:
        cards = self._candidates(demand)
        against = {card.uuid for card in cards if not self._does(card, environment, demand)}
        assert len(cards) - len(against) < demand.count, "refused what could be given"
        assert not self._never(demand), "that is out of range, not a matter of waiting"
        assert refusal.details["reasons"].keys() == against
        assert refusal.hint

    def _check_grants(self, environment: str, demand: Demand, placed: tuple[Placed, ...]) -> None:
        fitting = [c for c in self._candidates(demand) if self._does(c, environment, demand)]
        fitting.sort(key=lambda card: self._preference(card, environment, demand))
        best = fitting[: demand.count]
        by_uuid = {card.uuid: card for card in self.cards}
        assert {part.device for part in placed} == {card.uuid for card in best}
        assert len(placed) == demand.count
        for part in placed:
            card = by_uuid[part.device]
            outside = card.compute_outside + card.graphics
            assert part.exclusive == demand.exclusive and part.compute == demand.compute
            if demand.exclusive:
                assert part.memory == card.capacity - outside
            else:
                assert part.memory == self._need(card, demand)
            others = sum(g.memory for g in card.grants if g.environment != environment)
            assert part.memory + others + outside <= card.capacity, "outsiders count"

    # -- bookkeeping, as the broker does it ---------------------------------------------------

    def _give(self, environment: str, placed: tuple[Placed, ...], held: dict[str, Given]) -> None:
        cards = {card.uuid: card for card in self.cards}
        for uuid, old in held.items():
            if uuid not in {part.device for part in placed}:
                self._let_go(cards[uuid], old)
        for part in placed:
            new = Given(environment, part.device, part.memory, part.compute or 0, part.exclusive)
            old = held.get(part.device)
            if old is not None:
                if environment in self.alive:  # it keeps the cap it started with
                    new.memory = max(new.memory, old.memory)
                    new.compute = max(new.compute, old.compute)
                    new.exclusive = new.exclusive or old.exclusive
                self._drop(cards[part.device], old)
            self._add(cards[part.device], new)

    def _let_go(self, card: Card, given: Given) -> None:
        if given.environment in self.alive:
            given.draining = True  # and counts on
        else:
            self._drop(card, given)

    def _add(self, card: Card, given: Given) -> None:
        card.grants.append(given)
        self.slots[card.index].add(
            owner_of(given.environment), given.memory, given.compute or None, given.exclusive
        )

    def _drop(self, card: Card, given: Given) -> None:
        card.grants.remove(given)
        self.slots[card.index].drop(
            owner_of(given.environment), given.memory, given.compute or None, given.exclusive
        )


def test_placement_keeps_its_promises_whatever_happens() -> None:
    run_state_machine_as_test(
        Placement, settings=settings(max_examples=120, stateful_step_count=30, deadline=None)
    )
