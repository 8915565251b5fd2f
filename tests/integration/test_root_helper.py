"""The root helper's verbs, asked as an attacker would who has taken over the broker."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from genv_jupyter.isolation.mps_runner import name_of
from genv_jupyter.rootd import helper as root_helper
from genv_jupyter.rootd import wire
from tests.debian import unpacked
from tests.integration.daemons import User, make_users
from tests.integration.helped import Helped, Holders, end_daemons, eventually, lives, who

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="NOT TESTED: the root helper needs root")

GPU = "GPU-1111111a-0000-4000-8000-000000000001"
BROKER = 999


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
    """NVIDIA's control program, where everybody reaches it."""
    data = (unpacked("nvidia-cuda-mps") / "usr/bin/nvidia-cuda-mps-control").read_bytes()
    path = place / "control"
    path.write_bytes(data)
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def room(place: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="r", dir=place) as name:
        Path(name).chmod(0o711)
        yield Path(name)
        end_daemons(Path(name))


@pytest.fixture
def helped(room: Path, program: str) -> Iterator[Helped]:
    made = Helped(room, program, broker_uid=BROKER)
    yield made
    made.close()


@pytest.fixture(scope="module")
def holders(place: Path) -> Iterator[Holders]:
    made = Holders(place)
    yield made
    made.end()


@pytest.fixture
def ann(users: dict[str, User]) -> User:
    return users["ann"]


@pytest.fixture
def lines() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The broker's end, and the helper's."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.settimeout(30)
        yield ours, theirs


@pytest.fixture
def inner(lines: tuple[socket.socket, socket.socket], room: Path) -> root_helper.Helper:
    """A helper in this process, whose parts can be replaced."""
    return root_helper.Helper(lines[1], root_helper.Rules(room, "/bin/false", 1000, BROKER))


def daemon_of(helped: Helped, user: User, device: str = GPU) -> dict[str, Any]:
    """Have a daemon of a user started."""
    whose = {"uid": user.uid, "device": device}
    answer = helped.ask(wire.Mps, verb="start", **whose)
    assert answer.error is None, answer
    return whose


# -- MPS -------------------------------------------------------------------------------------------


def test_a_daemon_is_its_user_s_and_in_root_s_directory(helped: Helped, ann: User) -> None:
    whose = daemon_of(helped, ann)
    pid = helped.ask(wire.Mps, verb="pid", **whose).value
    assert Path(f"/proc/{pid}").stat().st_uid == ann.uid
    assert os.getsid(pid) not in (os.getsid(0), os.getsid(helped.process.pid))
    directory = helped.room / name_of(GPU, ann.uid)
    for each in (directory, directory / "logs"):
        found = each.stat()
        assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (ann.uid, 0o700)
    assert (helped.room.stat().st_uid, stat.S_IMODE(helped.room.stat().st_mode)) == (0, 0o711)
    for each in helped.room.iterdir():
        assert each == directory or (each.stat().st_uid, each.stat().st_mode & 0o077) == (0, 0)
    ask = helped.ask(wire.MpsSay, command="get_default_active_thread_percentage", **whose)
    assert ask.value == [0, "100.0"]


def test_it_is_started_once_found_again_ended_and_removed(helped: Helped, ann: User) -> None:
    whose = daemon_of(helped, ann)
    pid = helped.ask(wire.Mps, verb="pid", **whose).value
    daemon_of(helped, ann)
    assert helped.ask(wire.Mps, verb="pid", **whose).value == pid
    assert helped.ask(wire.MpsLeft).value == [[ann.uid, GPU]]
    assert "a daemon runs there" in helped.refused(wire.Mps, verb="remove", **whose)
    assert helped.ask(wire.MpsSay, command="quit -t 0", **whose).value[0] == 0
    eventually(lambda: helped.ask(wire.Mps, verb="pid", **whose).value is None)
    assert helped.ask(wire.Mps, verb="remove", **whose).error is None
    assert helped.ask(wire.MpsLeft).value == []
    assert not (helped.room / name_of(GPU, ann.uid)).exists()


