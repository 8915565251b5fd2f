"""The root process of a host's daemon: it starts the broker as an ordinary user, and the helper.

It reads nothing that anybody else wrote, neither a socket nor a configuration, but what the broker
tells systemd: a few words, letter by letter (``relay``). The broker is a fresh program of the
user that it is to run as, with no right of root's; the helper goes on in a fork of this process. A
helper that has ended is replaced; when the broker has ended, all of it has.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from genv_jupyter.isolation.mps_runner import PROGRAM
from genv_jupyter.rootd.helper import RESERVED, Rules, run, say
from genv_jupyter.rootd.relay import Relay

SOCKET = Path("/run/genv-jupyter/broker.sock")
STATE = Path("/var/lib/genv-jupyter")
ROOM = Path("/run/genv-jupyter-mps")
SHELF = Path("/var/lib/genv-jupyter-bin")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0
"""Seconds until a helper that has ended is replaced; after each end twice as long."""

QUIET = 300.0
"""Seconds without an end after which the next one is the first again."""

_OURS = {signal.SIGCHLD, signal.SIGIO}
_SIGNALS = {*_OURS, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
_HELPERS = ("PATH", "LD_LIBRARY_PATH", "LANG")


class Unsafe(Exception):
    """Something is not as root must have it; the text says what."""


def main(
    *,
    name: str,
    arguments: Sequence[str],
    places: Sequence[tuple[Path, int]],
    room: Path = ROOM,
    program: Path | None = None,
    lowest_uid: int = 1000,
    hub: Path | None = None,
    address: Path = SOCKET,
    shelf: Path = SHELF,
) -> int:
    """Start broker and helper, and stay until the broker has ended; return an exit status.

    Parameters
    ----------
    name
        The user that the broker runs as.
    arguments
        What the broker is called with.
    places
        Directories that the broker gets, with their modes: made where they are not there.
    room
        Root's directory for the MPS daemons of users.
    program
        NVIDIA's MPS control program; looked for where programs of the system are by default.
    lowest_uid
        The first uid of a person.
    hub
        Where to listen for users of a JupyterHub, in a directory of root's.
    address
        Where the broker listens for users of the host: the environments' ``nvidia-smi`` asks there.
    shelf
        Root's directory for that, where no program may be run from ``room``.
    """
    os.umask(0o077)
    try:
        user = _user(name)
        room = own(room, 0o711)  # users get through it to their own, and see nothing else
        rules = Rules(room, _program(program), lowest_uid, user.pw_uid)
        for place, mode in places:
            _give(place, user, mode)
        if hub is not None:
            arguments = [*arguments, "--hub-listening", str(_listen(hub.absolute()))]
        arguments = [*arguments, "--programs", _laid(address, room / "bin", shelf)]
    except (Unsafe, OSError) as error:
        print(f"Error: the GPU broker of this host cannot start: {error}.", file=sys.stderr)
        return 1
    return Parent(user, arguments, rules).stay()


class Parent:
    """Looks after two children."""

    def __init__(self, user: pwd.struct_passwd, arguments: Sequence[str], rules: Rules) -> None:
        self.user = user
        self.arguments = arguments
        self.rules = rules
        self.helper: int | None = None
        self.next_at = self.started_at = float("-inf")
        self.pause = FIRST_PAUSE
        self.relay = Relay()
        self.line, self.brokers_line = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def stay(self) -> int:
        """Stay until the broker has ended; return its status."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        broker = self._fork(self._become_broker)
        self.brokers_line.close()
        self.relay.brokers.close()
        while True:
            if self.helper is None and time.monotonic() >= self.next_at:
                self._start_helper()
            pause = 3600.0 if self.helper else max(0.0, self.next_at - time.monotonic())
            got = signal.sigtimedwait(_SIGNALS, 0.0 if self.relay.pass_on() else pause)
            if got is not None and got.si_signo not in _OURS:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(broker, got.si_signo)
            for pid, status in _ended():
                if pid == broker:
                    self.relay.pass_on()
                    return status if status >= 0 else 128 - status
                if pid == self.helper:
                    self._helper_ended(status)

    def _start_helper(self) -> None:
        """Start a helper, and hand the other end of its line to the broker."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            self.started_at = time.monotonic()
            self.helper = self._fork(lambda: self._become_helper(ours))
            with contextlib.suppress(OSError):  # the broker has ended: that is seen next
                socket.send_fds(self.line, [b"helper"], [theirs.fileno()], socket.MSG_DONTWAIT)

    def _helper_ended(self, status: int) -> None:
        now = time.monotonic()
        if now - self.started_at > QUIET:
            self.pause = FIRST_PAUSE
        say(f"ended with status {status}; another is started in {self.pause:g} s")
        self.helper, self.next_at = None, now + self.pause
        self.pause = min(2 * self.pause, LONGEST_PAUSE)

    def _fork(self, become: Callable[[], int]) -> int:
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            return pid
        status = 70
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            status = become()
        except BaseException as error:  # nothing of the parent's may go on here
            say(f"what runs as uid {os.getuid()} cannot be started: {error}")
        finally:
            os._exit(status)

    def _become_helper(self, sock: socket.socket) -> int:
        """Keep nothing but that line and standard error, and nobody's variables."""
        kept = {0, 1, 2, sock.fileno()}
        for number in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208
            if number not in kept:
                with contextlib.suppress(OSError):  # the one that listed them
                    os.close(number)
        variables = {name: os.environ[name] for name in _HELPERS if name in os.environ}
        os.environ.clear()
        os.environ.update(variables | {"PATH": PATH})
        os.chdir("/")
        return run(sock, self.rules)

    def _become_broker(self) -> int:
        """Give up every right, and be another program."""
        user, line = self.user, self.brokers_line
        os.initgroups(user.pw_name, user.pw_gid)
        os.setresgid(user.pw_gid, user.pw_gid, user.pw_gid)
        os.setresuid(user.pw_uid, user.pw_uid, user.pw_uid)
        rights = Path("/proc/self/status").read_text()
        held = [it.split()[1] for it in rights.splitlines() if it.startswith(("CapPrm", "CapEff"))]
        if 0 in os.getresuid() + os.getresgid() or any(int(it, 16) for it in held):
            raise Unsafe("the broker would keep rights of root's")
        for name in ("LISTEN_PID", "WATCHDOG_PID"):
            if os.environ.get(name) == str(os.getppid()):  # systemd means whoever serves
                os.environ[name] = str(os.getpid())
        self.relay.hand_over()
        os.environ.update(HOME=user.pw_dir, USER=user.pw_name, LOGNAME=user.pw_name)
        os.set_inheritable(line.fileno(), True)
        command = [sys.executable, "-P", "-m", "genv_jupyter.broker", "--host", *self.arguments]
        os.execv(sys.executable, [*command, "--helper", str(line.fileno())])


