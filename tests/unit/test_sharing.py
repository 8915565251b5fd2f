"""Whether a share runs under MPS, and what is said where it does not."""

from __future__ import annotations

import re
from typing import Any

import pytest

from genv_jupyter.demand import demand_of
from genv_jupyter.errors import BadRequest, NoCapacity, OutOfRange
from genv_jupyter.model import Request
from genv_jupyter.policy import Policy
from genv_jupyter.sharing import Facts, Sharing, check_clients, sharing_of

ABLE = Facts(capability=(8, 0), compute_mode="default")
HALF = Request(fraction=0.5)
MEMORY = Request(memory="4GiB")
MIB = 2**20


def decided(request: Request, policy: Policy, *facts: Facts) -> Sharing:
    return sharing_of(demand_of(request), policy, facts or (ABLE,))


@pytest.mark.parametrize("request_", [HALF, MEMORY, Request(fraction=0.5, mps="on")])
@pytest.mark.parametrize("mps", ["auto", "always"])
def test_a_share_of_one_able_device_runs_under_mps(request_: Request, mps: Any) -> None:
    assert decided(request_, Policy(mps=mps)) == Sharing(True)
    volta = Facts(capability=(7, 0), compute_mode=None)
    assert decided(request_, Policy(mps=mps), volta) == Sharing(True)


UNABLE = [
    (Facts(simulated=True), "is simulated"),
    (Facts(kind="mig", capability=(9, 0)), "MIG instances"),
    (Facts(wsl=True, capability=(8, 6)), "under WSL"),
    (Facts(capability=(6, 1)), r"7\.0 \(Volta\), and this device's is 6\.1"),
    (Facts(capability=None), "is unknown"),
    (Facts(capability=(8, 0), compute_mode="exclusive_process"), "mode exclusive process"),
    (Facts(capability=(8, 0), compute_mode="exclusive_thread"), "mode exclusive thread"),
    (Facts(capability=(8, 0), compute_mode="prohibited"), "mode prohibited"),
    (Facts(capability=(8, 0), foreign=True), "of another one"),
    (Facts(capability=(8, 0), trouble="It was given up."), "It was given up"),
]


@pytest.mark.parametrize(("facts", "why"), UNABLE)
def test_where_it_cannot_run_that_is_said(facts: Facts, why: str) -> None:
    given = decided(HALF, Policy(), facts)
    assert not given.mps and re.search(why, given.without or "")
    with pytest.raises(BadRequest, match=why):
        decided(Request(fraction=0.5, mps="on"), Policy(), facts)
    with pytest.raises(BadRequest, match=why) as refused:
        decided(HALF, Policy(mps="always"), facts)
    assert "whole GPU" in refused.value.hint


@pytest.mark.parametrize(
    ("request_", "policy", "why"),
    [
        (HALF, Policy(mps="never"), "this host's policy"),
        (Request(fraction=0.5, mps="off"), Policy(), "as was asked for"),
        (MEMORY, Policy(mps_memory_only=False), "no share of compute"),
        (Request(gpus=2, memory="1GiB"), Policy(), "On several devices without MPS"),
    ],
)
def test_where_it_is_not_to_run_that_is_said(request_: Request, policy: Policy, why: str) -> None:
    devices = (ABLE,) * demand_of(request_).count
    given = decided(request_, policy, *devices)
    assert not given.mps and why in (given.without or "")


def test_who_asks_for_memory_alone_may_still_want_it() -> None:
    wants = Request(memory="4GiB", mps="on")
    assert decided(wants, Policy(mps_memory_only=False)) == Sharing(True)


def test_whole_devices_are_nobodys_to_share() -> None:
    assert decided(Request(gpus=1), Policy(mps="always")) == Sharing(False)
    with pytest.raises(BadRequest, match="whole ones were asked for"):
        decided(Request(gpus=1, mps="on"), Policy())


@pytest.mark.parametrize(
    ("version", "most"), [(None, 48), (12_080, 48), (13_000, 48), (13_010, 60), (14_000, 60)]
)
def test_as_many_clients_as_this_driver_serves(version: int | None, most: int) -> None:
    demand = demand_of(Request(fraction=0.5, processes=8))
    room: dict[str, Any] = {"memory": 8 * 512 * MIB, "cuda_version": version}
    check_clients(demand, Policy(), others=most - 8, **room)
    with pytest.raises(NoCapacity, match=f"MPS serves {most} processes") as refused:
        check_clients(demand, Policy(), others=most - 7, **room)
    assert f"{most - 7} are planned" in refused.value.message


def test_a_cap_below_what_a_context_needs_is_refused_with_that_minimum() -> None:
    demand = demand_of(Request(fraction=0.5, processes=2))
    check_clients(demand, Policy(), memory=1024 * MIB, others=0, cuda_version=None)
    with pytest.raises(OutOfRange, match="may need 512 MiB") as refused:
        check_clients(demand, Policy(), memory=1024 * MIB - 1, others=0, cuda_version=None)
    assert "at least 1 GiB" in refused.value.hint
