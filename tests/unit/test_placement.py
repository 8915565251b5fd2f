"""Placement: who gets which device, in which order, and what a refusal says."""

from __future__ import annotations

from typing import Any

import pytest

from genv_jupyter.demand import Demand, demand_of
from genv_jupyter.errors import (
    AmbiguousDevice,
    BadRequest,
    GpuError,
    NoCapacity,
    OutOfRange,
    UnknownDevice,
)
from genv_jupyter.model import Request
from genv_jupyter.placement import Own, Placed, Slot, place, satisfied
from genv_jupyter.policy import Policy

GIB = 2**30
MIB = 2**20
ME, OTHER = "local:1000", "local:1001"
POLICY = Policy()


def gpus(count: int = 2, gib: int = 24) -> list[Slot]:
    return [
        Slot(uuid=f"GPU-{index:08x}-1111-2222-3333-444444444444", index=index, capacity=gib * GIB)
        for index in range(count)
    ]


def ask(**fields: Any) -> Demand:
    return demand_of(Request(**fields))


def indices(slots: list[Slot], placed: tuple[Placed, ...]) -> list[int | None]:
    return [next(slot.index for slot in slots if slot.uuid == part.device) for part in placed]


def refused(error: type[GpuError], slots: list[Slot], demand: Demand, **more: Any) -> GpuError:
    with pytest.raises(error) as caught:
        place(slots, demand, more.pop("owner", ME), more.pop("policy", POLICY), **more)
    assert type(caught.value) is error
    assert caught.value.message and caught.value.hint
    return caught.value


def reason(slots: list[Slot], demand: Demand, at: int = 0, **more: Any) -> str:
    error = refused(NoCapacity, slots, demand, **more)
    return str(error.details["reasons"].get(slots[at].uuid))


# -- what a grant is ----------------------------------------------------------------------------


def test_a_fraction_is_that_part_of_memory_and_a_ceiling() -> None:
    slots = gpus()
    assert place(slots, ask(fraction=0.5), ME, POLICY) == (
        Placed(slots[0].uuid, 12 * GIB, 5_000, False),
    )


def test_a_fraction_of_odd_memory_is_rounded_down() -> None:
    slots = [Slot(uuid="GPU-a", index=0, capacity=1001)]
    assert place(slots, ask(fraction=0.5), ME, POLICY)[0].memory == 500


def test_memory_has_no_ceiling_unless_a_fraction_says_one() -> None:
    slots = gpus()
    assert place(slots, ask(memory="4G"), ME, POLICY)[0].compute is None
    both = place(slots, ask(memory="4G", fraction=0.25), ME, POLICY)[0]
    assert (both.memory, both.compute) == (4 * 10**9, 2_500)


def test_a_whole_device_is_all_that_the_desktop_leaves() -> None:
    slots = gpus()
    slots[0].external = slots[0].graphics = 300 * MIB
    assert place(slots, ask(gpus=1), ME, POLICY) == (
        Placed(slots[0].uuid, 24 * GIB - 300 * MIB, None, True),
    )


def test_nothing_is_counted_by_asking() -> None:
    slots = gpus()
    place(slots, ask(gpus=2), ME, POLICY)
    assert all(not slot.granted and not slot.exclusive and not slot.owners for slot in slots)


# -- order of preference ------------------------------------------------------------------------


def test_shared_goes_to_the_device_this_owner_shares_before_a_fuller_one() -> None:
    slots = gpus(4)
    slots[1].add(OTHER, 20 * GIB, None, False)
    slots[2].add(ME, 1 * GIB, None, False)
    assert indices(slots, place(slots, ask(memory="2GiB"), ME, POLICY)) == [2]


def test_among_devices_this_owner_shares_the_fullest_wins() -> None:
    slots = gpus(3)
    slots[0].add(ME, 1 * GIB, None, False)
    slots[2].add(ME, 9 * GIB, None, False)
    assert indices(slots, place(slots, ask(memory="2GiB"), ME, POLICY)) == [2]


