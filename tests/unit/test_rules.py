"""The judgements of the rules: what was seen goes in, breaches come out."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genv_jupyter.broker.rules import cap, foreign, idle, lease, outside, quota
from genv_jupyter.broker.rules.breaches import Key, Target
from genv_jupyter.broker.rules.idle import Idleness, Load
from genv_jupyter.broker.rules.protection import spared
from genv_jupyter.broker.rules.quota import Holding, Quota
from tests.unit.brokers import GIB

HERE = "an environment"
DEVICE = "GPU-1"


def process(pid: int, memory: int | None = GIB, **more: object) -> Target:
    return Target(pid=pid, start=pid * 10, memory=memory, **more)  # type: ignore[arg-type]


targets = st.lists(
    st.builds(
        Target,
        pid=st.integers(1, 10_000),
        start=st.just(1),
        memory=st.none() | st.integers(0, 40),
        kernel=st.booleans(),
        spared=st.sampled_from([None, None, None, "root's"]),
    ),
    max_size=6,
    unique_by=lambda it: it.pid,
)


# -- who is never touched --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("who", "why"),
    [
        ({"uid": 0}, "somebody else"),
        ({"uid": 1001}, "somebody else"),
        ({"uid": None}, "not to be found"),
        ({"start": None}, "not to be found"),
        ({"kind": "graphics"}, "screen"),
        ({"name": "nvidia-cuda-mps-server"}, "driver"),
        ({"name": "/usr/bin/nvidia-persistenced"}, "driver"),
        ({"name": "nv-hostengine"}, "driver"),
        ({"name": "dcgm-exporter"}, "driver"),
        ({"name": "python"}, None),
        ({"name": None, "kind": "mps"}, None),
    ],
)
def test_root_strangers_graphics_mps_and_dcgm_are_spared(
    who: dict[str, object], why: str | None
) -> None:
    user: dict[str, object] = {
        "uid": 1000, "start": 5, "kind": "compute", "name": "python", "member": False, "me": 1000,
    }  # fmt: skip
    said = spared(**{**user, **who})  # type: ignore[arg-type]
    assert said is None if why is None else said is not None and why in said
    member = spared(**{**user, **who, "member": True})  # type: ignore[arg-type]
    assert (member is None) == (said is None)


@pytest.mark.parametrize("uid", [0, 33, 999, 65534])
def test_the_system_is_spared_outside_and_what_belongs_to_an_environment_is_its_owners(
    uid: int,
) -> None:
    facts = {"uid": uid, "start": 5, "kind": "compute", "name": "python", "me": uid}
    assert spared(**facts, member=False) == "it is the system's"  # type: ignore[arg-type]
    assert spared(**facts, member=True) is None  # type: ignore[arg-type]


# -- over the cap ----------------------------------------------------------------------------------


def over(*processes: Target, cap_: int = 4 * GIB, slack: int = 0) -> tuple[int, ...] | None:
    found = cap.judge(HERE, DEVICE, "GPU 0", cap_, slack, processes)
    return None if found is None else tuple(it.pid for it in found.targets)


def test_all_processes_together_are_held_against_the_cap() -> None:
    assert over(process(1, 2 * GIB), process(2, 2 * GIB)) is None
    assert over(process(1, 2 * GIB), process(2, 2 * GIB + 1)) == (2,)
    assert over(process(1, 2 * GIB), process(2, 2 * GIB + 1), slack=1) is None
    found = cap.judge(HERE, DEVICE, "GPU 0", 4 * GIB, 0, [process(1, 5 * GIB)])
    assert found is not None and found.key == Key("cap", HERE, DEVICE)
    assert found.said == "5 GiB of GPU 0 are used here, and 4 GiB granted."


def test_what_the_driver_does_not_tell_is_nobodys_fault() -> None:
    assert over(process(1, None), process(2, 4 * GIB)) is None
    assert over(process(1, None), process(2, 5 * GIB)) == (2,)


def test_a_child_goes_before_the_kernel_and_the_kernel_where_a_child_is_not_enough() -> None:
    kernel, child = process(1, 9 * GIB, kernel=True), process(2, 3 * GIB)
    assert over(kernel, child, cap_=10 * GIB) == (2,)
    assert over(kernel, child, cap_=5 * GIB) == (1,)
    assert over(kernel, child, cap_=2 * GIB) == (1, 2)


def test_nothing_is_ended_in_vain() -> None:
    rooted = process(1, 9 * GIB, spared="root's")
    assert over(rooted, process(2, GIB)) == ()


@given(targets, st.integers(0, 60), st.integers(0, 10))
def test_no_smaller_choice_brings_it_under_and_no_kernel_goes_for_a_child(
    processes: list[Target], limit: int, slack: int
) -> None:
    found = cap.judge(HERE, DEVICE, "GPU 0", limit, slack, processes)
    used = sum(it.memory or 0 for it in processes)
    assert (found is not None) == (used > limit + slack)
    if found is None:
        return
    chosen = found.targets
    assert all(it.spared is None and it.memory for it in chosen)

    def enough(some: tuple[Target, ...]) -> bool:
        return used - sum(it.memory or 0 for it in some) <= limit + slack

    able = [it for it in processes if it.spared is None]
    children = [it for it in able if not it.kernel]
    ways = [
        some
        for among in (children, able)
        for size in range(len(among) + 1)
        for some in combinations(among, size)
        if enough(some)
    ]
    assert bool(chosen) == bool(ways)
    if chosen:
        assert enough(chosen)
        first = [some for some in ways if not any(it.kernel for it in some)] or ways
        assert len(chosen) == min(map(len, first))


# -- a device that is not in the environment -------------------------------------------------------


def test_use_of_a_device_without_a_grant_is_a_breach_of_whoever_is_there() -> None:
    there = [process(1, name="python"), process(2, spared="root's")]
    found = foreign.judge(HERE, DEVICE, "GPU 1", False, there)
    assert found is not None and [it.pid for it in found.targets] == [1]
    assert found.said == "GPU 1 is used here by process 1 (python) and 1 more, and was not granted."
    assert foreign.judge(HERE, DEVICE, "GPU 1", True, there) is None
    assert foreign.judge(HERE, DEVICE, "GPU 1", False, []) is None


# -- outside any environment -----------------------------------------------------------------------


def test_outsiders_are_told_of_only_where_they_may_be_acted_upon() -> None:
    theirs = process(3, spared="it belongs to somebody else")
    assert outside.judge("local:1000", DEVICE, "GPU 0", [theirs]) is None
    found = outside.judge("local:1000", DEVICE, "GPU 0", [theirs, process(4, None, name="train")])
    assert found is not None and found.key == Key("outside", "", DEVICE, "local:1000")
    assert [it.pid for it in found.targets] == [4]
    assert found.said == (
        "GPU 0 is used outside any environment: process 4 (train) with memory unknown."
    )
    many = outside.judge("local:1000", DEVICE, "GPU 0", [process(pid) for pid in range(1, 6)])
    assert many is not None and many.said.endswith("and 2 more.")


# -- idle ------------------------------------------------------------------------------------------

RESTS = Load(0, True)


@pytest.mark.parametrize(
    ("state", "loads", "rests"),
    [
        ("idle", [RESTS], True),
        ("busy", [RESTS], False),
        ("unknown", [RESTS], False),
        (None, [RESTS], False),
        ("idle", [], False),
        ("idle", [Load(1, True)], False),
        ("idle", [Load(None, True)], False),
        ("idle", [Load(None, None)], False),
        ("idle", [Load(90, None)], False),
        ("idle", [Load(90, False)], True),
        ("idle", [Load(None, False)], True),
        ("idle", [RESTS, Load(None, True)], False),
        ("idle", [RESTS, Load(50, False)], True),
    ],
)
def test_unknown_use_is_never_zero(state: str | None, loads: list[Load], rests: bool) -> None:
    assert idle.rests(state, loads) is rests  # type: ignore[arg-type]


def test_rest_counts_from_its_last_break() -> None:
    ended = datetime(2026, 1, 1, tzinfo=UTC)
    rest = Idleness()
    rest.observe({"a": ended, "b": ended}, 100.0)
    rest.observe({"a": ended, "b": ended}, 160.0)
    assert rest.seconds("a", 160.0) == 60.0
    rest.observe({"b": ended}, 170.0)  # a was busy
    rest.observe({"a": ended, "b": ended.replace(minute=5)}, 180.0)  # b was, in between
    assert [rest.seconds(it, 200.0) for it in "ab"] == [20.0, 20.0]
    rest.keep("a", 190.0)
    rest.keep("unheard of", 190.0)
    assert [rest.seconds(it, 200.0) for it in ("a", "b", "unheard of")] == [10.0, 20.0, None]


@given(st.lists(st.sampled_from(["rest", "work", "keep"]), max_size=30), st.integers(1, 10))
def test_nobody_is_idle_before_an_unbroken_rest_of_that_length(
    looks: list[str], after: int
) -> None:
    rest, since = Idleness(), None
    for now, look in enumerate(looks):
        resting = {} if look == "work" else {HERE: None}
        rest.observe(resting, float(now))
        if look == "keep":
            rest.keep(HERE, float(now))
        since = None if look == "work" else now if since is None or look == "keep" else since
        found = idle.judge(HERE, ["GPU 0"], rest.seconds(HERE, float(now)), float(after))
        assert (found is not None) == (since is not None and now - since >= after)


def test_idle_names_what_is_held() -> None:
    found = idle.judge(HERE, ["GPU 0", "GPU 1"], 4000.0, 1800.0)
    assert found is not None and found.whole and found.targets == ()
    assert found.said == "Nothing has run here for 30 min, and GPU 0 and GPU 1 are held."


# -- leases and quotas -----------------------------------------------------------------------------


def test_a_lease_is_over_at_its_end_and_not_before() -> None:
    there = [process(1), process(2, spared="root's")]
    assert lease.judge(HERE, None, 1e9, there, False) is None
    assert lease.judge(HERE, 100.0, 99.9, there, False) is None
    found = lease.judge(HERE, 100.0, 100.0, there, False)
    assert found is not None and found.whole and [it.pid for it in found.targets] == [1]
    assert lease.judge(HERE, None, 0.0, there, True) == found, "taken back, and still there"


def holding(name: str, devices: int, memory: int, since: float) -> Holding:
    return Holding(environment=name, devices=devices, memory=memory * GIB, since=since)


def test_over_quota_is_what_was_granted_last() -> None:
    held = [holding("old", 10_000, 24, 1.0), holding("new", 5_000, 12, 2.0)]
    over = quota.judge(held, Quota(devices=10_000))
    assert [it.key for it in over] == [Key("quota", "new")]
    assert over[0].said == "1.5 devices are held, and the quota is 1, and this was granted last."
    (one,) = quota.judge([holding("only", 10_000, 24, 1.0)], Quota(devices=5_000))
    assert one.said == "1 device is held, and the quota is 0.5, and this was granted last."
    assert [it.key.environment for it in quota.judge(held, Quota(memory=20 * GIB))] == [
        "new",
        "old",
    ]
    assert quota.judge(held, Quota(devices=15_000, memory=36 * GIB)) == []
    assert quota.judge(held, Quota()) == []


def test_whoever_holds_one_of_two_things_too_much_of_is_over() -> None:
    held = [holding("old", 20_000, 0, 1), holding("new", 0, 30, 2), holding("none", 0, 0, 3)]
    over = quota.judge(held, Quota(devices=10_000, memory=20 * GIB))
    assert [it.key.environment for it in over] == ["new", "old"]


@given(
    st.lists(
        st.builds(
            holding,
            st.uuids().map(str),
            st.integers(0, 20_000),
            st.integers(0, 50),
            st.floats(0, 1e6),
        ),
        max_size=6,
    ),
    st.none() | st.integers(0, 40_000),
    st.none() | st.integers(0, 100).map(lambda it: it * GIB),
)
def test_what_is_left_is_within_the_quota(
    held: list[Holding], devices: int | None, memory: int | None
) -> None:
    most = Quota(devices=devices, memory=memory)
    gone = {it.key.environment for it in quota.judge(held, most)}
    left = [it for it in held if it.environment not in gone]
    assert devices is None or sum(it.devices for it in left) <= devices
    assert memory is None or sum(it.memory for it in left) <= memory
    assert quota.judge(left, most) == []