def _ended() -> list[tuple[int, int]]:
    """Return the children that have ended, with their statuses (of a signal: negative)."""
    found = []
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            found.append((ended[0], os.waitstatus_to_exitcode(ended[1])))
    return found


# -- what root must have right before it starts anything -------------------------------------------


def _user(name: str) -> pwd.struct_passwd:
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        raise Unsafe(f"there is no user {name!r}: useradd --system {name}") from None
    if user.pw_uid in (0, *RESERVED) or user.pw_gid == 0:
        raise Unsafe(f"the broker is not to run as {name} (uid {user.pw_uid}, gid {user.pw_gid})")
    return user


def _program(given: Path | None) -> str | None:
    """Return the program of MPS, root's alone; ``None`` where there is none."""
    found = shutil.which(PROGRAM, path=PATH) if given is None else str(given.absolute())
    if found is None:
        return None
    path = Path(found).resolve()
    if not path.is_file():
        raise Unsafe(f"{path} is no program")
    _roots(path, *path.parents)
    return str(path)


def own(place: Path, mode: int) -> Path:
    """Make a directory that is root's, in ones that are.

    Raises
    ------
    Unsafe
        Somebody else has a hand in it.
    """
    place = place.absolute()
    _roots(*place.parents)
    with contextlib.suppress(FileExistsError):
        place.mkdir()
    _roots(place)
    place.chmod(mode)
    return place


def _laid(address: Path, *places: Path) -> str:
    """Have ``nvidia-smi`` of environments written, in a process of its own; return its directory.

    That is out of the broker's hands, since it is first in the PATH of users. None (``""``) is no
    reason not to serve.
    """
    words = map(str, (address, *places))
    command = [sys.executable, "-P", "-m", "genv_jupyter.rootd.shelf", *words]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout.strip()


def _roots(*paths: Path) -> None:
    """See that nobody but root may put something in the place of these."""
    for path in paths:
        found = path.lstat()
        sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
        writable = found.st_mode & 0o022 and not sticky
        if found.st_uid != 0 or writable or stat.S_ISLNK(found.st_mode):
            raise Unsafe(f"{path} is not root's alone")


def _give(place: Path, user: pwd.struct_passwd, mode: int) -> None:
    """Give a directory to the broker: one of root's for nothing else, or its own already.

    systemd makes sockets there as root, whose are the locks beside them; root's broker a ``bin``.
    """
    place = place.absolute()
    if len(place.parts) < 3:  # /, /run, /tmp: all of the host is in these
        raise Unsafe(f"{place} would be {user.pw_name}'s: choose a directory below it")
    _roots(*place.parents)
    with contextlib.suppress(FileExistsError):
        place.mkdir(mode=0o700)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(place, flags)
    try:
        found = os.fstat(descriptor)
        if found.st_uid not in (0, user.pw_uid):
            raise Unsafe(f"{place} belongs to uid {found.st_uid}")
        if found.st_uid == 0:  # its own is the broker's to look after
            for name in os.listdir(descriptor):  # noqa: PTH208 (what was opened)
                there = os.lstat(name, dir_fd=descriptor)
                known = stat.S_ISSOCK(there.st_mode) or name == "bin" or name.endswith(".lock")
                if there.st_uid != user.pw_uid and not known:
                    raise Unsafe(f"{place} would be {user.pw_name}'s, and has {name} in it")
            os.fchmod(descriptor, mode)
            os.fchown(descriptor, user.pw_uid, user.pw_gid)
    finally:
        os.close(descriptor)


def _listen(path: Path) -> int:
    """Listen for users of a Hub in a directory of root's; return the broker's descriptor.

    It is mounted into containers: if the broker could rename it, anything of the host could be.
    """
    own(path.parent, 0o755)
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    lock = os.open(path.with_name(f"{path.name}.lock"), flags, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held until this process ends
    except BlockingIOError:
        raise Unsafe(f"another one listens at {path}") from None
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise Unsafe(f"{path} is there, and is no socket")
        path.unlink()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.bind(str(path))
    path.chmod(0o666)
    sock.listen(1024)
    os.set_inheritable(sock.fileno(), True)
    return sock.detach()