def test_shared_goes_to_the_fullest_on_which_it_fits() -> None:
    slots = gpus(4)
    slots[1].add(OTHER, 4 * GIB, None, False)
    slots[2].add(OTHER, 16 * GIB, None, False)
    slots[3].add(OTHER, 23 * GIB, None, False)
    always = Policy(share_between_users="always")
    assert indices(slots, place(slots, ask(memory="2GiB"), ME, always)) == [2]


def test_a_device_of_other_users_comes_last_or_never_or_as_any_other() -> None:
    slots, two = gpus(3), ask(gpus=2, memory="2GiB")
    slots[0].add(OTHER, GIB, None, False)
    slots[1].external, slots[1].users = 4 * GIB, frozenset({OTHER})
    assert indices(slots, place(slots, ask(memory="2GiB"), ME, POLICY)) == [2]
    assert indices(slots, place(slots, two, ME, POLICY)) == [1, 2], "the fuller one of those"
    never = Policy(share_between_users="never")
    assert indices(slots, place(slots, ask(memory="2GiB"), ME, never)) == [2]
    for at in (0, 1):
        assert "users do not share devices here" in reason(slots, two, at, policy=never)
    always = Policy(share_between_users="always")
    assert indices(slots, place(slots, ask(memory="2GiB"), ME, always)) == [0]


def test_what_one_has_where_others_have_come_may_still_change() -> None:
    slots, never = gpus(1), Policy(share_between_users="never")
    slots[0].add(ME, GIB, None, False)
    slots[0].users = frozenset({OTHER})
    own = {slots[0].uuid: Own(GIB, None, False)}
    assert place(slots, ask(memory="2GiB"), ME, never, own)[0].memory == 2 * GIB
    refused(NoCapacity, slots, ask(memory="2GiB"), policy=never)


def test_own_processes_outside_environments_are_no_other_users() -> None:
    slots = gpus(1)
    slots[0].users = frozenset({ME})
    place(slots, ask(memory="2GiB"), ME, Policy(share_between_users="never"))


def test_a_device_shared_with_others_comes_after_one_of_ones_own() -> None:
    slots = gpus(3)
    for slot, owner in ((slots[0], OTHER), (slots[0], ME), (slots[1], ME)):
        slot.add(owner, GIB, None, False)
    assert indices(slots, place(slots, ask(memory="2GiB"), ME, POLICY)) == [1]
    slots[1].drop(ME, GIB, None, False)
    assert indices(slots, place(slots, ask(memory="2GiB"), ME, POLICY)) == [0], "before an empty"


def test_fullest_is_the_least_left_whatever_its_size() -> None:
    small, large = gpus(1, gib=8)[0], gpus(2, gib=80)[1]
    large.add(OTHER, 40 * GIB, None, False)
    small.add(OTHER, 1 * GIB, None, False)
    slots = [large, small]
    assert place(slots, ask(memory="2GiB"), ME, POLICY)[0].device == small.uuid


def test_shared_opens_an_empty_device_last_and_the_lowest() -> None:
    slots = gpus(3)
    slots[0].add(OTHER, 24 * GIB, None, True)
    assert indices(slots, place(slots, ask(memory="2GiB"), ME, POLICY)) == [1]


def test_shared_avoids_an_empty_device_that_outsiders_use() -> None:
    slots = gpus(2)
    slots[0].external = 4 * GIB
    assert indices(slots, place(slots, ask(memory="2GiB"), ME, POLICY)) == [1]
    assert indices(slots, place(slots[:1], ask(memory="2GiB"), ME, POLICY)) == [0]


def test_a_desktop_does_not_make_a_device_less_empty() -> None:
    slots = gpus(2)
    slots[0].external = slots[0].graphics = 500 * MIB
    assert indices(slots, place(slots, ask(memory="2GiB"), ME, POLICY)) == [0]


