"""Guarantees: what is kept for a group, from whom, and that it takes nothing from anybody."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from traitlets.config import Config

from genv_jupyter.broker.config import BrokerConfig
from genv_jupyter.errors import BadRequest, NoCapacity, OutOfRange
from genv_jupyter.guarantees import Guarantee, keep
from genv_jupyter.model import Principal, Request
from genv_jupyter.policy import Policy
from genv_jupyter.queueing import Stay
from genv_jupyter.quotas import QuotaLimits, check_rule
from genv_jupyter.slots import Slot
from tests.unit.brokers import HALF, WHOLE, Bench, Kernel, bench

POLICY = Policy()
FULL = 10_000
GROUPS = {"member": ("lab",), "both": ("lab", "thesis"), "other": ()}
MEMBER, BOTH, OTHER = (
    Principal(realm="hub", id=name, name=name, groups=groups) for name, groups in GROUPS.items()
)
ADMIN = Principal(realm="local", id="0", name="root", admin=True)


class Known:
    """Who is in which group, as a host would say."""

    def of(self, owner: str) -> Principal:
        return next((it for it in (MEMBER, BOTH, OTHER) if it.key == owner), ADMIN)

    last = of


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path, "3x24GiB") as made:
        made.broker.core.identities = Known()  # type: ignore[assignment]
        yield made


def guarantee(desk: Bench, **groups: float) -> None:
    said = {group: {"guaranteed": much} for group, much in groups.items()}
    desk.broker.core.config = BrokerConfig(Config({"QuotaSettings": {"groups": said}}))
    assert desk.broker.core.config.problems == []


def kernel_of(desk: Bench, who: Principal) -> Kernel:
    """Start a kernel of somebody on a server of theirs; calls are theirs until the next one."""
    desk.me, desk.server = who, str(uuid.uuid4())
    desk.register()
    return desk.kernel()


def turn(desk: Bench, seconds: float) -> None:
    """Let time pass, and whoever can be served be served."""
    desk.tick(seconds)
    desk.broker.queue.round()


# -- through the broker -------------------------------------------------------------------------


def test_a_device_is_kept_for_the_group_and_others_are_told_so(desk: Bench) -> None:
    guarantee(desk, lab=1)
    for number in (0, 1):
        other = kernel_of(desk, OTHER)
        assert [other.attach(WHOLE).grants[0].device] == [desk.device(number)]
    third = kernel_of(desk, OTHER)
    for request in (WHOLE, HALF, Request(memory="1G"), Request(gpus=1, devices=("2",))):
        with pytest.raises(NoCapacity) as refused:
            third.attach(request)
        assert "GPU 2 is kept for the group lab, which is guaranteed 1 GPU and has 0." in str(
            refused.value
        )
        with pytest.raises(NoCapacity):
            desk.broker.place(OTHER, request)
    member = kernel_of(desk, MEMBER)
    desk.broker.place(MEMBER, WHOLE)
    assert [it.device for it in member.attach(WHOLE).grants] == [desk.device(2)]


def test_what_members_hold_counts_and_what_they_give_back_is_kept_again(desk: Bench) -> None:
    guarantee(desk, lab=1)
    member = kernel_of(desk, MEMBER)
    member.attach(WHOLE)
    other = kernel_of(desk, OTHER)
    assert len(other.attach(Request(gpus=2)).grants) == 2, "the guarantee is met: nothing is kept"
    other.detach()
    desk.me = MEMBER
    member.detach()
    desk.me = OTHER
    with pytest.raises(NoCapacity):
        other.attach(Request(gpus=3))
    assert len(other.attach(Request(gpus=2)).grants) == 2


def test_it_takes_nothing_and_is_kept_as_soon_as_something_is_free(desk: Bench) -> None:
    holders = []
    for _ in range(3):
        holders.append(kernel_of(desk, OTHER))
        holders[-1].attach(WHOLE)
    guarantee(desk, lab=1)
    desk.tick(60)
    assert all(holder.devices for holder in holders)
    holders[1].attach(WHOLE)  # what one has is no new request
    holders[1].detach()
    with pytest.raises(NoCapacity, match="kept for the group lab"):
        holders[1].attach(HALF)


def test_what_is_shared_already_is_for_everybody(desk: Bench) -> None:
    guarantee(desk, lab=2)
    first = kernel_of(desk, OTHER)
    (grant,) = first.attach(Request(memory="4G")).grants
    second = kernel_of(desk, OTHER)
    assert [it.device for it in second.attach(Request(memory="4G")).grants] == [grant.device]


def test_who_waits_is_not_served_with_what_is_kept_and_stands_in_no_members_way(
    desk: Bench,
) -> None:
    guarantee(desk, lab=1)
    for _ in range(2):
        kernel_of(desk, OTHER).attach(WHOLE)
    waiting = kernel_of(desk, OTHER)
    waiting.attach(Request(gpus=1, wait="1h"), cuda="unknown")
    turn(desk, 600)  # longer than devices stay open to others
    assert waiting.now.state == "waiting"
    member = kernel_of(desk, MEMBER)
    assert member.attach(WHOLE).grants[0].device == desk.device(2)
    member.detach()
    turn(desk, 1)
    desk.me = OTHER
    assert waiting.now.state == "waiting" and not waiting.devices
    guarantee(desk)
    turn(desk, 1)
    assert waiting.devices == [desk.device(2)]


def test_what_is_held_is_added_up_once_for_each_decision_however_many_wait(
    desk: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    guarantee(desk, lab=1)
    for _ in range(2):
        kernel_of(desk, OTHER).attach(WHOLE)
    for _ in range(4):
        kernel_of(desk, OTHER).attach(Request(gpus=1, wait="1h"), cuda="unknown")
    core = desk.broker.core
    added: list[None] = []
    looked: list[bool] = []
    shares, stays = core.quotas.shares, core.line.stays

    def counted_shares() -> dict[str, int]:
        added.append(None)
        return shares()

    def counted_stays(*, guess: bool = False) -> dict[str, list[Stay]]:
        looked.append(guess)
        return stays(guess=guess)

    monkeypatch.setattr(core.quotas, "shares", counted_shares)
    monkeypatch.setattr(core.line, "stays", counted_stays)
    found, line = core.line.decide(())
    assert len(line) == 4 and found.given is None
    assert (len(added), looked) == (1, [False])
    assert len(desk.broker.tickets(OTHER)) == 4
    assert (len(added), looked) == (2, [False, False, True]), "the view of the queue: once more"
    turn(desk, 600)
    counts = []
    for _ in range(2):
        added.clear()
        with pytest.raises(NoCapacity):
            kernel_of(desk, OTHER).attach(WHOLE)
        counts.append(len(added))
        kernel_of(desk, OTHER).attach(Request(gpus=1, wait="1h"), cuda="unknown")
    assert counts[0] == counts[1], "a refusal adds up as often with one more who waits"


def test_a_device_that_nobody_can_have_is_not_what_is_kept(desk: Bench) -> None:
    guarantee(desk, lab=1)
    desk.broker.books.slots[desk.device(2)].closed = "under maintenance"
    with pytest.raises(NoCapacity):
        kernel_of(desk, OTHER).attach(Request(gpus=2))
    assert kernel_of(desk, OTHER).attach(WHOLE).grants[0].device == desk.device(0)
    assert kernel_of(desk, MEMBER).attach(WHOLE).grants[0].device == desk.device(1)


def test_members_see_what_they_are_guaranteed(desk: Bench) -> None:
    guarantee(desk, lab=1.5, thesis=1)
    kernel_of(desk, MEMBER).attach(HALF)
    shown = [(it.group, it.devices, it.used) for it in desk.broker.quota(BOTH).guarantees]
    assert shown == [("lab", 1.5, 0.5), ("thesis", 1.0, 0.0)]
    assert desk.broker.quota(OTHER).guarantees == ()


@pytest.mark.parametrize("scope", ["default", "user:ann"])
def test_only_groups_are_guaranteed_something(scope: str) -> None:
    with pytest.raises(BadRequest, match=r"^guaranteed: "):
        check_rule(scope, QuotaLimits(guaranteed=1))
    check_rule("group:lab", QuotaLimits(guaranteed=0.5))
    with pytest.raises(OutOfRange, match=r"^guaranteed: "):
        check_rule("group:lab", QuotaLimits(guaranteed=-1))


def test_a_configuration_that_guarantees_somebody_alone_is_told() -> None:
    said = {"QuotaSettings": {"users": {"ann": {"guaranteed": 1}}}}
    (problem,) = BrokerConfig(Config(said)).problems
    assert "guaranteed: devices are kept for groups" in problem


# -- what is kept -------------------------------------------------------------------------------

_share = st.integers(0, 4).map(lambda it: it * FULL // 2)
_guarantees = st.lists(
    st.builds(Guarantee, group=st.sampled_from("abcd"), devices=_share, used=_share),
    max_size=4,
    unique_by=lambda it: it.group,
)


@given(
    busy=st.lists(st.booleans(), max_size=6),
    guarantees=_guarantees,
    groups=st.sets(st.sampled_from("abcd")),
)
def test_no_more_is_kept_than_is_missing_and_only_what_is_free(
    busy: list[bool], guarantees: list[Guarantee], groups: set[str]
) -> None:
    slots = [Slot(uuid=f"GPU-{n}", index=n, capacity=8) for n in range(len(busy))]
    for slot, taken in zip(slots, busy, strict=True):
        if taken:
            slot.add("local:1", 8, None, True)
    kept = keep(slots, guarantees, groups, POLICY)
    free = [slot.uuid for slot in slots if not slot.exclusive]
    assert set(kept) <= set(free)
    for guarantee in guarantees:
        count = sum(it is guarantee for it in kept.values())
        assert count <= (0 if guarantee.group in groups else guarantee.missing)
    mine = sum(it.missing for it in guarantees if it.group in groups)
    theirs = sum(it.missing for it in guarantees if it.group not in groups)
    assert len(kept) == max(0, min(theirs, len(free) - mine)) or not theirs


@pytest.mark.parametrize(
    ("devices", "used", "missing"),
    [(FULL, 0, 1), (FULL, FULL // 2, 1), (FULL, FULL, 0), (FULL, 2 * FULL, 0), (15_000, 0, 2)],
)
def test_what_is_missing_is_rounded_up(devices: int, used: int, missing: int) -> None:
    assert Guarantee(group="a", devices=devices, used=used).missing == missing
