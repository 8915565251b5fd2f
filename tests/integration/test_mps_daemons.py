"""MPS control daemons: NVIDIA's real one, and a stand-in for the states that need a GPU."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from genv_jupyter.isolation import processes
from genv_jupyter.isolation.mps import FIRST_PAUSE, GRACE, HEALTH, TRIES, Daemons, Post
from genv_jupyter.isolation.mps_control import ControlDaemon, MpsError, MpsHangs
from tests.debian import unpacked

ME = os.getuid()
DEVICE = Post("GPU-11111111-0000-4000-8000-000000000001", ME)
OTHER = Post("GPU-22222222-0000-4000-8000-000000000002", ME)
GIB = 2**30
STAND_IN = Path(__file__).parent / "mps_stand_in.py"


class Clock:
    """Seconds that only the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Needs(dict[Post, int]):
    """Which posts need a daemon, and the most memory of a client there."""

    def __call__(self) -> dict[Post, int]:
        return self


def needs(keeper: Daemons) -> Needs:
    assert isinstance(keeper.needs, Needs)
    return keeper.needs


def ensure(keeper: Daemons, post: Post, ceiling: int) -> ControlDaemon:
    """Let a post need a daemon, and start it."""
    needs(keeper)[post] = ceiling
    return keeper.ensure(post)


Make = Callable[..., Daemons]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for answers however busy this machine is; what is to hang does so for longer."""
    monkeypatch.setattr("genv_jupyter.isolation.mps_control.ASK_SECONDS", 30.0)


@pytest.fixture
def make() -> Iterator[Make]:
    """Make keepers of daemons in a directory with a short path; their daemons are ended."""
    made: list[Daemons] = []
    with tempfile.TemporaryDirectory(prefix="gj") as name:

        def one(program: str, clock: Clock | None = None) -> Daemons:
            made.append(Daemons(Path(name) / "mps", Needs(), program, clock or Clock()))
            return made[-1]

        yield one
        for keeper in made:
            for post in (DEVICE, OTHER):
                pid = keeper.control(post).pid()
                if pid is not None:
                    os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def real() -> str:
    """Return NVIDIA's program."""
    return str(unpacked("nvidia-cuda-mps") / "usr/bin/nvidia-cuda-mps-control")


def says(keeper: Daemons, **answers: str | int | None) -> None:
    """Set what the stand-in answers."""
    keeper.directory.mkdir(mode=0o700, exist_ok=True)
    named = {name.replace("dash_", "-"): answer for name, answer in answers.items()}
    (keeper.directory / "stand-in.json").write_text(json.dumps(named))


# -- NVIDIA's program -----------------------------------------------------------------------------


def test_a_daemon_is_started_once_and_asked(make: Make, real: str) -> None:
    keeper = make(real)
    daemon = ensure(keeper, DEVICE, 4 * GIB)
    pid = daemon.pid()
    assert pid is not None and daemon.healthy()
    assert ensure(keeper, DEVICE, 4 * GIB).pid() == pid
    assert daemon.ceiling() == "4G"
    assert daemon.servers() == () and daemon.clients() == {}
    variables = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    assert f"CUDA_VISIBLE_DEVICES={DEVICE.device}" in variables
    assert not [it for it in variables if it.startswith("GENV_")]
    assert keeper.running() == (DEVICE,)


def test_nobody_else_reaches_its_sockets(make: Make, real: str) -> None:
    before = os.umask(0)
    try:
        daemon = ensure(make(real), DEVICE, GIB)
    finally:
        os.umask(before)
    for directory in (daemon.directory, daemon.logs):
        assert directory.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("memory", "said"),
    [(512 * 2**20, "512M"), (3_000_000_000, "2G"), (4 * GIB, "4G"), (GIB + 1, "1G")],
)
def test_the_ceiling_is_read_back(make: Make, real: str, memory: int, said: str) -> None:
    daemon = ensure(make(real), DEVICE, memory)
    assert daemon.ceiling() == said
    with pytest.raises(MpsError, match="where 0M was set"):
        daemon.set_ceiling(1000)  # NVIDIA's takes it for no limit at all


def test_a_daemon_for_each_device(make: Make, real: str) -> None:
    keeper = make(real)
    assert ensure(keeper, DEVICE, GIB).pid() != ensure(keeper, OTHER, GIB).pid()