def test_whole_takes_the_lowest_index() -> None:
    slots = gpus(3)
    slots[0].add(OTHER, GIB, None, False)
    assert indices(slots, place(slots, ask(gpus=1), ME, POLICY)) == [1]


def test_several_are_answered_in_index_order() -> None:
    slots = gpus(4)
    slots[3].add(ME, GIB, None, False)
    slots[1].add(ME, GIB, None, False)
    assert indices(slots, place(slots, ask(gpus=2, memory="2GiB"), ME, POLICY)) == [1, 3]


def test_named_devices_are_answered_in_the_order_of_their_names() -> None:
    slots = gpus(3)
    assert indices(slots, place(slots, ask(devices=("2", "0")), ME, POLICY)) == [2, 0]


# -- what an environment holds already ----------------------------------------------------------


def test_own_device_comes_before_all_others() -> None:
    slots = gpus(3)
    slots[1].add(ME, 20 * GIB, None, False)
    slots[2].add(ME, 4 * GIB, None, False)
    own = {slots[2].uuid: Own(4 * GIB, None, False)}
    assert indices(slots, place(slots, ask(memory="2GiB"), ME, POLICY, own)) == [2]


def test_own_device_comes_first_for_whole_ones() -> None:
    slots = gpus(3)
    slots[2].add(ME, 4 * GIB, None, False)
    own = {slots[2].uuid: Own(4 * GIB, None, False)}
    assert indices(slots, place(slots, ask(gpus=1), ME, POLICY, own)) == [2]
    assert indices(slots, place(slots, ask(gpus=2), ME, POLICY, own)) == [0, 2]


def test_own_memory_and_ceiling_do_not_stand_in_the_way() -> None:
    slots = gpus(1)
    slots[0].add(ME, 16 * GIB, 8_000, False)
    own = {slots[0].uuid: Own(16 * GIB, 8_000, False)}
    assert place(slots, ask(fraction=0.9), ME, POLICY, own)[0].compute == 9_000
    refused(NoCapacity, slots, ask(fraction=0.9))


def test_own_whole_device_can_be_given_back_in_part() -> None:
    slots = gpus(1)
    slots[0].add(ME, 24 * GIB, None, True)
    own = {slots[0].uuid: Own(24 * GIB, None, True)}
    assert place(slots, ask(memory="4G"), ME, POLICY, own)[0].exclusive is False


def test_own_share_is_no_credit_on_another_device() -> None:
    slots = gpus(2)
    slots[0].add(ME, 24 * GIB, None, True)
    slots[1].add(OTHER, 20 * GIB, None, False)
    own = {slots[0].uuid: Own(24 * GIB, None, True)}
    refused(NoCapacity, slots, ask(memory="8GiB", devices=("1",)), own=own)


def test_own_share_grows_only_into_what_others_and_outsiders_leave() -> None:
    slots = gpus(1)
    slots[0].add(ME, 4 * GIB, 3_000, False)
    slots[0].add(OTHER, 4 * GIB, None, False)
    slots[0].external = 10 * GIB
    own = {slots[0].uuid: Own(4 * GIB, 3_000, False)}
    assert place(slots, ask(memory="10GiB"), ME, POLICY, own)
    refused(NoCapacity, slots, ask(memory=10 * GIB + 1), own=own)
    slots[0].add(ME, GIB, 5_000, False)  # another notebook of the same owner
    assert place(slots, ask(memory="1GiB", fraction=0.5), ME, POLICY, own)
    refused(NoCapacity, slots, ask(memory="1GiB", fraction=0.51), own=own)


def test_own_share_does_not_make_a_shared_device_whole() -> None:
    slots = gpus(1)
    slots[0].add(ME, 4 * GIB, None, False)
    slots[0].add(OTHER, 4 * GIB, None, False)
    own = {slots[0].uuid: Own(4 * GIB, None, False)}
    assert reason(slots, ask(gpus=1), own=own) == "GPU 0 is shared."


