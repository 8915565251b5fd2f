"""Shared grants under MPS, with NVIDIA's real control daemon, and what comes between."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import pytest

from genv_jupyter.devices.source import ProcessReading
from genv_jupyter.errors import (
    BadRequest,
    CudaInitialized,
    NoCapacity,
    OutOfRange,
    Unavailable,
)
from genv_jupyter.isolation import processes
from genv_jupyter.isolation.environ import MPS_MEMORY, MPS_PIPE, MPS_THREADS, NO_MPS
from genv_jupyter.isolation.mps import GRACE
from genv_jupyter.model import Environment, Request
from genv_jupyter.policy import Policy
from tests.debian import unpacked
from tests.integration.mps_bench import MpsBench, RealSource, mps_bench
from tests.unit.brokers import GIB, HALF, WHOLE

T = TypeVar("T")
MEMORY = Request(memory="4GiB")
ON = Request(fraction=0.25, mps="on")
NOBODY = "nvidia-cuda-mps-control-of-nobody"


@pytest.fixture(scope="module")
def real() -> str:
    return str(unpacked("nvidia-cuda-mps") / "usr/bin/nvidia-cuda-mps-control")


@pytest.fixture
def desk(real: str) -> Iterator[MpsBench]:
    with mps_bench(real) as made:
        yield made


def mps_of(environment: Environment) -> dict[str, str | None]:
    assert environment.environ is not None
    return {name: environment.environ[name] for name in (MPS_PIPE, MPS_THREADS, MPS_MEMORY)}


def strengths(environment: Environment) -> tuple[str, str]:
    (grant,) = environment.grants
    return grant.limits.memory.strength, grant.limits.compute.strength


# -- with the program -----------------------------------------------------------------------------


def test_a_share_runs_under_mps(desk: MpsBench) -> None:
    kernel = desk.kernel()
    now = kernel.attach(HALF)
    daemon = desk.daemon(0)
    assert mps_of(now) == {
        MPS_PIPE: str(daemon.directory),
        MPS_THREADS: "50",
        MPS_MEMORY: f"0={12 * 1024}M",
    }
    assert daemon.pid() is not None and daemon.ceiling() == "12G"
    assert strengths(now) == ("driver", "driver")
    assert "enforce" not in str(now.grants)


def test_memory_alone_has_no_ceiling_of_compute(desk: MpsBench) -> None:
    now = desk.kernel().attach(MEMORY)
    assert mps_of(now)[MPS_THREADS] is None and mps_of(now)[MPS_MEMORY] == "0=4096M"
    assert strengths(now) == ("driver", "none")


def test_a_share_is_divided_among_processes(desk: MpsBench) -> None:
    now = desk.kernel().attach(Request(fraction=0.5, processes=4))
    assert mps_of(now)[MPS_THREADS] == "12" and mps_of(now)[MPS_MEMORY] == f"0={3 * 1024}M"
    assert now.environ is not None
    assert now.environ["GENV_JUPYTER_MEMORY_LIMIT"] == str(3 * GIB)
    assert now.grants[0].memory == 12 * GIB and desk.daemon(0).ceiling() == "3G"


def test_the_ceiling_is_the_largest_cap_on_the_device(desk: MpsBench) -> None:
    small, large = desk.kernel(), desk.kernel()
    small.attach(MEMORY)
    large.attach(Request(memory="8GiB"))
    assert desk.daemon(0).ceiling() == "8G"
    small.attach(Request(memory="2GiB"))
    assert desk.daemon(0).ceiling() == "8G"


def test_after_the_last_grant_the_daemon_ends(desk: MpsBench) -> None:
    kernel = desk.kernel()
    kernel.attach(HALF)
    desk.broker.tick_mps()
    now = kernel.detach()
    assert mps_of(now) == dict.fromkeys((MPS_PIPE, MPS_THREADS, MPS_MEMORY))
    desk.broker.tick_mps()
    assert desk.daemon(0).pid() is not None, "the next grant often comes at once"
    desk.pass_time(GRACE)
    desk.broker.tick_mps()
    assert desk.daemon(0).pid() is None


def test_a_draining_grant_keeps_the_daemon(desk: MpsBench) -> None:
    kernel = desk.kernel()
    kernel.attach(HALF)
    kernel.use(0, GIB)
    desk.tick()
    kernel.detach(cuda="initialized")
    assert kernel.now.state == "draining"
    for _ in range(2):
        desk.broker.tick_mps()
        desk.pass_time(GRACE)
    assert desk.daemon(0).pid() is not None


def test_a_whole_device_ends_the_idle_daemon_at_once(desk: MpsBench) -> None:
    kernel = desk.kernel()
    kernel.attach(Request(devices=("0",), fraction=0.5))
    kernel.detach()
    assert desk.daemon(0).pid() is not None
    now = desk.kernel().attach(Request(devices=("0",)))
    assert desk.daemon(0).pid() is None and mps_of(now)[MPS_PIPE] == NO_MPS


def test_a_daemon_is_taken_over_by_the_next_broker(desk: MpsBench) -> None:
    first, second = desk.kernel(), desk.kernel()
    before = first.attach(HALF)
    second.attach(Request(devices=("1",), fraction=0.5))
    pids = [desk.daemon(number).pid() for number in (0, 1)]
    second.detach()
    desk.reopen()
    desk.broker.core.mps.adopt()
    assert desk.daemon(0).pid() == pids[0] and desk.daemon(0).ceiling() == "12G"
    assert desk.daemon(1).pid() is None, "nobody needs it"
    assert mps_of(first.now) == mps_of(before)


def test_a_broker_that_leaves_ends_idle_daemons(desk: MpsBench) -> None:
    first, second = desk.kernel(), desk.kernel()
    first.attach(HALF)
    second.attach(Request(devices=("1",), fraction=0.5))
    second.detach()
    daemons = [desk.daemon(number) for number in (0, 1)]
    desk.broker.close()
    assert daemons[0].pid() is not None and daemons[1].pid() is None


# -- other users ----------------------------------------------------------------------------------


def test_where_another_user_works_there_is_no_ceiling(
    desk: MpsBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, theirs = desk.kernel(), desk.process()
    before = mine.attach(Request(devices=("0",), fraction=0.5))
    assert mps_of(before)[MPS_THREADS] == "50"
    uid = processes.uid_of
    monkeypatch.setattr(processes, "uid_of", lambda pid: 4711 if pid == theirs.pid else uid(pid))
    used = desk.source.devices[0].processes
    assert used is not None
    used.append(ProcessReading(theirs.pid, GIB, "compute"))
    desk.broker.changes(desk.me)
    desk.tick()
    now = mine.now
    assert mps_of(now)[MPS_THREADS] is None, "half of the half is not what was granted"
    assert mps_of(now)[MPS_MEMORY] == mps_of(before)[MPS_MEMORY]
    assert strengths(now) == ("driver", "none")
    assert "Another user works on this device too" in now.grants[0].limits.memory.reason
    assert "would be a quarter" in now.grants[0].limits.compute.reason
    event = desk.broker.changes(desk.me)
    assert event is not None and mine.id in [it.id for it in event.environments]
    used.clear()
    desk.tick()
    assert mps_of(mine.now)[MPS_THREADS] == "50" and strengths(mine.now) == ("driver", "driver")


def test_a_device_of_another_user_is_taken_last_or_never(
    real: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    uid = processes.uid_of
    for policy, refused in ((Policy(), False), (Policy(share_between_users="never"), True)):
        with mps_bench(real, policy) as desk:
            theirs = desk.process()
            monkeypatch.setattr(
                processes, "uid_of", lambda pid, pids=(theirs.pid,): 1 if pid in pids else uid(pid)
            )
            used = desk.source.devices[0].processes
            assert used is not None
            used.append(ProcessReading(theirs.pid, GIB, "compute"))
            desk.tick()
            assert desk.kernel().attach(MEMORY).grants[0].device == desk.device(1)
            if refused:
                with pytest.raises(NoCapacity) as refusal:
                    desk.kernel().attach(Request(devices=("0",), memory="1GiB"))
                assert "users do not share" in str(refusal.value.details["reasons"])
            else:
                desk.kernel().attach(Request(devices=("0",), memory="1GiB"))


# -- where it is not used -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"capability": (6, 1)}, "compute capability of 7.0"),
        ({"capability": None}, "is unknown"),
        ({"compute_mode": "exclusive_process"}, "mode exclusive process"),
        ({"compute_mode": "prohibited"}, "mode prohibited"),
        ({"kind": "mig"}, "MIG instances"),
    ],
)
def test_where_the_device_cannot(desk: MpsBench, change: dict[str, object], why: str) -> None:
    for device in desk.source.devices:
        for name, value in change.items():
            setattr(device, name, value)
    desk.tick()
    kernel = desk.kernel()
    with pytest.raises(BadRequest, match=why):
        kernel.attach(ON)
    now = kernel.attach(HALF)
    assert mps_of(now) == {MPS_PIPE: NO_MPS, MPS_THREADS: None, MPS_MEMORY: None}
    assert why in now.grants[0].limits.memory.reason
    assert strengths(now) == ("cooperative", "none") and not desk.daemons.running()


@pytest.mark.parametrize(
    ("release", "why"),
    [("6.6.87-microsoft-standard-WSL2\n", "under WSL"), ("6.1.0-28-amd64\n", None)],
)
def test_where_the_host_cannot(
    desk: MpsBench, monkeypatch: pytest.MonkeyPatch, release: str, why: str | None
) -> None:
    monkeypatch.setattr("genv_jupyter.broker.mps._release", lambda: release)
    kernel = desk.kernel()
    now = kernel.attach(HALF)
    if why is None:
        assert strengths(now) == ("driver", "driver")
    else:
        assert why in now.grants[0].limits.memory.reason and mps_of(now)[MPS_PIPE] == NO_MPS
        with pytest.raises(BadRequest, match=why):
            kernel.attach(ON)


@pytest.mark.parametrize(
    ("policy", "request_", "why"),
    [
        (Policy(), Request(fraction=0.5, mps="off"), "as was asked for"),
        (Policy(mps="never"), HALF, "by this host's policy"),
        (Policy(mps_memory_only=False), MEMORY, "no share of compute"),
        (Policy(), Request(gpus=2, memory="1GiB"), "On several devices without MPS"),
    ],
)
def test_where_it_is_not_wanted(real: str, policy: Policy, request_: Request, why: str) -> None:
    with mps_bench(real, policy) as desk:
        now = desk.kernel().attach(request_)
        assert mps_of(now)[MPS_PIPE] == NO_MPS
        assert all(why in grant.limits.memory.reason for grant in now.grants)


def test_a_host_without_the_program(real: str) -> None:
    with mps_bench(NOBODY) as desk:
        kernel = desk.kernel()
        now = kernel.attach(HALF)
        assert mps_of(now) == {MPS_PIPE: NO_MPS, MPS_THREADS: None, MPS_MEMORY: None}
        assert "MPS is not installed on this host" in now.grants[0].limits.memory.reason
        with pytest.raises(BadRequest, match="MPS is not installed on this host"):
            kernel.attach(ON)
        assert kernel.now == now
    with mps_bench(NOBODY, Policy(mps="always")) as desk:
        with pytest.raises(BadRequest, match="under MPS only"):
            desk.kernel().attach(HALF)
        desk.kernel().attach(WHOLE)


def test_a_whole_device_is_not_shared(desk: MpsBench) -> None:
    with pytest.raises(BadRequest, match="whole ones were asked for"):
        desk.kernel().attach(Request(gpus=1, mps="on"))


def test_a_cap_in_which_no_context_fits(desk: MpsBench) -> None:
    kernel = desk.kernel()
    with pytest.raises(OutOfRange, match=r"100 MiB is too little .* 512 MiB"):
        kernel.attach(Request(memory="100MiB"))
    with pytest.raises(OutOfRange, match="for each of 8 processes") as refusal:
        kernel.attach(Request(memory="1GiB", processes=8))
    assert "at least 4 GiB" in refusal.value.hint
    kernel.attach(Request(memory="100MiB", mps="off"))


def test_no_more_processes_than_mps_serves(real: str) -> None:
    with mps_bench(real, Policy(mps_minimum=2**20)) as desk:

        def crowd(processes: int) -> Request:
            return Request(devices=("0",), memory="4GiB", processes=processes)

        one, other = desk.kernel(), desk.kernel()
        one.attach(crowd(20))
        other.attach(crowd(20))
        with pytest.raises(NoCapacity, match="MPS serves 48 processes on one device: 40 are"):
            desk.kernel().attach(crowd(9))
        other.attach(crowd(28))  # its own do not stand in its way
        assert isinstance(desk.source, RealSource)
        desk.source.cuda_version = 13_010
        desk.tick()
        desk.kernel().attach(crowd(12))
        with pytest.raises(NoCapacity, match="MPS serves 60 processes"):
            desk.kernel().attach(crowd(1))


def test_a_daemon_that_does_not_start(desk: MpsBench) -> None:
    kernel = desk.kernel()
    held = kernel.attach(Request(memory="1GiB", mps="off"))
    blocked = desk.daemons.path(desk.post(0))
    blocked.parent.mkdir(exist_ok=True)
    blocked.write_text("in the way")
    with pytest.raises(Unavailable, match="MPS does not run on this device"):
        kernel.attach(ON)
    assert kernel.now.grants == held.grants
    now = kernel.attach(HALF)
    assert "is not a directory of ours" in now.grants[0].limits.memory.reason
    assert strengths(now) == ("cooperative", "none") and mps_of(now)[MPS_PIPE] == NO_MPS


# -- switching ------------------------------------------------------------------------------------


def test_the_set_up_changes_only_before_cuda(desk: MpsBench) -> None:
    kernel = desk.kernel()
    kernel.attach(Request(fraction=0.25, mps="off"))
    assert kernel.attach(Request(fraction=0.25)).environ == kernel.now.environ
    assert mps_of(kernel.now)[MPS_PIPE] == NO_MPS, "what it has already does: nothing changes"
    desk.broker.attach(desk.me, kernel.id, ON, cuda="not_initialized")
    waiting = kernel.now
    assert mps_of(waiting)[MPS_PIPE] != NO_MPS and waiting.applied == "pending"
    assert desk.applied(kernel.id).applied == "live"
    with pytest.raises(CudaInitialized, match="its MPS set-up"):
        kernel.attach(Request(fraction=0.25, mps="off"), cuda="initialized")
    now = kernel.attach(Request(fraction=0.25, mps="off"), cuda="initialized", restart=True)
    assert mps_of(now)[MPS_PIPE] == NO_MPS


def test_what_runs_without_mps_goes_on_without_it(desk: MpsBench) -> None:
    kernel = desk.kernel()
    kernel.attach(Request(fraction=0.25, mps="off"))
    now = kernel.attach(HALF, cuda="initialized")
    assert now.grants[0].memory == 12 * GIB and mps_of(now)[MPS_PIPE] == NO_MPS


def test_a_cap_that_changes_under_cuda_holds_from_the_restart(desk: MpsBench) -> None:
    kernel = desk.kernel()
    kernel.attach(MEMORY)
    now = kernel.attach(Request(memory="8GiB"), cuda="initialized")
    assert "keeps the 4 GiB" in now.grants[0].limits.memory.reason
    kernel.attach(Request(memory="1GiB"), cuda="initialized")
    desk.broker.tick_mps()
    assert desk.daemon(0).ceiling() == "4G", "it may still take what it started with"
    kernel.restart()
    desk.broker.tick_mps()
    assert desk.daemon(0).ceiling() == "1G"
    assert "keeps the" not in kernel.now.grants[0].limits.memory.reason
