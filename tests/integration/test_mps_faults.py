"""A fatal error under MPS is told to all who have lost what they had, and over without hands.

A stand-in plays NVIDIA's program: a server that works needs a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from genv_jupyter.broker.faults import STATUS_SECONDS
from genv_jupyter.errors import BadRequest
from genv_jupyter.isolation import processes
from genv_jupyter.isolation.environ import MPS_PIPE, NO_MPS
from genv_jupyter.model import Request
from genv_jupyter.notices import Notice
from tests.integration.mps_bench import MpsBench, mps_bench
from tests.integration.test_mps_clients import PART, STAND_IN, child, clients, look, says
from tests.unit.brokers import GIB, Kernel

FATAL = "[2026-01-02 03:04:05.678 Server 71] Server is handling a fatal GPU error.\n"
OTHER = Request(devices=("1",), memory="4GiB")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for answers however busy this machine is; what is to hang does so for longer."""
    monkeypatch.setattr("genv_jupyter.isolation.mps_control.ASK_SECONDS", 30.0)


@pytest.fixture
def desk() -> Iterator[MpsBench]:
    with mps_bench(STAND_IN) as made:
        yield made


@pytest.fixture
def two(desk: MpsBench) -> list[Kernel]:
    """Two kernels that work on device 0 through MPS, and one on device 1."""
    made = [desk.kernel("a.ipynb"), desk.kernel("b.ipynb")]
    for kernel in made:
        kernel.attach(PART)
        kernel.use(0, GIB)
    clients(desk, *(kernel.process.pid for kernel in made))
    for kernel in made:
        assert look(desk, kernel).reason is None
    return made


def says_fatal(desk: MpsBench, line: str = FATAL, log: str = "server.log") -> None:
    with (desk.daemon(0).logs / log).open("a") as file:
        file.write(line)


def told(desk: MpsBench) -> dict[str | None, Notice]:
    return {it.environment: it for it in desk.broker.notices(desk.me) if it.kind == "mps"}


def lost(kernel: Kernel) -> bool:
    return "what this environment had in its memory is lost" in (kernel.now.reason or "")


def end(desk: MpsBench, kernel: Kernel) -> None:
    """Let the process of a kernel end, as its restart does."""
    kernel.restart()
    desk.tick()


def test_all_who_were_there_are_told_and_nobody_else(desk: MpsBench, two: list[Kernel]) -> None:
    elsewhere = desk.kernel("c.ipynb")
    elsewhere.attach(OTHER)
    without = desk.kernel("d.ipynb")
    without.attach(Request(devices=("0",), memory="1GiB", mps="off"))
    says_fatal(desk)
    desk.broker.changes(desk.me)
    look(desk, two[0])
    assert [lost(kernel) for kernel in (*two, elsewhere, without)] == [True, True, False, False]
    notices = told(desk)
    assert notices.keys() == {kernel.id for kernel in two}
    assert {(it.level, it.actions) for it in notices.values()} == {
        ("error", ("restart", "dismiss"))
    }
    event = desk.broker.changes(desk.me)
    assert event is not None and {it.id for it in event.environments} >= notices.keys()


def test_when_the_last_of_them_is_gone_a_new_server_serves(
    desk: MpsBench, two: list[Kernel]
) -> None:
    pid = desk.daemon(0).pid()
    says_fatal(desk)
    look(desk, two[0])
    end(desk, two[0])
    clients(desk, two[1].process.pid)
    look(desk, two[0])
    assert not lost(two[0]) and lost(two[1]), "who has restarted has nothing to lose any more"
    assert told(desk).keys() == {two[1].id}
    assert desk.daemon(0).pid() == pid, "one is left, and may still save what it has"
    end(desk, two[1])
    clients(desk)
    look(desk, two[1])
    assert not lost(two[1]) and told(desk) == {}
    assert desk.daemon(0).pid() not in (None, pid) and desk.daemon(0).ceiling() == "4096M"
    look(desk, two[1])
    assert told(desk) == {}, "the old log tells nothing of the new server"
    fresh = desk.kernel().attach(Request(devices=("0",), memory="1GiB", mps="on"))
    assert fresh.environ is not None and fresh.environ[MPS_PIPE] != NO_MPS