def test_a_refusal_says_that_what_is_held_stays() -> None:
    slots = gpus(1)
    slots[0].add(ME, 4 * GIB, None, False)
    slots[0].add(OTHER, 4 * GIB, None, False)
    own = {slots[0].uuid: Own(4 * GIB, None, False)}
    assert "stays yours" in refused(NoCapacity, slots, ask(gpus=1), own=own).hint
    assert "stays yours" not in refused(NoCapacity, slots, ask(gpus=1)).hint


# -- what stands in the way ---------------------------------------------------------------------


def test_memory_never_exceeds_what_is_left() -> None:
    slots = gpus(1)
    slots[0].add(OTHER, 12 * GIB, None, False)
    assert place(slots, ask(memory=12 * GIB), ME, POLICY)
    assert reason(slots, ask(memory=12 * GIB + 1)) == "GPU 0 has 12 GiB left of 24 GiB."


def test_memory_overcommit_is_in_the_capacity() -> None:
    slots = gpus(1)
    slots[0].capacity = 36 * GIB
    slots[0].add(OTHER, 24 * GIB, None, False)
    assert place(slots, ask(memory="12GiB"), ME, POLICY)


def test_ceilings_of_one_owner_stay_within_the_device() -> None:
    slots = gpus(1)
    slots[0].add(ME, GIB, 6_000, False)
    assert place(slots, ask(memory="1G", fraction=0.4), ME, POLICY)
    assert reason(slots, ask(memory="1G", fraction=0.41)) == (
        "GPU 0: your shares there come to 60 % already, of 100 %."
    )


def test_ceilings_of_others_are_theirs() -> None:
    slots = gpus(1)
    slots[0].add(OTHER, GIB, 9_000, False)
    assert place(slots, ask(memory="1G", fraction=0.9), ME, POLICY)


def test_compute_overcommit_widens_the_ceilings() -> None:
    slots = gpus(1)
    slots[0].add(ME, GIB, 10_000, False)
    wide = Policy(compute_overcommit=15_000)
    assert place(slots, ask(memory="1G", fraction=0.5), ME, wide)
    refused(NoCapacity, slots, ask(memory="1G", fraction=0.51), policy=wide)


def test_no_ceiling_takes_nothing_from_the_ceilings() -> None:
    slots = gpus(1)
    slots[0].add(ME, GIB, 10_000, False)
    assert place(slots, ask(memory="1G"), ME, POLICY)


def test_a_whole_grant_is_alone() -> None:
    slots = gpus(1)
    slots[0].add(OTHER, 10 * GIB, None, True)
    assert reason(slots, ask(memory="1G")) == "GPU 0 is held whole."
    assert reason(slots, ask(gpus=1)) == "GPU 0 is held whole."


def test_a_shared_device_is_not_whole() -> None:
    slots = gpus(1)
    slots[0].add(OTHER, 1, None, False)
    assert reason(slots, ask(gpus=1)) == "GPU 0 is shared."


def test_a_lost_device_is_never_given() -> None:
    slots = gpus(1)
    slots[0].health = "lost"
    for demand in (ask(gpus=1), ask(fraction=0.1), ask(memory="1G"), ask(devices=("0",))):
        assert "is lost" in reason(slots, demand)
    slots[0].add(ME, GIB, None, False)
    own = {slots[0].uuid: Own(GIB, None, False)}
    assert "is lost" in reason(slots, ask(memory="1G"), own=own)


def test_outsiders_memory_counts() -> None:
    slots = gpus(1)
    slots[0].external = 20 * GIB
    assert place(slots, ask(memory="4GiB"), ME, POLICY)
    assert reason(slots, ask(memory="5GiB")) == (
        "GPU 0 has 4 GiB left of 24 GiB; somebody uses 20 GiB of it outside any environment."
    )


