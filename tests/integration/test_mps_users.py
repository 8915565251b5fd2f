"""Daemons that run as somebody else, as a broker that is root starts them; NVIDIA's program."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from genv_jupyter.broker import host
from genv_jupyter.broker.config import BrokerConfig
from genv_jupyter.isolation.environ import MPS_MEMORY, MPS_PIPE, MPS_THREADS
from genv_jupyter.isolation.mps import Daemons, Post
from genv_jupyter.isolation.mps_control import ControlDaemon, MpsError
from genv_jupyter.isolation.mps_runner import Runner
from genv_jupyter.model import Environment, NewEnvironment, Principal, Request
from tests.debian import unpacked
from tests.integration.mps_bench import MpsBench
from tests.integration.test_mps_daemons import GIB, Clock, Needs, ensure, needs

pytestmark = pytest.mark.skipif(
    os.getuid() != 0, reason="NOT TESTED: only root runs daemons of other users"
)
GPU = "GPU-11111111-0000-4000-8000-000000000001"
OURS, THEIRS, OTHERS = (Post(GPU, uid) for uid in (0, 4711, 4712))

Make = Callable[[], Daemons]


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory with a short path that everybody may go through."""
    with tempfile.TemporaryDirectory(prefix="gj") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def make(place: Path) -> Iterator[Make]:
    program = unpacked("nvidia-cuda-mps") / "usr/bin/nvidia-cuda-mps-control"
    shutil.copy(program, place / "control")  # the cache may be closed to them

    def one() -> Daemons:
        return Daemons(place / "mps", Needs(), str(place / "control"), Clock())

    yield one
    keeper = one()
    for post in (OURS, THEIRS, OTHERS):
        pid = keeper.control(post).pid()
        if pid is not None:
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def desk(place: Path) -> Iterator[MpsBench]:
    """A broker that is root's, and serves others too."""
    program = shutil.copy(unpacked("nvidia-cuda-mps") / "usr/bin/nvidia-cuda-mps-control", place)
    (place / "broker").mkdir(mode=0o711)
    made = MpsBench(place / "broker", str(program))
    yield made
    made.close()
    for uid in (4711, 4712):
        pid = made.daemons.control(Post(made.device(0), uid)).pid()
        if pid is not None:
            os.kill(pid, signal.SIGKILL)


def uid_of(pid: int) -> int:
    return Path(f"/proc/{pid}").stat().st_uid


def as_user(uid: int, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        user=uid,
        group=uid,
        extra_groups=[],
        env=variables,
        cwd="/",
        capture_output=True,
        text=True,
        input="get_default_active_thread_percentage\n",
        timeout=30,
    )


def test_each_user_of_a_device_has_a_daemon(make: Make) -> None:
    keeper = make()
    pids = [ensure(keeper, post, GIB).pid() for post in (OURS, THEIRS, OTHERS)]
    assert [uid_of(pid) for pid in pids if pid is not None] == [0, 4711, 4712]
    assert len(keeper.running(GPU)) == 3
    assert keeper.control(THEIRS).healthy() and keeper.control(THEIRS).ceiling() == "1G"
    for post in (THEIRS, OTHERS):
        daemon = keeper.control(post)
        for directory in (daemon.directory, daemon.logs):
            found = directory.stat()
            assert (found.st_uid, found.st_mode & 0o777) == (post.uid, 0o700)
        groups = Path(f"/proc/{daemon.pid()}/status").read_text().split("Groups:")[1]
        assert groups.splitlines()[0].strip() == "", "none of root's groups"


def test_whatever_the_umask_users_get_through_to_their_own(make: Make, place: Path) -> None:
    before = os.umask(0o077)  # as the daemon of a host has it
    try:
        daemon = ensure(make(), THEIRS, GIB)
    finally:
        os.umask(before)
    assert daemon.healthy() and daemon.directory.parent.stat().st_mode & 0o777 == 0o711


def test_its_user_reaches_it_and_nobody_else(make: Make, place: Path) -> None:
    daemon = ensure(make(), THEIRS, GIB)
    variables = {"CUDA_MPS_PIPE_DIRECTORY": str(daemon.directory), "LC_ALL": "C"}
    its_own = as_user(4711, str(place / "control"), **variables)
    assert (its_own.returncode, its_own.stdout.strip()) == (0, "100.0")
    another = as_user(4712, str(place / "control"), **variables)
    assert another.returncode != 0 and "100.0" not in another.stdout


def test_the_next_broker_takes_over_daemons_of_users(make: Make) -> None:
    dead = make()
    needed, left = ensure(dead, THEIRS, GIB), ensure(dead, OTHERS, GIB)
    pid = needed.pid()
    new = make()
    needs(new)[THEIRS] = 2 * GIB
    new.adopt()
    assert needed.pid() == pid and needed.ceiling() == "2G"
    assert left.pid() is None and not left.directory.exists()


def test_a_directory_closed_to_its_user_is_said(make: Make, place: Path) -> None:
    place.chmod(0o700)
    keeper = make()
    with pytest.raises(MpsError, match="cannot be run as uid 4711: Permission denied"):
        ensure(keeper, THEIRS, GIB)
    assert "Permission denied" in (keeper.trouble(THEIRS) or "")


def test_sockets_above_which_its_user_may_not_go(make: Make, place: Path) -> None:
    keeper = make()
    keeper.directory.mkdir(mode=0o700)  # the program can be run, and its directory not be reached
    with pytest.raises(MpsError, match=r"ended with status|does not listen"):
        ensure(keeper, THEIRS, GIB)
    assert keeper.control(THEIRS).pid() is None


