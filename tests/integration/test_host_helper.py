"""The daemon of a host with privileges separated: an ordinary user serves, a helper is root's."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from genv_jupyter.api.client import Client
from genv_jupyter.isolation import live, processes
from genv_jupyter.isolation.environ import MPS_MEMORY, MPS_PIPE, PROGRAMS
from genv_jupyter.isolation.mps_runner import name_of
from genv_jupyter.model import BrokerHealth, Environment, NewEnvironment, Request
from tests.debian import unpacked
from tests.fakedriver import FakeDriver, device, uuid
from tests.integration.daemons import Daemon, User, as_user, make_users, serving
from tests.integration.helped import HelpedDaemon, Holders, eventually, reaching

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="NOT TESTED: only root has a root helper")


@pytest.fixture(scope="module")
def users() -> Iterator[dict[str, User]]:
    yield from make_users()


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gj") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="module")
def program(place: Path) -> str:
    path = place / "control"
    shutil.copy(unpacked("nvidia-cuda-mps") / "usr/bin/nvidia-cuda-mps-control", path)
    return str(path)


@pytest.fixture(scope="module")
def driver(place: Path) -> Iterator[FakeDriver]:
    """Two devices of a driver that everybody can load."""
    where = place / "driver"
    where.mkdir()
    with FakeDriver(where, {"devices": [device(0), device(1)]}) as driver:
        for library in where.glob("*.so*"):  # links into a cache that may be root's alone
            there = library.resolve()
            library.unlink()
            shutil.copy(there, library)
        for number in range(2):  # as root would write it, and everybody reads it from a real one
            driver._mode(uuid(number)).write_text("0")
        subprocess.run(["chmod", "-R", "a+rwX", where], check=True)
        yield driver


@pytest.fixture(scope="module")
def daemon(users: dict[str, User], program: str, driver: FakeDriver) -> Iterator[HelpedDaemon]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in driver.environ.items():
            patch.setenv(name, value)
        more = {"broker": users["adm"], "program": program, "spec": ""}
        with serving(patch, "c.Rules.patience = 0", kind=HelpedDaemon, **more) as made:
            yield made


@contextlib.contextmanager
def configured(daemon: HelpedDaemon, *lines: str) -> Iterator[None]:
    """Another configuration for a while; the parent passes the word on."""
    for more in (lines, ()):
        before = daemon.log.read_text().count("was taken over")
        daemon.configure(*more)
        os.kill(daemon.pid, signal.SIGHUP)
        eventually(lambda: daemon.log.read_text().count("was taken over") > before)  # noqa: B023
        if more:
            yield


def test_the_broker_has_no_rights_and_the_helper_little_else(
    daemon: HelpedDaemon, users: dict[str, User]
) -> None:
    status = Path(f"/proc/{daemon.broker}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    me = users["adm"]
    assert set(fields["Uid"].split()) == {str(me.uid)}
    assert set(fields["Gid"].split()) == {str(me.gid)}
    assert {int(fields[name], 16) for name in ("CapPrm", "CapEff", "CapInh", "CapAmb")} == {0}
    print(daemon.log.read_text())
    assert daemon.helper is not None and processes.uid_of(daemon.helper) == 0
    maps = Path(f"/proc/{daemon.helper}/maps").read_text()
    for library in ("sqlite", "sqlalchemy", "nvidia-ml", "libssl", "_ssl"):
        assert library not in maps
    opened = {
        int(it.name): str(it.readlink()) for it in Path(f"/proc/{daemon.helper}/fd").iterdir()
    }
    lines = [it for number, it in opened.items() if number > 2]
    assert len(lines) == 1 and lines[0].startswith("socket:"), "its line, and nothing else"


@pytest.fixture(scope="module")
def all_holders(place: Path) -> Holders:
    return Holders(place)


@pytest.fixture
def holders(all_holders: Holders) -> Iterator[Holders]:
    yield all_holders
    all_holders.end()


def own(user: User, pid: int, request: Request | None) -> Environment:
    """Let a user make an environment for a process, and attach."""

    def call() -> Environment:
        client = Client(start=False)
        made = client.create(NewEnvironment(kind="command", pid=pid))
        return made if request is None else client.attach(made.id, request)

    return as_user(user, call)


def seen(user: User, environment: str) -> Environment:
    return as_user(user, lambda: Client(start=False).environment(environment))


def test_shared_grants_of_users_are_under_mps(
    daemon: HelpedDaemon, users: dict[str, User], holders: Holders
) -> None:
    ann = users["ann"]
    held = own(ann, holders.of(ann).pid, Request(fraction=0.25, devices=("0",)))
    (grant,) = held.grants
    assert grant.limits.memory.strength == "driver" and held.environ is not None
    assert held.environ[MPS_PIPE] == str(daemon.room / name_of(uuid(0), ann.uid))
    assert held.environ[MPS_MEMORY] is not None
    pipe = Path(held.environ[MPS_PIPE] or "")
    pid = peer_of(pipe)
    assert processes.uid_of(pid) == ann.uid
    found = pipe.stat()
    assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (ann.uid, 0o700)
    variables = Path(f"/proc/{pid}/environ").read_bytes()
    assert b"CUDA_VISIBLE_DEVICES=" + uuid(0).encode() in variables and b"GENV" not in variables


EXCLUSIVE, DEFAULT = 3, 0


def test_a_compute_mode_is_set_and_put_back_after_a_crash(
    daemon: HelpedDaemon, users: dict[str, User], holders: Holders, driver: FakeDriver
) -> None:
    process = holders.of(users["ann"])
    with configured(daemon, "c.MpsDaemons.exclusive_mode = True"):
        own(users["ann"], process.pid, Request(fraction=0.25, devices=("1",)))
        eventually(lambda: driver.compute_mode(uuid(1)) == EXCLUSIVE)
        assert "compute mode of" in daemon.log.read_text()
        os.kill(daemon.broker, signal.SIGKILL)
        assert daemon.process is not None and daemon.process.wait(30) == 128 + signal.SIGKILL
        process.kill()
        process.wait()
        assert driver.compute_mode(uuid(1)) == EXCLUSIVE, "it had no time for that"
        daemon.start()
        assert Daemon.stop(daemon) == 0
        assert driver.compute_mode(uuid(1)) == DEFAULT, "the next one knows what it was"
        daemon.start()


def peer_of(pipe: Path) -> int:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.connect(str(pipe / "control"))
        return processes.peer(sock)[0]


def run_as(
    daemon: HelpedDaemon, user: User, *command: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a program as a user, who reaches what the daemon does."""
    ids = [f"--reuid={user.uid}", f"--regid={user.gid}", "--clear-groups"]
    return subprocess.run(
        ["nsenter", f"--mount=/proc/{daemon.broker}/ns/mnt", "setpriv", *ids, *command],
        env={"PATH": os.environ["PATH"], **variables},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def with_programs(bob: User, holders: Holders) -> tuple[Environment, Path]:
    """Attach something for a user, and return it with what is first in its PATH."""
    held = own(bob, holders.of(bob).pid, Request(memory="1GiB", devices=("1",)))
    assert held.environ is not None
    return held, Path(held.environ[PROGRAMS] or "")


def test_nvidia_smi_shows_a_user_what_the_environment_has(
    daemon: HelpedDaemon, users: dict[str, User], holders: Holders
) -> None:
    bob = users["bob"]
    held, directory = with_programs(bob, holders)
    for path in (directory, *directory.rglob("*")):
        found = path.stat()
        assert found.st_uid == 0 and not found.st_mode & 0o022
        assert found.st_mode & 0o004, f"{path} is for everybody"
    program = str(directory / "nvidia-smi")
    shown = run_as(daemon, bob, program, "-L", GENV_JUPYTER_ENVIRONMENT=held.id)
    assert (shown.returncode, shown.stderr) == (0, "") and uuid(1) in shown.stdout
    assert uuid(0) not in shown.stdout
    other = run_as(daemon, users["cat"], program, "-L", GENV_JUPYTER_ENVIRONMENT=held.id)
    assert uuid(1) not in other.stdout and "belongs to" in other.stderr


def test_what_is_first_in_the_path_of_users_is_out_of_the_broker_s_hands(
    daemon: HelpedDaemon, users: dict[str, User], holders: Holders
) -> None:
    bob = users["bob"]
    _, directory = with_programs(bob, holders)
    assert as_user(bob, lambda: live.trusted(str(directory))), "its user believes it"

    def try_to_swap() -> list[int]:
        done = []
        for number, attempt in enumerate(
            (
                lambda: (directory / "nvidia-smi").write_text("evil"),
                lambda: (directory / "nvidia-smi").unlink(),
                lambda: (directory / "ls").touch(),
                lambda: directory.rename(directory.with_name("away")),
                lambda: directory.parent.rename(directory.parent.with_name("away")),
            )
        ):
            with contextlib.suppress(PermissionError):
                attempt()
                done.append(number)
        return done

    assert as_user(users["adm"], try_to_swap) == []


def holding(driver: FakeDriver, number: int, *held: subprocess.Popen[bytes]) -> None:
    """Let the driver list processes on a device."""
    driver.set_processes(
        uuid(number), [{"pid": it.pid, "memory": 2**30, "kind": "compute"} for it in held]
    )


def test_a_process_of_a_user_is_known_by_the_variable_that_it_carries(
    daemon: HelpedDaemon, users: dict[str, User], holders: Holders, driver: FakeDriver
) -> None:
    ann, bob = users["ann"], users["bob"]
    kernel = holders.of(ann)
    held = own(ann, kernel.pid, Request(memory="1GiB", devices=("1",)))
    child = holders.of(ann, GENV_JUPYTER_ENVIRONMENT=held.id)
    thief = holders.of(bob, GENV_JUPYTER_ENVIRONMENT=held.id)
    holding(driver, 1, child, thief)
    try:
        usage = eventually(lambda: seen(ann, held.id).processes)
        assert {it.pid for it in usage} == {child.pid}
        time_for_a_look = [seen(ann, held.id) for _ in range(20)]
        assert all(thief.pid not in {p.pid for p in it.processes} for it in time_for_a_look)
    finally:
        holding(driver, 1)


# -- what rules do ---------------------------------------------------------------------------------


@pytest.fixture
def acting(daemon: HelpedDaemon) -> Iterator[None]:
    """Rules that act at once; the parent passes the word on that the configuration is another."""
    acts = ("outside = 'act'", "cap = 'act'", "outside_grace = 0", "cap_grace = 0", "pause = 0")
    with configured(daemon, *(f"c.Rules.{it}" for it in acts)):
        yield


@pytest.mark.usefixtures("acting")
def test_a_process_of_a_user_that_has_no_grant_is_ended(
    daemon: HelpedDaemon, users: dict[str, User], holders: Holders, driver: FakeDriver
) -> None:
    stranger = holders.start(users["bob"].uid, DEAF="1")
    roots, screen = holders.start(0), holders.start(users["bob"].uid, name="nvidia-settings")
    holding(driver, 0, stranger, roots, screen)
    try:
        assert stranger.wait(60) == -signal.SIGKILL
        said = daemon.log.read_text()
        for name in ("SIGINT", "SIGTERM", "SIGKILL"):
            assert f"root helper: {name} to process {stranger.pid}" in said
        assert roots.poll() is None and screen.poll() is None
        assert f"process {roots.pid}" not in said
    finally:
        holding(driver, 0)


@pytest.mark.usefixtures("acting")
def test_an_environment_that_uses_more_than_its_grant_is_brought_under_it(
    daemon: HelpedDaemon, users: dict[str, User], holders: Holders, driver: FakeDriver
) -> None:
    kernel = holders.of(users["cat"])
    own(users["cat"], kernel.pid, Request(memory="1GiB", devices=("0",)))
    driver.set_processes(uuid(0), [{"pid": kernel.pid, "memory": 4 * 2**30, "kind": "compute"}])
    try:
        assert kernel.wait(60) in (-signal.SIGINT, -signal.SIGTERM)
        assert f"to process {kernel.pid} of uid {users['cat'].uid}" in daemon.log.read_text()
    finally:
        holding(driver, 0)


# -- ends ------------------------------------------------------------------------------------------


def health(user: User) -> BrokerHealth:
    return as_user(user, lambda: Client(start=False).health())


def test_a_helper_that_is_killed_is_missed_and_replaced(
    daemon: HelpedDaemon, users: dict[str, User], holders: Holders
) -> None:
    ann, before, broker = users["ann"], daemon.helper, daemon.broker
    held = own(ann, holders.of(ann).pid, Request(memory="1GiB", devices=("0",)))
    assert held.environ is not None and before is not None
    pid = peer_of(Path(held.environ[MPS_PIPE] or ""))
    os.kill(before, signal.SIGKILL)
    eventually(lambda: "the root helper" in daemon.log.read_text() or daemon.helper is None)
    eventually(lambda: any("root helper has ended" in it for it in health(ann).notices))
    after = eventually(lambda: daemon.helper not in (None, before) and daemon.helper)
    eventually(lambda: not any("root helper" in it for it in health(ann).notices))
    assert health(ann).pid == broker and daemon.helper == after
    assert peer_of(Path(held.environ[MPS_PIPE] or "")) == pid
    other = own(users["bob"], holders.of(users["bob"]).pid, Request(memory="1GiB", devices=("0",)))
    assert other.grants[0].limits.memory.strength == "driver", "the new helper starts daemons"


def test_a_broker_that_is_killed_takes_the_helper_with_it_and_no_daemon(
    daemon: HelpedDaemon, users: dict[str, User], holders: Holders
) -> None:
    ann, helper = users["ann"], daemon.helper
    held = own(ann, holders.of(ann).pid, Request(memory="1GiB", devices=("0",)))
    assert held.environ is not None and helper is not None
    pipe = Path(held.environ[MPS_PIPE] or "")
    pid = peer_of(pipe)
    os.kill(daemon.broker, signal.SIGKILL)
    assert daemon.process is not None and daemon.process.wait(30) == 128 + signal.SIGKILL
    eventually(lambda: not processes.alive(helper, None))
    assert peer_of(pipe) == pid
    daemon.start()
    assert peer_of(pipe) == pid and seen(ann, held.id).environ == held.environ


def test_a_parent_that_is_killed_takes_both_with_it_and_no_daemon(
    daemon: HelpedDaemon, users: dict[str, User], holders: Holders
) -> None:
    ann, helper, broker = users["ann"], daemon.helper, daemon.broker
    held = own(ann, holders.of(ann).pid, Request(memory="1GiB", devices=("0",)))
    assert held.environ is not None and helper is not None
    pid = peer_of(Path(held.environ[MPS_PIPE] or ""))
    daemon.kill()
    eventually(lambda: not processes.alive(broker, None) and not processes.alive(helper, None))
    assert processes.alive(pid, None)
    daemon.start()
    assert seen(ann, held.id).environ == held.environ


def test_told_to_end_all_end_in_good_order(daemon: HelpedDaemon, users: dict[str, User]) -> None:
    helper, broker = daemon.helper, daemon.broker
    assert helper is not None
    assert Daemon.stop(daemon) == 0
    assert not processes.alive(broker, None)
    eventually(lambda: not processes.alive(helper, None))
    daemon.start()


# -- starts that are refused -----------------------------------------------------------------------


def refused(daemon: HelpedDaemon, **changes: str) -> str:
    """Start another one with other words; return what it says."""
    command = daemon.command()
    for option, value in changes.items():
        command[command.index(f"--{option.replace('_', '-')}") + 1] = value
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    return done.stderr


def test_what_root_must_have_right_before_anything_is_started(
    daemon: HelpedDaemon, users: dict[str, User], tmp_path: Path, place: Path
) -> None:
    assert "there is no user 'nobody-here'" in refused(daemon, **{"as": "nobody-here"})
    assert "is not to run as root" in refused(daemon, **{"as": "root"})
    theirs = place / "theirs"
    theirs.mkdir()
    os.chown(theirs, users["ann"].uid, users["ann"].gid)
    assert "is not root's alone" in refused(daemon, mps_directory=str(theirs))
    assert "is not root's alone" in refused(daemon, mps_directory=str(theirs / "below"))
    (place / "link").symlink_to(place)
    assert "is not root's alone" in refused(daemon, mps_directory=str(place / "link"))
    shared = place / "shared"
    shared.mkdir()
    shared.chmod(0o775)
    assert "is not root's alone" in refused(daemon, mps_directory=str(shared / "mps"))
    program = shared / "control"
    program.touch(mode=0o755)
    assert "is not root's alone" in refused(daemon, mps_program=str(program))
    assert "is no program" in refused(daemon, mps_program=str(place))
    assert f"belongs to uid {users['ann'].uid}" in refused(daemon, state=str(theirs))
    assert "is not root's alone" in refused(daemon, state=str(theirs / "state"))
    assert theirs.stat().st_uid == users["ann"].uid
    full = place / "full"
    (full / "of-the-host").mkdir(parents=True)
    for option in ({"state": str(full)}, {"socket": str(full / "broker.sock")}):
        assert "full would be" in (said := refused(daemon, **option)) and "of-the-host" in said
    assert full.stat().st_uid == 0, "it is not the broker's"


def test_a_mistake_in_the_configuration_ends_all_of_it(
    daemon: HelpedDaemon, users: dict[str, User], place: Path
) -> None:
    wrong = place / "wrong.py"
    wrong.write_text("c.Rules.capp = 'act'\n")
    wrong.chmod(0o644)
    free = {"socket": str(place / "other" / "broker.sock"), "state": str(place / "elsewhere")}
    assert "did you mean cap?" in refused(daemon, config=str(wrong), **free)


@pytest.mark.parametrize("root", [True, False])
def test_without_a_helper_it_is_said_what_is_missing(
    users: dict[str, User], monkeypatch: pytest.MonkeyPatch, holders: Holders, root: bool
) -> None:
    with serving(monkeypatch, user=None if root else users["cat"]):
        notices = " ".join(health(users["ann"]).notices)
        assert ("This broker runs as root" in notices) == root
        assert ("without its root helper" in notices) == (not root)
        held = own(users["ann"], holders.of(users["ann"]).pid, Request(memory="1GiB"))
        assert held.grants, "it serves all the same"


def test_the_command_starts_it_so(daemon: HelpedDaemon) -> None:
    command = [sys.executable, "-m", "genv_jupyter.cli", "broker", "--as", "nobody-here"]
    command += ["--lowest-uid", "500", "--mps-directory", str(daemon.room)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "there is no user 'nobody-here'" in done.stderr, done.stderr
    ids = ["setpriv", "--reuid=4711", "--regid=4711", "--clear-groups", "--"]
    reached = reaching(daemon.top / "stage", [*ids, *command])
    done = subprocess.run(reached, capture_output=True, text=True, timeout=60, check=False)
    assert "--as is for root" in done.stderr, done.stderr


def test_files_are_whose_they_must_be(daemon: HelpedDaemon, users: dict[str, User]) -> None:
    me = users["adm"].uid
    for path, owner, mode in (
        (daemon.socket.parent, me, 0o755),
        (daemon.socket, me, 0o666),
        (daemon.state, me, 0o700),
        (daemon.room, 0, 0o711),
        (daemon.room / "bin", 0, 0o755),
    ):
        found = path.stat()
        assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (owner, mode), path
    for path in daemon.state.rglob("*"):
        assert path.stat().st_uid == me and not path.stat().st_mode & 0o077, path
    for path in set(daemon.room.glob("*")) - {daemon.room / "bin"}:
        found = path.stat()
        assert not found.st_mode & 0o077 and (found.st_uid == 0) == path.is_file(), path


def test_an_interpreter_that_the_broker_s_user_cannot_run_is_said(
    daemon: HelpedDaemon, users: dict[str, User], place: Path
) -> None:
    closed = place / "closed"
    closed.mkdir(mode=0o700)
    (closed / "python").symlink_to(sys.executable)
    command = daemon.command()
    command[command.index(sys.executable)] = str(closed / "python")
    for option, value in (
        ("--socket", "c/broker.sock"),
        ("--state", "d"),
        ("--mps-directory", "e"),
    ):
        command[command.index(option) + 1] = str(place / value)
    packages = f"{Path.cwd()}:{sysconfig.get_path('purelib')}"  # of the virtual environment
    environ = {**os.environ, "PYTHONPATH": packages}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env=environ
    )
    assert done.returncode == 70 and "Permission denied" in done.stderr
    assert f"what runs as uid {users['adm'].uid} cannot be started" in done.stderr