@pytest.mark.parametrize(
    ("external", "graphics", "whole"),
    [
        (0, 0, True),
        (64 * MIB, 0, True),  # what a driver keeps and no process explains
        (65 * MIB, 0, False),
        (300 * MIB, 0, False),  # the smallest CUDA context
        (GIB, GIB, True),
        (GIB + 1200 * MIB, GIB + 1200 * MIB, False),
        (GIB + 300 * MIB, GIB, False),  # a desktop and somebody's process
        (20 * GIB, 0, False),
    ],
)
def test_whole_tolerates_a_desktop_and_nobody_else(
    external: int, graphics: int, whole: bool
) -> None:
    slots = gpus(1)
    slots[0].external, slots[0].graphics = external, graphics
    if whole:
        assert place(slots, ask(gpus=1), ME, POLICY)[0].memory == 24 * GIB - external
    else:
        assert "somebody uses it outside any environment" in reason(slots, ask(gpus=1))


def test_a_desktop_may_be_a_share_of_a_large_device() -> None:
    slots = gpus(1, gib=80)
    slots[0].external = slots[0].graphics = 4 * GIB
    assert place(slots, ask(gpus=1), ME, POLICY)
    slots[0].external = slots[0].graphics = 4 * GIB + 1
    assert "outside" in reason(slots, ask(gpus=1))


def test_several_devices_are_given_all_or_none() -> None:
    slots = gpus(3)
    slots[1].add(OTHER, GIB, None, False)
    slots[2].add(OTHER, 24 * GIB, None, True)
    error = refused(NoCapacity, slots, ask(gpus=2))
    assert error.message.startswith("Only 1 of 2 GPUs is free")
    assert error.details["reasons"].keys() == {slots[1].uuid, slots[2].uuid}
    error = refused(NoCapacity, slots, ask(devices=("0", "1")))
    assert error.details["reasons"].keys() == {slots[1].uuid}


def test_a_device_that_hides_its_memory_can_only_be_had_whole() -> None:
    slots = gpus(1)
    slots[0].capacity = 0
    for demand in (ask(fraction=0.5), ask(memory="1G")):
        assert "can only be had whole" in reason(slots, demand)
    assert place(slots, ask(gpus=1), ME, POLICY)[0].memory == 0


# -- names --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "1",
        "01",
        "GPU-00000001-1111-2222-3333-444444444444",
        "GPU-00000001",
        "gpu-00000001",
        "00000001",
        "00000001-1111",
        "00000001-1111-2222-3333-444444444444",
    ],
)
def test_a_device_is_found_by_index_uuid_or_unique_prefix(name: str) -> None:
    slots = gpus(3)
    assert indices(slots, place(slots, ask(devices=(name,)), ME, POLICY)) == [1]


@pytest.mark.parametrize(
    "name", ["7", "-1", "GPU-f", "GPU-", "MIG-", "MIG-00000001", "١", "1.0", "nvidia0", "0000001"]
)
def test_an_unknown_device_is_named_with_the_known_ones(name: str) -> None:
    slots = gpus(6)
    if name == "0000001":
        slots = slots[:1]  # seven digits are an index, and no index 1 is here
    error = refused(UnknownDevice, slots, ask(devices=(name,)))
    assert repr(name) in error.message
    assert slots[0].uuid in error.hint


def test_an_index_is_the_drivers_and_not_a_place_in_the_list() -> None:
    slots = gpus(4)[2:]
    assert place(slots, ask(devices=("3",)), ME, POLICY)[0].device == slots[1].uuid
    refused(UnknownDevice, slots, ask(devices=("0",)))


def test_an_ambiguous_prefix_names_what_it_fits() -> None:
    slots = gpus(3)
    error = refused(AmbiguousDevice, slots, ask(devices=("GPU-0000000",)))
    assert all(slot.uuid in error.message for slot in slots)