def test_one_that_hears_nothing_is_killed(helped: Helped, ann: User) -> None:
    whose = daemon_of(helped, ann)
    pid = helped.ask(wire.Mps, verb="pid", **whose).value
    os.kill(pid, signal.SIGSTOP)
    answer = helped.ask(wire.MpsSay, command="get_server_list", **whose)
    assert answer.kind == "hangs"
    assert helped.ask(wire.Mps, verb="kill", **whose).error is None
    assert not root_helper.processes.alive(pid, None)


def test_logs_are_handed_over_to_be_read_and_nothing_else_is(
    helped: Helped, ann: User, place: Path
) -> None:
    whose = daemon_of(helped, ann)
    log = helped.room / name_of(GPU, ann.uid) / "logs" / "control.log"

    def read() -> bytes | str:
        helped.submit(wire.MpsLog, name="control.log", **whose)
        answer, descriptors = helped.receive()
        if answer.error is not None:
            return answer.error
        (descriptor,) = descriptors
        with os.fdopen(descriptor, "rb") as file:
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.write(file.fileno(), b"x")
            return file.read()

    assert b"]" in read()  # type: ignore[operator]
    secret = place / "secret"
    secret.write_text("root's\n")
    secret.chmod(0o600)
    own = place / "own"
    own.write_text("hers, and no log\n")
    os.chown(own, ann.uid, ann.gid)
    for trap in (
        lambda: log.symlink_to(secret),
        lambda: os.link(secret, log),
        lambda: log.symlink_to(own),
        lambda: (os.mkfifo(log), os.chown(log, ann.uid, ann.gid)),
        lambda: (log.parent.rename(log.parent.with_name("old")), log.parent.symlink_to(place)),
    ):
        log.unlink(missing_ok=True)
        trap()
        assert isinstance(read(), str), "it is another's, or no file, and nobody waits for it"


def test_whoever_starts_a_second_at_once_gets_the_same(helped: Helped, ann: User) -> None:
    for _ in range(3):
        helped.submit(wire.Mps, verb="start", uid=ann.uid, device=GPU)
    assert all(helped.receive()[0].error is None for _ in range(3))
    pids = {helped.ask(wire.Mps, verb="pid", uid=ann.uid, device=GPU).value for _ in range(3)}
    assert len(pids) == 1


@pytest.mark.parametrize("uid", [0, 1, 33, 999, 61184, 65534, 65535])
@pytest.mark.parametrize("kind", ["start", "kill", "say", "log", "signal"])
def test_root_the_system_and_nobody_have_no_daemon_and_no_signal(
    inner: root_helper.Helper, room: Path, uid: int, kind: str
) -> None:
    ask = {
        "start": (wire.Mps, {"verb": "start", "device": GPU}),
        "kill": (wire.Mps, {"verb": "kill", "device": GPU}),
        "say": (wire.MpsSay, {"command": "get_server_list", "device": GPU}),
        "log": (wire.MpsLog, {"name": "control.log", "device": GPU}),
        "signal": (wire.Signal, {"pid": os.getpid(), "start": 0, "signal": "SIGKILL"}),
    }[kind]
    with pytest.raises(root_helper.Refused, match="root's, the system's or nobody's"):
        inner._take(ask[0](id=1, uid=uid, **ask[1]))  # type: ignore[arg-type,operator]
    assert list(room.iterdir()) == []


def test_the_broker_s_own_user_is_nobody_s_client(
    room: Path, program: str, ann: User, holders: Holders
) -> None:
    helped = Helped(room, program, broker_uid=ann.uid)
    try:
        said = helped.refused(wire.Mps, verb="start", uid=ann.uid, device=GPU)
        assert "the broker's own" in said
        target = holders.of(ann)
        said = helped.refused(wire.Signal, **who(target), uid=ann.uid, signal="SIGTERM")
        assert "the broker's own" in said and lives(target)
    finally:
        helped.close()