def test_a_user_who_is_not_root_runs_no_daemon_of_another(make: Make, place: Path) -> None:
    (place / "theirs").mkdir(mode=0o700)
    os.chown(place / "theirs", 4711, 4711)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the child starts no threads
        child = os.fork()
    if child == 0:  # imports are done: the sources may be closed to that user
        os.setgroups([])
        os.setgid(4711)
        os.setuid(4711)
        try:
            ControlDaemon(place / "theirs" / "d", GPU, str(place / "control"), 4712).start()
        except MpsError as error:
            os._exit(7 if "its directory cannot be made" in str(error) else 8)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_what_a_user_puts_in_the_place_of_a_log_is_not_read(make: Make, place: Path) -> None:
    daemon = ensure(make(), THEIRS, GIB)
    secret = place / "secret"
    secret.write_text("[x] root's\n")
    secret.chmod(0o600)
    (daemon.logs / "control.log").unlink()
    (daemon.logs / "control.log").symlink_to(secret)
    assert "root" not in daemon.last_words()


def attach(desk: MpsBench, uid: int, request: Request) -> Environment:
    """Attach for a user who is not the broker's."""
    who = Principal(realm="local", id=str(uid), name=f"user {uid}")
    sleeper = subprocess.Popen(["sleep", "600"], user=uid)
    desk.children.append(sleeper)
    made = desk.broker.create(who, NewEnvironment(kind="command", pid=sleeper.pid))
    desk.broker.attach(who, made.id, request, cuda="not_initialized", peer_pid=sleeper.pid)
    return desk.broker.environment(who, made.id)


def test_two_users_on_a_device_have_daemons_of_their_own_and_no_ceilings(desk: MpsBench) -> None:
    share = Request(devices=("0",), fraction=0.25)
    one = attach(desk, 4711, share)
    assert one.environ is not None and one.environ[MPS_THREADS] == "25"
    desk.broker.changes(desk.me)
    other = attach(desk, 4712, share)
    event = desk.broker.changes(desk.me)
    assert event is not None and one.id in {it.id for it in event.environments}, "it is told"
    pipes = set()
    for uid, environment in ((4711, one), (4712, other)):
        who = Principal(realm="local", id=str(uid), name="")
        now = desk.broker.environment(who, environment.id)
        assert now.environ is not None and now.environ[MPS_THREADS] is None
        assert now.environ[MPS_MEMORY] == f"0={6 * 1024}M"
        pipes.add(now.environ[MPS_PIPE])
        (grant,) = now.grants
        assert "Another user works on this device too" in grant.limits.memory.reason
        assert grant.limits.compute.strength == "none"
        pid = desk.daemons.control(Post(desk.device(0), uid)).pid()
        assert pid is not None and uid_of(pid) == uid
    assert len(pipes) == 2
    desk.end(desk.children[-1])
    desk.tick()
    alone = desk.broker.environment(Principal(realm="local", id="4711", name=""), one.id)
    assert alone.environ is not None and alone.environ[MPS_THREADS] == "25"


def test_a_whole_device_ends_the_idle_daemons_of_all(desk: MpsBench) -> None:
    for uid in (4711, 4712):
        attach(desk, uid, Request(devices=("0",), memory="1GiB"))
        desk.end(desk.children[-1])
    desk.tick()
    daemons = [desk.daemons.control(Post(desk.device(0), uid)) for uid in (4711, 4712)]
    assert all(daemon.pid() for daemon in daemons)
    attach(desk, 4711, Request(devices=("0",)))
    assert not any(daemon.pid() for daemon in daemons)


def test_the_daemon_of_a_host_has_them_where_users_get_through(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GENV_JUPYTER_SIMULATE", "1x24GiB")
    (place / "state").mkdir(mode=0o700)
    broker, held = host._open(place / "state", BrokerConfig(), place)
    try:
        daemons = broker.core.mps.daemons
        assert daemons is not None and daemons.directory == place / "mps"
    finally:
        broker.close()
        os.close(held)


# -- who a socket says is behind it ----------------------------------------------------------------


@pytest.fixture
def impostor(place: Path) -> Iterator[tuple[Runner, int]]:
    """Root's process behind a socket that a user's listened at: as when a pid is used again."""
    runner = Runner(place / "mps", GPU, "nvidia-cuda-mps-control", THEIRS.uid)
    runner.directory.mkdir()
    os.chown(runner.directory, THEIRS.uid, THEIRS.uid)
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setresuid(THEIRS.uid, THEIRS.uid, 0)
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
                listening.bind(str(runner.directory / "control"))
                listening.listen()
                os.setresuid(0, 0, 0)
                os.write(told, b".")
                signal.pause()
        finally:
            os._exit(1)
    os.close(told)
    try:
        assert os.read(ready, 1) == b"."
        yield runner, pid
    finally:
        os.close(ready)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_process_that_is_no_longer_its_user_s_is_no_daemon(impostor: tuple[Runner, int]) -> None:
    """The socket keeps the credentials of whoever listened, even when that one is dead."""
    runner, _ = impostor
    assert runner.pid() is None


def test_nor_is_it_killed_when_it_has_come_to_have_the_pid(
    impostor: tuple[Runner, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, pid = impostor
    monkeypatch.setattr(runner, "pid", lambda: pid)
    runner.kill()
    assert os.waitpid(pid, os.WNOHANG) == (0, 0), "it lives"