def test_two_callers_start_one(make: Make, real: str) -> None:
    keepers = [make(real), make(real)]  # as two brokers would: no lock is common to them
    found: list[int | None] = []

    def start(keeper: Daemons) -> None:
        found.append(ensure(keeper, DEVICE, GIB).pid())

    threads = [threading.Thread(target=start, args=(keeper,)) for keeper in keepers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2 and len(set(found)) == 1 and None not in found


def test_it_stays_for_a_while_after_its_last_grant(make: Make, real: str) -> None:
    clock = Clock()
    keeper = make(real, clock)
    daemon = ensure(keeper, DEVICE, GIB)
    del needs(keeper)[DEVICE]
    keeper.round()
    clock.now += GRACE - 1
    keeper.round()
    assert daemon.pid() is not None
    ensure(keeper, DEVICE, GIB)
    clock.now += 10
    keeper.round()
    assert daemon.pid() is not None
    del needs(keeper)[DEVICE]
    keeper.round()
    clock.now += GRACE
    keeper.round()
    assert daemon.pid() is None and not daemon.directory.exists()


def test_somebody_wants_the_whole_device(make: Make, real: str) -> None:
    keeper = make(real)
    daemon = ensure(keeper, DEVICE, GIB)
    keeper.stop(DEVICE)
    assert daemon.pid() is not None, "a grant that needs it has come meanwhile"
    del needs(keeper)[DEVICE]
    keeper.stop(DEVICE)
    assert daemon.pid() is None and keeper.running() == ()


def test_a_daemon_that_nobody_needs_any_more_is_not_started(make: Make, real: str) -> None:
    keeper = make(real)
    with pytest.raises(MpsError, match="no grant needs MPS"):
        keeper.ensure(DEVICE)
    assert keeper.control(DEVICE).pid() is None and keeper.trouble(DEVICE) is None


def test_the_ceiling_is_the_one_of_the_moment(make: Make, real: str) -> None:
    keeper = make(real)
    daemon = ensure(keeper, DEVICE, GIB)
    needs(keeper)[DEVICE] = 8 * GIB  # another attach has come between this one and its daemon
    keeper.ensure(DEVICE)
    assert daemon.ceiling() == "8G"


def test_its_processes_are_ours(make: Make, real: str) -> None:
    keeper = make(real)
    pid = ensure(keeper, DEVICE, GIB).pid()
    assert pid is not None and keeper.owns(pid)
    assert not keeper.owns(os.getpid())


def test_one_that_died_is_started_again(make: Make, real: str) -> None:
    keeper = make(real)
    daemon = ensure(keeper, DEVICE, 2 * GIB)
    pid = daemon.pid()
    assert pid is not None
    _kill(pid)
    keeper.round()
    assert daemon.pid() not in (None, pid) and daemon.ceiling() == "2G"


def test_what_a_dead_broker_left_is_taken_over_or_ended(make: Make, real: str) -> None:
    dead = make(real)
    needed, left = ensure(dead, DEVICE, GIB), ensure(dead, OTHER, GIB)
    pid = needed.pid()
    new = make(real)
    needs(new)[DEVICE] = 3 * GIB
    new.adopt()
    assert needed.pid() == pid and needed.ceiling() == "3G"
    assert left.pid() is None and not left.directory.exists()


def test_a_stale_directory_is_no_daemon(make: Make, real: str) -> None:
    keeper = make(real)
    daemon = ensure(keeper, DEVICE, GIB)
    pid = daemon.pid()
    assert pid is not None
    _kill(pid)
    assert (daemon.directory / "control").exists() and daemon.pid() is None
    assert not daemon.healthy()
    assert ensure(make(real), DEVICE, GIB).pid() is not None


def test_a_server_that_cannot_start_is_told_by_the_log(make: Make, real: str) -> None:
    daemon = ensure(make(real), DEVICE, GIB)
    daemon.ask(f"start_server -uid {os.getuid()}")
    log = daemon.logs / "control.log"
    for _ in range(100):
        if "exited with status" in log.read_text():
            break
        daemon.ask("get_server_list")
    assert "exited with status 1" in log.read_text()
    assert daemon.servers() == ()


def test_an_unknown_command_is_an_error_although_it_exits_with_0(make: Make, real: str) -> None:
    daemon = ensure(make(real), DEVICE, GIB)
    with pytest.raises(MpsError, match="does not know 'server'"):
        daemon.ask("server list")


def test_a_client_that_is_not_there_is_not_terminated(make: Make, real: str) -> None:
    assert ensure(make(real), DEVICE, GIB).terminate_client(os.getpid()) is False


# -- bad states -----------------------------------------------------------------------------------


def test_a_path_too_long_for_a_socket(real: str, tmp_path: Path) -> None:
    keeper = Daemons(tmp_path / ("a" * 90), Needs(), real)
    with pytest.raises(MpsError, match=r"too long .* GENV_JUPYTER_HOME"):
        ensure(keeper, DEVICE, GIB)
    assert "too long" in (keeper.trouble(DEVICE) or "")


def test_a_directory_that_others_may_enter(make: Make, real: str) -> None:
    keeper = make(real)
    keeper.directory.mkdir(mode=0o700)
    keeper.path(DEVICE).mkdir()
    keeper.path(DEVICE).chmod(0o711)
    with pytest.raises(MpsError, match="others may enter"):
        ensure(keeper, DEVICE, GIB)


def test_a_link_is_not_followed(make: Make, real: str) -> None:
    keeper = make(real)
    keeper.directory.mkdir(mode=0o700)
    keeper.path(DEVICE).symlink_to(keeper.directory)
    with pytest.raises(MpsError, match="not a directory of ours"):
        ensure(keeper, DEVICE, GIB)


def test_a_program_that_is_not_there(make: Make) -> None:
    keeper = make("nvidia-cuda-mps-control-of-nobody")
    assert keeper.missing() == "nvidia-cuda-mps-control-of-nobody is not installed"
    with pytest.raises(MpsError, match="is not installed"):
        ensure(keeper, DEVICE, GIB)


def test_a_failing_start_is_tried_again_later_and_given_up(make: Make) -> None:
    clock = Clock()
    keeper = make(str(STAND_IN), clock)
    says(keeper, dash_d=3)
    pause = FIRST_PAUSE
    for number in range(TRIES):
        with pytest.raises(MpsError, match="status 3: An error that only this test knows"):
            ensure(keeper, DEVICE, GIB)
        says(keeper)  # it would work now, but it is not tried at once
        with pytest.raises(MpsError, match="MPS does not run on this device"):
            ensure(keeper, DEVICE, GIB)
        says(keeper, dash_d=3)
        if number < TRIES - 1:
            clock.now += pause
            pause *= 2
    says(keeper)
    clock.now += 10_000
    keeper.round()
    with pytest.raises(MpsError, match=f"tried {TRIES} times and is given up"):
        ensure(keeper, DEVICE, GIB)


def test_a_failed_start_that_works_later(make: Make) -> None:
    clock = Clock()
    keeper = make(str(STAND_IN), clock)
    says(keeper, dash_d=3)
    with pytest.raises(MpsError):
        ensure(keeper, DEVICE, GIB)
    says(keeper)
    clock.now += FIRST_PAUSE
    keeper.round()
    assert keeper.trouble(DEVICE) is None and keeper.running() == (DEVICE,)


def test_a_daemon_that_hangs_is_replaced(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genv_jupyter.isolation.mps_control.ASK_SECONDS", 1.0)
    clock = Clock()
    keeper = make(str(STAND_IN), clock)
    says(keeper)
    daemon = ensure(keeper, DEVICE, GIB)
    pid = daemon.pid()
    says(keeper, get_default_active_thread_percentage=None)
    with pytest.raises(MpsHangs):
        daemon.ask("get_default_active_thread_percentage", seconds=0.3)
    clock.now += HEALTH
    keeper.round()
    assert daemon.pid() not in (None, pid)


def test_a_daemon_with_clients_is_not_ended(make: Make) -> None:
    clock = Clock()
    keeper = make(str(STAND_IN), clock)
    says(keeper)
    daemon = ensure(keeper, DEVICE, GIB)
    says(keeper, get_server_list="71", get_client_list="4711 4712")
    assert daemon.clients() == {4711: 71, 4712: 71}
    del needs(keeper)[DEVICE]
    with pytest.raises(MpsError, match="4711, 4712"):
        keeper.stop(DEVICE)
    keeper.round()
    clock.now += GRACE
    keeper.round()
    make(str(STAND_IN)).adopt()
    assert daemon.pid() is not None
    says(keeper, get_server_list="71")
    keeper.round()
    assert daemon.pid() is None


@pytest.mark.parametrize(
    ("answer", "done"), [("0", True), ("1", False), ("Server 71 not found!\n1", False)]
)
def test_a_client_is_terminated(make: Make, answer: str, done: bool) -> None:
    keeper = make(str(STAND_IN))
    says(keeper)
    daemon = ensure(keeper, DEVICE, GIB)
    says(keeper, get_server_list="71", get_client_list="4711", terminate_client=answer)
    assert daemon.terminate_client(4711) is done


def _kill(pid: int) -> None:
    start = processes.start_of(pid)
    os.kill(pid, signal.SIGKILL)
    while processes.alive(pid, start):
        pass