def test_one_that_takes_new_clients_by_itself_is_left_alone(
    desk: MpsBench, two: list[Kernel]
) -> None:
    pid = desk.daemon(0).pid()
    says_fatal(desk)
    look(desk, two[0])
    for kernel in two:
        end(desk, kernel)
    clients(desk, two[0].process.pid)
    look(desk, two[0])
    assert desk.daemon(0).pid() == pid and told(desk) == {} and not lost(two[0])


def test_meanwhile_others_get_the_device_without_mps(desk: MpsBench, two: list[Kernel]) -> None:
    says_fatal(desk)
    look(desk, two[0])
    kernel = desk.kernel()
    with pytest.raises(BadRequest, match="takes new processes when those are gone"):
        kernel.attach(Request(devices=("0",), memory="1GiB", mps="on"))
    now = kernel.attach(Request(devices=("0",), memory="1GiB"))
    assert now.environ is not None and now.environ[MPS_PIPE] == NO_MPS
    reason = now.grants[0].limits.memory.reason
    assert "A fatal error" in reason and str(two[0].process.pid) in reason


def test_a_status_tells_where_the_log_does_not(desk: MpsBench, two: list[Kernel]) -> None:
    says(desk, get_server_status="FAULT")
    desk.pass_time(STATUS_SECONDS)
    look(desk, two[0])
    assert lost(two[0]) and lost(two[1])


def test_a_status_that_this_version_does_not_know_tells_nothing(
    desk: MpsBench, two: list[Kernel]
) -> None:
    for status in ('Unknown command "get_server_status"', "ACTIVE", "INITIALIZING"):
        says(desk, get_server_status=status)
        desk.pass_time(STATUS_SECONDS)
        look(desk, two[0])
        assert not lost(two[0]) and told(desk) == {}


def test_the_daemons_own_log_tells_too(desk: MpsBench, two: list[Kernel]) -> None:
    line = "[2026-01-02 03:04:05.678 Control 70] Server encountered a fatal exception. "
    says_fatal(desk, f"{line}Shutting down\n", "control.log")
    look(desk, two[0])
    assert lost(two[0])


def test_a_server_that_has_ended_took_its_clients_with_it(desk: MpsBench) -> None:
    kernel, server = desk.kernel(), desk.process()
    kernel.attach(PART)
    kernel.use(0, GIB)
    says(desk, get_server_list=str(server.pid), get_client_list=str(kernel.process.pid))
    assert look(desk, kernel).grants[0].limits.memory.verified
    desk.end(server)
    desk.source.devices[0].processes = []  # its context has gone with the server
    says(desk, get_server_list="", get_client_list="")
    look(desk, kernel)
    assert lost(kernel)
    # The next process has a new server started: nobody needs to wait for anything.
    assert desk.broker.core.mps.trouble(desk.post(0)) is None
    end(desk, kernel)
    look(desk, kernel)
    assert not lost(kernel)


def test_workers_of_a_kernel_are_told_as_the_kernel_is(desk: MpsBench) -> None:
    kernel = desk.kernel()
    kernel.attach(Request(devices=("0",), memory="4GiB", processes=2))
    worker = child(desk, kernel)
    clients(desk, worker.pid)  # not seen on the device: NVML may list it later
    says_fatal(desk, "")
    look(desk, kernel)
    says_fatal(desk)
    look(desk, kernel)
    assert lost(kernel)
    desk.end(worker)
    assert processes.start_of(worker.pid) is None
    look(desk, kernel)
    assert not lost(kernel)


def test_of_a_daemon_that_hangs_all_who_are_there_are_told(
    desk: MpsBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = desk.kernel()
    kernel.attach(PART)
    desk.broker.tick_mps()
    kernel.use(0, GIB)
    desk.tick()
    says(desk, get_server_list=None)
    monkeypatch.setattr("genv_jupyter.isolation.mps_control.ASK_SECONDS", 0.3)
    says_fatal(desk)
    faults = desk.broker.core.mps.faults
    assert faults is not None
    faults.look(desk.broker.core, desk.broker.lock)  # before anybody could ask for its clients
    assert lost(kernel)


def test_a_broker_that_comes_later_asks_the_status(desk: MpsBench, two: list[Kernel]) -> None:
    says_fatal(desk)
    desk.reopen()
    desk.broker.core.mps.adopt()
    look(desk, two[0])
    assert not lost(two[0]), "an old line may be long over"
    says(desk, get_server_status="FAULT")
    desk.pass_time(STATUS_SECONDS)
    look(desk, two[0])
    assert lost(two[0]) and lost(two[1])