def test_the_first_uid_of_a_person_is_root_s_to_say(room: Path, program: str, ann: User) -> None:
    helped = Helped(room, program, lowest_uid=ann.uid + 1)
    try:
        assert "root's" in helped.refused(wire.Mps, verb="start", uid=ann.uid, device=GPU)
        assert helped.ask(wire.Hello).value["lowest_uid"] == ann.uid + 1
    finally:
        helped.close()


def test_a_uid_without_an_account_has_no_daemon(helped: Helped) -> None:
    assert "no account" in helped.refused(wire.Mps, verb="start", uid=54321, device=GPU)


def test_without_a_program_there_is_no_daemon(room: Path, ann: User) -> None:
    helped = Helped(room, "")
    try:
        assert "not installed" in helped.ask(wire.Hello).value["missing"]
        assert "no program" in helped.refused(wire.Mps, verb="start", uid=ann.uid, device=GPU)
    finally:
        helped.close()


def test_so_many_daemons_and_no_more(helped: Helped, ann: User) -> None:
    for number in range(root_helper.MOST_DAEMONS):
        (helped.room / f"{number:08x}.post").write_text(f"{ann.uid} {GPU}")
    assert "already" in helped.refused(wire.Mps, verb="start", uid=ann.uid, device=GPU)


def test_what_is_in_the_place_of_a_directory_is_not_used(
    helped: Helped, ann: User, users: dict[str, User], place: Path
) -> None:
    directory = helped.room / name_of(GPU, ann.uid)
    bob = users["bob"]
    made: list[tuple[Any, str]] = [
        (lambda: directory.symlink_to(place), "is not a directory of uid"),
        (lambda: directory.mkdir(mode=0o700), "is not a directory of uid"),
        (
            lambda: (directory.mkdir(mode=0o700), os.chown(directory, bob.uid, bob.gid)),
            "is not a directory of uid",
        ),
        (
            lambda: (directory.mkdir(0o777), os.chown(directory, ann.uid, ann.gid)),
            "others may enter",
        ),
    ]
    before = os.umask(0)
    for make, why in made:
        make()
        answer = helped.ask(wire.Mps, verb="start", uid=ann.uid, device=GPU)
        assert answer.kind == "failed" and why in (answer.error or ""), answer
        directory.unlink() if directory.is_symlink() else directory.rmdir()
    os.umask(before)


def test_a_lock_in_the_hands_of_its_user_holds_nobody_up(helped: Helped, ann: User) -> None:
    whose = daemon_of(helped, ann)
    directory = helped.room / name_of(GPU, ann.uid)
    with subprocess.Popen(
        ["flock", str(directory), "sh", "-c", "echo; exec sleep 600"],
        user=ann.uid,
        stdout=subprocess.PIPE,
        cwd="/",
    ) as holder:
        assert holder.stdout is not None and holder.stdout.read(1) == b"\n"
        try:
            ask = helped.ask(wire.MpsSay, command="get_server_list", **whose)
        finally:
            holder.kill()
        assert ask.error is None


def test_a_daemon_that_hangs_holds_up_only_its_user(
    helped: Helped, ann: User, users: dict[str, User]
) -> None:
    hers, his = daemon_of(helped, ann), daemon_of(helped, users["bob"])
    os.kill(helped.ask(wire.Mps, verb="pid", **hers).value, signal.SIGSTOP)
    slow = [
        helped.submit(wire.MpsSay, command="get_server_list", **hers)
        for _ in range(root_helper.MOST_FOR_ONE)
    ]
    assert "under way" in helped.refused(wire.MpsSay, command="get_server_list", **hers)
    fast = helped.ask(wire.MpsSay, command="get_default_active_thread_percentage", **his)
    assert fast.value == [0, "100.0"]
    answers = [helped.receive()[0] for _ in slow]
    assert {answer.id for answer in answers} == set(slow)
    assert {answer.kind for answer in answers} == {"hangs"}
    assert helped.ask(wire.Mps, verb="kill", **hers).error is None