def test_a_whole_uuid_wins_over_a_longer_one() -> None:
    slots = [Slot(uuid=uuid, index=i, capacity=GIB) for i, uuid in enumerate(("MIG-a", "MIG-a/1"))]
    assert place(slots, ask(devices=("MIG-a",)), ME, POLICY)[0].device == "MIG-a"


def test_mig_instances_are_found_by_their_uuid() -> None:
    slots = [Slot(uuid="MIG-c7b1", index=0, kind="mig", capacity=GIB), *gpus(2)[1:]]
    for name in ("MIG-c7b1", "c7b1", "mig-c"):
        assert place(slots, ask(devices=(name,)), ME, POLICY)[0].device == "MIG-c7b1"
    slots[0].add(OTHER, GIB, None, True)
    assert reason(slots, ask(devices=("c7",))) == "MIG 0 is held whole."


def test_the_same_device_twice_is_a_bad_request() -> None:
    error = refused(BadRequest, gpus(2), ask(devices=("0", "00000000")))
    assert "twice" in error.message


# -- never, here --------------------------------------------------------------------------------


def test_more_memory_than_any_device_has_is_out_of_range() -> None:
    slots = gpus(2)
    error = refused(OutOfRange, slots, ask(memory=24 * GIB + 1))
    assert "24 GiB" in error.hint
    slots[0].capacity = 48 * GIB
    refused(OutOfRange, slots, ask(memory="30GiB", devices=("1",)))
    assert "24 GiB" in refused(OutOfRange, slots, ask(gpus=2, memory="30GiB")).hint


def test_out_of_range_does_not_depend_on_who_holds_what() -> None:
    slots = gpus(2)
    for slot in slots:
        slot.add(OTHER, 24 * GIB, None, True)
    refused(OutOfRange, slots, ask(memory="30GiB"))
    refused(NoCapacity, slots, ask(memory="20GiB"))


def test_more_devices_than_the_pool_has_is_out_of_range() -> None:
    error = refused(OutOfRange, gpus(2), ask(gpus=3))
    assert "only 2 GPUs" in error.message
    refused(OutOfRange, [], ask(gpus=1))
    refused(OutOfRange, gpus(1), ask(gpus=2, memory="1G"))


def test_a_named_refusal_names_the_device_and_not_all() -> None:
    slots = gpus(2)
    slots[1].add(OTHER, 24 * GIB, None, True)
    error = refused(NoCapacity, slots, ask(devices=("1",)))
    assert error.message == "GPU 1 is not free for a whole device."
    assert "name the device" in error.hint


# -- the same again -----------------------------------------------------------------------------


def test_what_is_held_satisfies_the_same_request_and_no_other() -> None:
    slots = gpus(3)
    half = {slots[1].uuid: Own(12 * GIB, 5_000, False)}
    whole = {slots[1].uuid: Own(23 * GIB, None, True)}
    assert satisfied(half, ask(fraction=0.5), slots)
    assert satisfied(half, ask(fraction=0.5, devices=("1",)), slots)
    assert satisfied(half, ask(memory="12GiB", fraction=0.5), slots)
    assert satisfied(whole, ask(gpus=1), slots)
    for demand in (
        ask(fraction=0.49),
        ask(memory="12GiB"),
        ask(gpus=1),
        ask(fraction=0.5, devices=("0",)),
        ask(gpus=2, fraction=0.5),
    ):
        assert not satisfied(half, demand, slots)
    assert not satisfied(whole, ask(fraction=0.5), slots)
    assert not satisfied(whole, ask(devices=("0",)), slots)
    assert not satisfied({}, ask(gpus=1), slots)


def test_what_is_held_satisfies_only_where_it_may_be_used() -> None:
    slots = gpus(2)
    half = {slots[1].uuid: Own(12 * GIB, 5_000, False)}
    assert not satisfied(half, ask(fraction=0.5), slots[:1])
    slots[1].health = "lost"
    assert not satisfied(half, ask(fraction=0.5), slots)
    with pytest.raises(UnknownDevice):
        satisfied(half, ask(devices=("9",)), slots)


