"""A host daemon for tests, and real Unix users that call it.

The users are made and removed by the tests, which need root for that. What a user does happens in a
forked child of the test that has become that user for good: the interpreter itself may lie where
only root can read it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest

from genv_jupyter.api import rendezvous
from genv_jupyter.api.client import Client
from genv_jupyter.errors import GpuError

# Here, since a child would import it only when it is no longer allowed to.
from genv_jupyter.isolation.smi import report  # noqa: F401

T = TypeVar("T")
READY_SECONDS = 30.0


class User(NamedTuple):
    """A Unix user that was made for the tests."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]

    @property
    def key(self) -> str:
        return f"local:{self.uid}"


def as_user(user: User | None, call: Callable[[], T]) -> T:
    """Run something as a user, in a child; what it returns or raises comes back."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read)
            if user is not None:
                os.setgroups(user.groups)
                os.setresgid(user.gid, user.gid, user.gid)
                os.setresuid(user.uid, user.uid, user.uid)
            try:
                answer: tuple[bool, Any] = (True, call())
            except Exception as error:
                error.add_note(traceback.format_exc())
                answer = (False, error)
            with os.fdopen(write, "wb") as file:
                pickle.dump(answer, file)
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        data = file.read()
    os.waitpid(pid, 0)
    assert data, "the child ended without an answer"
    well, value = pickle.loads(data)
    if not well:
        raise value
    return value  # type: ignore[no-any-return]


_marks = ("".join(it) for it in itertools.product("abcdefghij", repeat=3))


def make_users() -> Iterator[dict[str, User]]:
    """Make three ordinary users and an administrator; ``ann`` and ``bob`` are in one group."""
    if os.getuid() != 0:
        pytest.skip("NOT TESTED: several users of one host; making them needs root")
    # A process of theirs that has not ended yet keeps an account: the next ones have other names.
    mark = f"gjt{os.getpid()}{next(_marks)}"
    group, admins = f"{mark}lab", f"{mark}admins"
    names = {"ann": group, "bob": group, "cat": None, "adm": admins}
    made: list[str] = []
    groups: list[str] = []
    try:
        for name in (group, admins):
            subprocess.run(["groupadd", name], check=True)
            groups.append(name)
        users = {}
        for name, extra in names.items():
            command = ["useradd", "--no-create-home", "--shell", "/usr/sbin/nologin"]
            command += ["--groups", extra] if extra else []
            subprocess.run([*command, f"{mark}{name}"], check=True)
            made.append(f"{mark}{name}")
            users[name] = look_up(f"{mark}{name}")
        yield users
    finally:
        for name in made:
            subprocess.run(["userdel", "--force", name], check=False, stderr=subprocess.DEVNULL)
        for name in groups:
            subprocess.run(["groupdel", name], check=False, stderr=subprocess.DEVNULL)


def look_up(name: str) -> User:
    """Return a user as the host knows it now."""
    import pwd

    entry = pwd.getpwnam(name)
    groups = tuple(os.getgrouplist(name, entry.pw_gid))
    return User(name, entry.pw_uid, entry.pw_gid, groups)


def unprivileged(user: User) -> list[str]:
    """Return the words before a command that make it the user's own.

    It may still read files, since the interpreter may lie where only root can read it; that is not
    enough to look into anybody's process.
    """
    program = shutil.which("setpriv")
    if program is None:
        pytest.skip("NOT TESTED: a daemon that is not root; setpriv (util-linux) is not there")
    capability = "+dac_read_search"
    ids = [f"--reuid={user.uid}", f"--regid={user.gid}", "--clear-groups"]
    return [program, *ids, f"--inh-caps={capability}", f"--ambient-caps={capability}"]


class Daemon:
    """A host daemon in a directory of its own, with simulated devices."""

    def __init__(self, top: Path, spec: str = "2x24GiB", *, user: User | None = None) -> None:
        self.top = top
        self.spec = spec
        self.user = user
        top.mkdir(mode=0o755)
        if user is not None:  # as systemd's RuntimeDirectory= and StateDirectory= do
            for name, mode in (("run", 0o755), ("state", 0o700)):
                (top / name).mkdir(mode=mode)
                os.chown(top / name, user.uid, user.gid)
        self.socket = top / "run" / "broker.sock"
        self.hub_socket = top / "run" / "hub" / "hub.sock"
        self.state = top / "state"
        self.log = top / "daemon.log"
        self.settings = top / "jupyter_genv_config.py"
        self.lines: tuple[str, ...] = ()
        self.settings.write_text("")
        self.settings.chmod(0o644)
        self.process: subprocess.Popen[bytes] | None = None

    def configure(self, *lines: str) -> None:
        """Write its configuration, after the lines that it was made with."""
        lines = (*self.lines, *lines)
        self.settings.write_text("".join(f"{line}\n" for line in lines))

    def start(self) -> None:
        """Start it and wait until it serves."""
        environ = {**os.environ, "GENV_JUPYTER_SIMULATE": self.spec}
        for name in ("GENV_JUPYTER_HOST_SOCKET", "GENV_JUPYTER_HOME"):
            environ.pop(name, None)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command(), env=environ, stderr=log)
        deadline = time.monotonic() + READY_SECONDS
        while not self._serves():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)

    def command(self) -> list[str]:
        """Return what starts it."""
        command = [sys.executable, "-m", "genv_jupyter.broker", "--host"]
        command += ["--config", str(self.settings), "--socket", str(self.socket)]
        before = [] if self.user is None else unprivileged(self.user)
        return [*before, *command, "--state", str(self.state)]

    def served_by(self, pid: int) -> bool:
        """Say whether the broker of that pid is the one that was started."""
        return pid == self.pid

    def _serves(self) -> bool:
        try:
            return self.served_by(Client(start=False).health().pid)
        except GpuError:
            return False

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def kill(self) -> None:
        """End it as a crash does."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """End it in good order; return its status."""
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(15)
            self.process.kill()
        return self.process.wait()


D = TypeVar("D", bound=Daemon)


@contextlib.contextmanager
def serving(
    monkeypatch: pytest.MonkeyPatch, *lines: str, kind: type[D] = Daemon, **more: Any
) -> Iterator[D]:
    """A running daemon that this process and its children find as that of their host.

    Not in pytest's own directory: it keeps all but its user out, and so would the daemon's.
    """
    with tempfile.TemporaryDirectory(prefix="genv-jupyter-host-") as place:
        Path(place).chmod(0o755)
        daemon = kind(Path(place, "host"), **more)
        daemon.lines = lines
        daemon.configure()
        monkeypatch.setenv("GENV_JUPYTER_HOST_SOCKET", str(daemon.socket))
        for name in ("GENV_JUPYTER_HOME", "GENV_JUPYTER_SIMULATE", "GENV_JUPYTER_SOCKET"):
            monkeypatch.delenv(name, raising=False)
        assert rendezvous.address() == str(daemon.socket)
        try:
            daemon.start()
            yield daemon
        finally:
            daemon.stop()