def test_who_talks_without_end_behind_a_socket_is_cut_short(
    helped: Helped, ann: User, tmp_path: Path, place: Path
) -> None:
    endless = place / "endless"
    endless.write_text("#!/bin/sh\nexec yes\n")
    endless.chmod(0o755)
    other = Helped(helped.room, str(endless))
    try:
        directory = helped.room / name_of(GPU, ann.uid)
        directory.mkdir(mode=0o700)
        os.chown(directory, ann.uid, ann.gid)
        ask = other.ask(wire.MpsSay, uid=ann.uid, device=GPU, command="get_server_list")
        assert ask.kind == "failed" and "says too much" in (ask.error or "")
    finally:
        other.close()


def test_under_systemd_it_is_in_a_scope_of_its_own(
    room: Path, program: str, ann: User, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command is the real one; in systemd-run's place stands one that shows what it is told."""
    stand_in = place / "bin"
    stand_in.mkdir(exist_ok=True)
    (stand_in / "systemd-run").write_text(
        f'#!/bin/sh\necho "$(id -u) $*" >> {place}/told\n'
        'while [ "$1" != -- ]; do shift; done; shift; exec "$@"\n'
    )
    (stand_in / "systemd-run").chmod(0o755)
    monkeypatch.setattr(root_helper, "SYSTEMD", place)
    monkeypatch.setenv("PATH", f"{stand_in}:{os.environ['PATH']}")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    rules = root_helper.Rules(room, program, 1000, BROKER)
    with ours, theirs:
        made = root_helper.Helper(theirs, rules)
        runner = made._runner(ann.uid, GPU)
        runner.start()
        try:
            pid = runner.pid()
            assert pid is not None
            status = Path(f"/proc/{pid}/status").read_text()
            fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
            assert set(fields["Uid"].split()) == {str(ann.uid)}
            assert set(fields["Gid"].split()) == {str(ann.gid)}
            assert fields["Groups"].split() in ([], [str(ann.gid)]) and fields["NoNewPrivs"] == "1"
            assert {fields[name] for name in ("CapPrm", "CapEff", "CapInh")} == {"0" * 16}
            told = (place / "told").read_text().split()
            assert told[0] == "0" and {"--scope", "--collect", "--quiet"} <= set(told)
            assert f"--unit=genv-jupyter-mps-{ann.uid}-{name_of(GPU, ann.uid)}" in " ".join(told)
        finally:
            runner.kill()


# -- what a process says ---------------------------------------------------------------------------


def test_of_a_process_only_two_variables_are_told(
    helped: Helped, ann: User, holders: Holders
) -> None:
    environment = "5a9ac2a6-3aa5-4aa0-8d43-0a5d5a0c5b0c"
    target = holders.of(
        ann,
        GENV_JUPYTER_ENVIRONMENT=environment,
        CUDA_MPS_PIPE_DIRECTORY="/run/mps",
        AWS_SECRET_ACCESS_KEY="hunter2",
    )
    answer = helped.ask(wire.Look, **who(target))
    assert answer.value == {
        "uid": ann.uid,
        "environment": environment,
        "claims": True,
        "pipe": "/run/mps",
        "cuda": True,
        "driver": False,
    }
    bare = helped.ask(wire.Look, **who(holders.start(ann.uid, cuda=False, name="bare"))).value
    assert (bare["environment"], bare["claims"], bare["cuda"]) == (None, False, False)


@pytest.mark.parametrize("said", ["", "a b", "../../etc", "x" * 65, "\x1b[2J", "é"])
def test_what_is_no_id_is_not_told(helped: Helped, ann: User, holders: Holders, said: str) -> None:
    target = holders.of(
        ann, GENV_JUPYTER_ENVIRONMENT=said, CUDA_MPS_PIPE_DIRECTORY="\x1b" + "y" * 200
    )
    seen = helped.ask(wire.Look, **who(target)).value
    assert seen["environment"] is None and seen["claims"] is True
    assert seen["pipe"] == "y" * 106


def test_of_root_s_the_system_s_and_others_processes_nothing_is_told(
    helped: Helped, holders: Holders
) -> None:
    secret = {"GENV_JUPYTER_ENVIRONMENT": "abc", "CUDA_MPS_PIPE_DIRECTORY": "/run/mps"}
    for uid in (0, 33, BROKER):
        target = holders.start(uid, **secret)  # type: ignore[arg-type]
        seen = helped.ask(wire.Look, **who(target)).value
        assert (seen["uid"], seen["environment"], seen["pipe"]) == (uid, None, None)
        assert seen["cuda"] is False and seen["claims"] is True


def test_another_process_that_came_to_have_its_pid_is_not_meant(
    helped: Helped, ann: User, holders: Holders
) -> None:
    target = holders.of(ann)
    other = {**who(target), "start": who(target)["start"] + 1}
    assert helped.ask(wire.Look, **other).value is None
    answer = helped.ask(wire.Signal, **other, uid=ann.uid, signal="SIGKILL")
    assert answer.value is False and lives(target)


# -- signals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_a_user_s_process_is_signalled(
    helped: Helped, ann: User, holders: Holders, name: str
) -> None:
    target = holders.of(ann)
    asked = {**who(target), "uid": ann.uid, "signal": name}
    assert helped.ask(wire.Signal, **asked).value is True
    assert target.wait(30) == -signal.Signals[name]
    assert helped.ask(wire.Signal, **asked).value is False
    assert f"{name} to process {target.pid} of uid {ann.uid}" in helped.log.read_text()