@pytest.mark.parametrize("health", ["unreliable", "unknown"])
@pytest.mark.parametrize("wanted", [{"gpus": 1}, {"fraction": 0.25}])
def test_device_that_is_not_read_reliably_comes_last_and_is_still_given(
    wanted: dict[str, Any], health: Any
) -> None:
    slots, demand = gpus(3), ask(**wanted)
    slots[0].health = health
    assert indices(slots, place(slots, demand, ME, POLICY)) == [1]
    if demand.fraction:
        slots[0].add(ME, GIB, None, False)
        assert indices(slots, place(slots, demand, ME, POLICY)) == [1], "though it is shared"
        slots[0].drop(ME, GIB, None, False)
    for other in slots[1:]:
        other.health = "lost"
    assert indices(slots, place(slots, demand, ME, POLICY)) == [0]


# -- compute mode exclusive process ---------------------------------------------------------------


def exclusive_of(owner: str) -> list[Slot]:
    """Two devices, on the first of which only an owner's processes under MPS get in."""
    slots = gpus()
    slots[0].add(owner, 4 * GIB, 1000, False)
    slots[0].only = owner
    return slots


@pytest.mark.parametrize(
    ("owner", "fields", "at"),
    [
        (ME, {}, 0),
        (OTHER, {}, 1),
        (ME, {"mps": "off"}, 1),
        (ME, {"mps": "on"}, 0),
    ],
)
def test_only_one_users_processes_under_mps_get_in(
    owner: str, fields: dict[str, Any], at: int
) -> None:
    slots = exclusive_of(ME)
    assert indices(slots, place(slots, ask(fraction=0.25, **fields), owner, POLICY)) == [at]


def test_without_mps_by_policy_nobody_gets_in_beside() -> None:
    slots = exclusive_of(ME)
    for policy in (Policy(mps="never"), Policy(mps_memory_only=False)):
        assert indices(slots, place(slots, ask(memory="1GiB"), ME, policy)) == [1]
    assert indices(slots, place(slots, ask(memory="1GiB"), ME, POLICY)) == [0]
    always = Policy(share_between_users="always")
    said = reason(slots, ask(devices=("0",), fraction=0.25), owner=OTHER, policy=always)
    assert said.startswith("GPU 0 is shared under MPS in compute mode exclusive process")


def test_who_is_alone_there_may_go_on_without_mps() -> None:
    slots = exclusive_of(ME)
    own = {slots[0].uuid: Own(4 * GIB, 1000, False)}
    off = ask(devices=("0",), fraction=0.25, mps="off")
    assert indices(slots, place(slots, off, ME, POLICY, own)) == [0]
    slots[0].add(ME, 4 * GIB, 1000, False)
    assert "lets in nobody" in reason(slots, off, own=own)


# -- maintenance --------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", [{"gpus": 1}, {"fraction": 0.5}, {"memory": "4G"}])
def test_a_device_under_maintenance_is_for_nobody_new(asked: dict[str, Any]) -> None:
    slots = gpus()
    slots[0].closed = "under maintenance since noon by carol"
    assert indices(slots, place(slots, ask(**asked), ME, POLICY)) == [1]
    slots[1].closed = "under maintenance since noon by carol"
    assert reason(slots, ask(**asked)) == "GPU 0 is under maintenance since noon by carol."


def test_who_holds_a_device_under_maintenance_may_change_what_they_have() -> None:
    slots = gpus()
    slots[0].closed = "under maintenance since noon by carol"
    slots[0].add(ME, 12 * GIB, 5_000, False)
    own = {slots[0].uuid: Own(12 * GIB, 5_000, False)}
    assert indices(slots, place(slots, ask(fraction=0.75), ME, POLICY, own)) == [0]