def test_another_user_s_process_is_not(
    helped: Helped, ann: User, users: dict[str, User], holders: Holders
) -> None:
    target = holders.of(users["bob"])
    said = helped.refused(wire.Signal, **who(target), uid=ann.uid, signal="SIGKILL")
    assert f"is not uid {ann.uid}'s alone" in said and lives(target)
    assert said in helped.log.read_text()


def test_nor_one_that_has_several_uids(helped: Helped, ann: User, holders: Holders) -> None:
    pid = os.fork()
    if pid == 0:
        os.setresuid(ann.uid, ann.uid, 0)
        signal.pause()
        os._exit(0)
    try:
        eventually(lambda: str(ann.uid) in Path(f"/proc/{pid}/status").read_text())
        start = root_helper.processes.start_of(pid)
        said = helped.refused(wire.Signal, pid=pid, start=start, uid=ann.uid, signal="SIGKILL")
        assert "alone" in said
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.mark.parametrize("name", ["nvidia-cuda-mps-server", "nv-hostengine", "dcgmi"])
def test_nor_a_part_of_the_driver(helped: Helped, ann: User, holders: Holders, name: str) -> None:
    target = holders.start(ann.uid, name=name)
    said = helped.refused(wire.Signal, **who(target), uid=ann.uid, signal="SIGKILL")
    assert "part of the driver" in said and lives(target)


@pytest.mark.parametrize("way", ["called", "own", "writable", "place", "mounted"])
def test_whoever_only_takes_such_a_name_is_signalled(
    helped: Helped, ann: User, holders: Holders, way: str
) -> None:
    """A name, a file, a mount of one's own: only root's file in root's place counts."""
    place = holders.place / f"forged-{way}"
    place.mkdir()
    program = place / "nvidia-forged"
    if way == "called":
        program.symlink_to(holders.program)
    else:
        shutil.copy(holders.program, program)
    if way == "own":
        os.chown(program, ann.uid, ann.gid)
    elif way == "writable":
        program.chmod(0o775)
    elif way == "place":
        os.chown(place, ann.uid, ann.gid)
    command: list[Any] = [program, holders.cuda]
    if way == "mounted":
        os.chown(program, ann.uid, ann.gid)
        user = f"setpriv --reuid={ann.uid} --regid={ann.gid} --clear-groups"
        mount = f'mount --bind {holders.program} "$1"; exec {user} "$@"'
        command = ["unshare", "--mount", "sh", "-ec", mount, "sh", *command]
    target = holders.run(ann.uid, command, root=way == "mounted")
    assert root_helper.processes.command(target.pid) == "nvidia-forged"
    assert helped.ask(wire.Look, **who(target)).value["driver"] is False
    answer = helped.ask(wire.Signal, **who(target), uid=ann.uid, signal="SIGKILL")
    assert (answer.value, answer.error) == (True, None)


def test_a_part_of_the_driver_that_was_replaced_on_disk_is_one(
    helped: Helped, ann: User, holders: Holders
) -> None:
    target = holders.start(ann.uid, name="nvidia-upgraded")
    (holders.place / "nvidia-upgraded").unlink()
    said = helped.refused(wire.Signal, **who(target), uid=ann.uid, signal="SIGKILL")
    assert "part of the driver" in said and lives(target)


def test_a_program_of_one_s_own_that_has_a_screen_open_is_signalled(
    inner: root_helper.Helper, ann: User, holders: Holders, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen, own = holders.place / "card1", holders.place / "own-program"
    screen.touch()
    shutil.copy(holders.program, own)
    os.chown(own, ann.uid, ann.gid)
    monkeypatch.setattr(root_helper, "SCREENS", (str(screen),))
    target = holders.run(ann.uid, [own, holders.cuda, screen])
    assert inner._signal(kill(target, ann.uid))


@pytest.mark.parametrize("path", ["/dev/nvidia-modeset", "/dev/dri/renderD128"])
def test_what_everybody_may_open_is_no_screen(path: str) -> None:
    assert not path.startswith(root_helper.SCREENS)


def test_nor_one_without_cuda(helped: Helped, ann: User, holders: Holders) -> None:
    target = holders.start(ann.uid, cuda=False)
    said = helped.refused(wire.Signal, **who(target), uid=ann.uid, signal="SIGKILL")
    assert "has no CUDA" in said and lives(target)


def kill(target: subprocess.Popen[bytes], uid: int) -> wire.Signal:
    return wire.Signal(id=1, **who(target), uid=uid, signal="SIGKILL")


def test_nor_one_that_draws_on_a_screen(
    inner: root_helper.Helper, ann: User, holders: Holders, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = holders.place / "card0"
    screen.touch()
    monkeypatch.setattr(root_helper, "SCREENS", (str(screen),))
    target = holders.start(ann.uid, screen)
    with pytest.raises(root_helper.Refused, match="draws on a screen"):
        inner._signal(kill(target, ann.uid))
    assert lives(target)


def test_nor_the_first_process_nor_our_own(
    inner: root_helper.Helper, ann: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if they were a user's, as in a container."""
    monkeypatch.setattr(root_helper, "_spared", lambda pid, uid: None)
    monkeypatch.setattr(root_helper.signal, "pidfd_send_signal", lambda *_: pytest.fail("sent"))
    for pid in (1, os.getpid(), os.getppid()):
        start = root_helper.processes.start_of(pid) or 0
        ask = wire.Signal(id=1, pid=pid, start=start, uid=ann.uid, signal="SIGKILL")
        with pytest.raises(root_helper.Refused, match="never signalled"):
            inner._signal(ask)


def test_signals_are_counted(
    inner: root_helper.Helper, ann: User, holders: Holders, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = holders.of(ann)
    sent: list[int] = []
    monkeypatch.setattr(root_helper.signal, "pidfd_send_signal", lambda *it: sent.append(it[1]))
    made = inner
    now = made._counted_at
    made.clock = lambda: now
    for _ in range(root_helper.SIGNALS_AT_ONCE):
        assert made._signal(kill(target, ann.uid))
    with pytest.raises(root_helper.Refused, match="too many signals"):
        made._signal(kill(target, ann.uid))
    now += 1 / root_helper.SIGNALS_A_SECOND
    assert made._signal(kill(target, ann.uid))
    assert len(sent) == root_helper.SIGNALS_AT_ONCE + 1
    now += 10**6
    for _ in range(root_helper.SIGNALS_AT_ONCE):
        assert made._signal(kill(target, ann.uid))
    with pytest.raises(root_helper.Refused):
        made._signal(kill(target, ann.uid))


# -- messages --------------------------------------------------------------------------------------


GOOD: dict[str, Any] = {"type": "Mps", "id": 1, "verb": "pid", "uid": 54321, "device": GPU}


@pytest.mark.parametrize(
    "change",
    [
        {"type": "Shell"},
        {"type": None},
        {"id": -1},
        {"id": "1"},
        {"id": 1.0},
        {"verb": "exec"},
        {"uid": -1},
        {"uid": 2**32 - 1},
        {"uid": "0"},
        {"uid": True},
        {"device": "0"},
        {"device": "GPU-0"},
        {"device": GPU + "\n"},
        {"device": GPU.upper()},
        {"device": f"{GPU},{GPU}"},
        {"device": "../../etc"},
        {"program": "/bin/sh"},
        {"room": "/tmp"},
        {"type": "MpsSay", "command": "start_server -uid 0", "verb": ...},
        {"type": "MpsSay", "command": "get_server_list\nquit", "verb": ...},
        {"type": "MpsSay", "command": "quit", "verb": ...},
        {"type": "MpsSay", "command": "quit -t 100", "verb": ...},
        {"type": "MpsSay", "command": "get_client_list ١", "verb": ...},
        {"type": "MpsSay", "command": "set_default_device_pinned_mem_limit 1 5M", "verb": ...},
        {"type": "MpsLog", "name": "../control.log", "verb": ...},
        {"type": "MpsLog", "name": "/etc/shadow", "verb": ...},
        {"type": "Signal", "pid": 0, "start": 1, "signal": "SIGTERM", "device": ..., "verb": ...},
        {"type": "Signal", "pid": -1, "start": 1, "signal": "SIGTERM", "device": ..., "verb": ...},
        {"type": "Signal", "pid": 5, "start": 1, "signal": "SIGSTOP", "device": ..., "verb": ...},
        {"type": "Signal", "pid": 5, "start": 1, "signal": 9, "device": ..., "verb": ...},
        {"type": "SetMode", "mode": "prohibited", "expected": "default", "uid": ..., "verb": ...},
        {"type": "SetMode", "mode": "default", "expected": "no", "uid": ..., "verb": ...},
    ],
    ids=str,
)
def test_what_is_no_question_ends_the_connection(
    inner: root_helper.Helper,
    lines: tuple[socket.socket, socket.socket],
    change: dict[str, Any],
) -> None:
    question = {name: it for name, it in {**GOOD, **change}.items() if it is not ...}
    lines[0].send(msgspec.json.encode(question))
    lines[0].shutdown(socket.SHUT_WR)
    with pytest.raises(root_helper.Hostile):
        inner.serve()


@pytest.mark.parametrize(
    "data",
    [
        b" " * (wire.MOST_ASKED + 1),
        msgspec.json.encode(GOOD) + b" " * wire.MOST_ASKED,
        b"{",
        b"\x00",
        b"\xff" * 100,
        b"[" * 1000,
        b"null",
        msgspec.json.encode([GOOD]),
    ],
    ids=range(8),
)
def test_nor_is_what_is_too_long_or_no_json(
    inner: root_helper.Helper, lines: tuple[socket.socket, socket.socket], data: bytes
) -> None:
    lines[0].send(data)
    lines[0].shutdown(socket.SHUT_WR)
    with pytest.raises(root_helper.Hostile):
        inner.serve()


def test_nor_one_that_brings_descriptors(helped: Helped) -> None:
    with Path(os.devnull).open("rb") as file:
        helped.send(msgspec.json.encode(wire.Hello(id=1)), [file.fileno()])
    assert helped.status() == 3
    assert "the connection is ended" in helped.log.read_text()


def test_a_good_question_is_one(helped: Helped) -> None:
    """What the ones above are changed from."""
    helped.send(msgspec.json.encode(GOOD))
    answer, _ = helped.receive()
    assert (answer.id, answer.value, answer.error) == (1, None, None)


def test_it_ends_with_the_broker_and_leaves_the_daemons(helped: Helped, ann: User) -> None:
    whose = daemon_of(helped, ann)
    pid = helped.ask(wire.Mps, verb="pid", **whose).value
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        helped.process.send_signal(number)
    assert helped.ask(wire.Hello).error is None, "signals are the broker's to obey"
    helped.sock.close()
    assert helped.status() == 0
    assert Path(f"/proc/{pid}").exists()


def test_what_is_killed_with_it_is_the_helper_alone(room: Path, program: str, ann: User) -> None:
    first = Helped(room, program)
    whose = daemon_of(first, ann)
    pid = first.ask(wire.Mps, verb="pid", **whose).value
    first.process.kill()
    first.status()
    first.close()
    second = Helped(room, program)
    try:
        assert second.ask(wire.Mps, verb="pid", **whose).value == pid
        assert second.ask(wire.MpsLeft).value == [[ann.uid, GPU]]
    finally:
        second.close()
        end_daemons(room)


def test_processes_that_hang_hold_up_only_their_user(
    room: Path,
    lines: tuple[socket.socket, socket.socket],
    ann: User,
    users: dict[str, User],
    holders: Holders,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their variables are in memory that never comes, as on a file system of their own making."""
    stuck, target, free = holders.of(ann), holders.of(ann), holders.of(users["bob"])
    go, read = threading.Event(), root_helper.processes.read

    def slow(path: str, most: int) -> bytes | None:
        if f"/{stuck.pid}/" in path:
            assert go.wait(60)
        return read(path, most)

    monkeypatch.setattr(root_helper.processes, "read", slow)
    monkeypatch.setattr(root_helper.processes.variables, "__defaults__", (slow,))
    rules = root_helper.Rules(room, "/bin/false", 1000, BROKER)
    serving = threading.Thread(target=root_helper.Helper(lines[1], rules).serve)
    serving.start()

    def look(number: int, process: subprocess.Popen[bytes]) -> None:
        lines[0].send(msgspec.json.encode(wire.Look(id=number, **who(process))))

    def told() -> wire.Answer:
        return msgspec.json.decode(lines[0].recv(wire.MOST_ANSWERED), type=wire.Answer)

    try:
        for number in range(root_helper.MOST_FOR_ONE + 1):
            look(number, stuck)
        refused = told()
        assert (refused.id, refused.kind) == (root_helper.MOST_FOR_ONE, "refused")
        look(99, free)
        answer = told()
        assert (answer.id, answer.value["cuda"]) == (99, True)
        ask = wire.Signal(id=100, **who(target), uid=ann.uid, signal="SIGKILL")
        lines[0].send(msgspec.json.encode(ask))
        answer = told()
        assert (answer.id, answer.value) == (100, True), "look-ups are not in a signal's way"
    finally:
        go.set()
        for _ in range(root_helper.MOST_FOR_ONE):
            told()
        lines[0].shutdown(socket.SHUT_WR)
        serving.join(60)


def test_so_much_of_one_kind_is_not_in_another_s_way(
    inner: root_helper.Helper,
    lines: tuple[socket.socket, socket.socket],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of all users together, too: somebody may have thousands of uids."""
    monkeypatch.setattr(root_helper, "MOST_AT_ONCE", 3)
    go = threading.Event()
    look = wire.Look(id=1, pid=1, start=0)
    log = wire.MpsLog(id=2, uid=5000, device=GPU, name="control.log")
    try:
        for uid in range(5000, 5003):
            inner._beside(uid, look, go.wait)
        with pytest.raises(root_helper.Refused, match="under way"):
            inner._beside(5003, look, go.wait)
        inner._beside(5003, log, lambda: "done")
        assert msgspec.json.decode(lines[0].recv(wire.MOST_ANSWERED))["value"] == "done"
    finally:
        go.set()
    for _ in range(3):
        lines[0].recv(wire.MOST_ANSWERED)
