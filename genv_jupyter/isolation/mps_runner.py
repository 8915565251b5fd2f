"""NVIDIA's MPS control program, run as the user whose daemon it is.

Everything that needs root for another user's daemon is here, and the root helper
(``genv_jupyter.rootd``) runs this very code: the directories of a daemon, the program itself, and
what is read of its logs. Below a daemon's directory everything is its user's: nothing there is
believed, followed, or waited for.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import pwd
import selectors
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TypedDict

from genv_jupyter.isolation import evidence, processes

PROGRAM = "nvidia-cuda-mps-control"
ASK_SECONDS = 2.0
START_SECONDS = 5.0
KILL_SECONDS = 2.0
MOST_SAID = 16 * 2**10
"""Bytes of an answer that are read: a user may have put anything behind their own socket. In JSON
each may be six, and all of them go into one answer of the root helper's."""

_LONGEST_PATH = 107
"""``sun_path`` is 108 bytes with its NUL."""
_LONGEST_NAME = "control_privileged"
_KEPT_VARIABLES = ("PATH", "LD_LIBRARY_PATH")


class MpsError(Exception):
    """MPS cannot be used; the text is a sentence that says why."""


class MpsHangs(MpsError):
    """The daemon did not answer in time."""


class MpsGone(MpsError):
    """No daemon answers."""


class MpsUnknown(MpsError):
    """This version of MPS does not know the command."""


class MpsBusy(MpsError):
    """Processes still work through it."""


class _User(TypedDict, total=False):
    user: int
    group: int
    extra_groups: list[int]


def name_of(device: str, uid: int) -> str:
    """Return the name of a daemon's directory: short, for sockets have short paths."""
    return hashlib.sha256(f"{device} {uid}".encode()).hexdigest()[:8]


class Runner:
    """Runs the program of one daemon.

    Parameters
    ----------
    directory
        Where the daemon's sockets and logs are: what clients are given as
        ``CUDA_MPS_PIPE_DIRECTORY``.
    device
        UUID of the device.
    program
        The program of the daemon, which is its front end as well.
    uid
        As whom it runs; another one than ours only where we are root.
    scope
        What is put before the command that starts the daemon.
    """

    def __init__(
        self, directory: Path, device: str, program: str, uid: int, scope: tuple[str, ...] = ()
    ) -> None:
        self.directory = directory
        self.device = device
        self.program = program
        self.uid = uid
        self.scope = scope

    @property
    def logs(self) -> Path:
        """The directory of ``control.log`` and ``server.log``.

        Not ``log``: the daemon makes a pipe of that name beside its sockets, and without it logs
        nothing.
        """
        return self.directory / "logs"

    def variables(self) -> dict[str, str]:
        """Return the variables of the daemon and of its front end: nothing of ours leaks in.

        Nor ``CUDA_MPS_PROTOCOL_VERSION``, without which new drivers too speak the commands of old.
        """
        kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        return kept | {
            "CUDA_VISIBLE_DEVICES": self.device,
            "CUDA_MPS_PIPE_DIRECTORY": str(self.directory),
            "CUDA_MPS_LOG_DIRECTORY": str(self.logs),
            "LC_ALL": "C",
        }

    # -- life -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the daemon, unless it runs.

        Raises
        ------
        MpsError
            It cannot be started; the reason is said.
        """
        self.prepare()
        with self.alone():
            if self.pid() is None:
                self._start()

    def _start(self) -> None:
        command = [self.program, "-d"]
        if self.scope:  # which is root's to make: within it, the user is taken on
            group = self._user()["group"]
            ids = [f"--reuid={self.uid}", f"--regid={group}", "--clear-groups"]
            command = [*self.scope, "setpriv", *ids, "--no-new-privs", "--", *command]
        status, said = self._run(command, None, START_SECONDS, root=bool(self.scope))
        if status != 0:
            raise MpsError(
                f"{self.program} ended with status {status}: {said or self.last_words()}"
            )
        if self.pid() is None:
            raise MpsGone(f"{self.program} has started and does not listen: {self.last_words()}")

    def prepare(self) -> None:
        """Make the directories, or see that those that are there are right.

        Raises
        ------
        MpsError
            They cannot be used.
        """
        longest = self.directory / _LONGEST_NAME
        if len(os.fsencode(longest)) > _LONGEST_PATH:
            raise MpsError(
                f"the path {self.directory} is too long for a socket of MPS "
                f"({_LONGEST_PATH} bytes): set GENV_JUPYTER_HOME to a shorter one"
            )
        try:
            self._make_room()
            # The daemon would make it itself, writable by everyone.
            if not os.path.lexists(self.directory):
                self._make()
            for directory in (self.directory, self.logs):
                found = directory.lstat()
                if not stat.S_ISDIR(found.st_mode) or found.st_uid != self.uid:
                    raise MpsError(f"{directory} is not a directory of {self._whose()}")
                if found.st_mode & 0o077:
                    raise MpsError(f"others may enter {directory}")
        except OSError as error:
            raise MpsError(f"its directory cannot be made: {error}") from error

    def _make_room(self) -> None:
        """Make the directory above: users must get through it, and see nothing of each other."""
        room = self.directory.parent
        if not room.is_dir():
            room.mkdir(mode=0o700, exist_ok=True)
            if os.getuid() == 0:
                room.chmod(0o711)

    def _make(self) -> None:
        """Make both directories, in one step: its user gets them when all of it is there."""
        made = Path(tempfile.mkdtemp(prefix=f"{self.directory.name}-", dir=self.directory.parent))
        try:
            (made / self.logs.name).mkdir(mode=0o700)
            if self.uid != os.getuid():
                group = self._user()["group"]
                os.chown(made / self.logs.name, self.uid, group)
                os.chown(made, self.uid, group)
            made.rename(self.directory)
        except OSError:
            shutil.rmtree(made, ignore_errors=True)
            if not self.directory.is_dir():  # nobody else has made it meanwhile
                raise

    def _whose(self) -> str:
        return "ours" if self.uid == os.getuid() else f"uid {self.uid}"

    def _user(self) -> _User:
        """Return as whom programs are run, where that is not us."""
        if self.uid == os.getuid():
            return {}
        try:
            group = pwd.getpwuid(self.uid).pw_gid
        except KeyError:  # without an account it has no group but its own
            group = self.uid
        return {"user": self.uid, "group": group, "extra_groups": []}

    def pid(self) -> int | None:
        """Return the pid of the daemon that listens in our directory; ``None`` without one.

        Asked of the socket itself: a daemon leaves its socket behind, and has no pid file.
        """
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.settimeout(ASK_SECONDS)
            try:
                sock.connect(os.fspath(self.directory / "control"))
            except OSError:
                return None
            pid, uid, _ = processes.peer(sock)
            return pid if self.trusts(uid) and self.still(pid, uid) else None

    def still(self, pid: int, uid: int) -> bool:
        """Say whether a process is a user's alone at this moment.

        A socket names whoever has listened, even when that one is dead and another has its pid.
        """
        return set(evidence.uids(pid) or ()) == {uid}

    def trusts(self, uid: int) -> bool:
        """Say whether a process of that uid may be the daemon."""
        return uid == self.uid

    def kill(self) -> None:
        """End a daemon that does not listen to words."""
        pid = self.pid()
        if pid is None:
            return
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        try:  # held, it is looked at anew: what is its user's alone its user could kill as well
            start = processes.start_of(pid)
            if start is None or not Runner.still(self, pid, self.uid):
                return
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        except ProcessLookupError:
            return
        finally:
            os.close(descriptor)
        deadline = time.monotonic() + KILL_SECONDS
        while processes.alive(pid, start) and time.monotonic() < deadline:
            time.sleep(0.01)

    def remove(self) -> None:
        """Remove what a daemon leaves, as its user: sockets and logs of nobody."""
        if self.uid == os.getuid():
            shutil.rmtree(self.directory, ignore_errors=True)
            return
        with contextlib.suppress(MpsError, OSError):  # what stays is taken as it is the next time
            # What is in there is removed by its user, so that it may be anything.
            self._run(["rm", "-rf", "--", str(self.directory)], None, START_SECONDS)
            self.directory.rmdir()

    # -- questions ------------------------------------------------------------------------------

    def ask(self, command: str, seconds: float = ASK_SECONDS) -> tuple[int, str]:
        """Send one command; return the front end's status and what was said.

        Raises
        ------
        MpsHangs
            It did not answer in time.
        MpsError
            There is no daemon, or no program.
        """
        with self.alone():
            return self._run([self.program], f"{command}\n", seconds)

    def log(self, name: str) -> BinaryIO:
        """Open ``control.log`` or ``server.log``, its user's: no link, nothing that waits.

        Raises
        ------
        OSError
            It cannot be had, or is not theirs.
        """
        plain = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        above = os.open(self.logs.parent, plain | os.O_DIRECTORY)
        try:
            logs = os.open(self.logs.name, plain | os.O_DIRECTORY, dir_fd=above)
            try:
                descriptor = os.open(name, plain, dir_fd=logs)
            finally:
                os.close(logs)
        finally:
            os.close(above)
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or not self.trusts(found.st_uid):
            os.close(descriptor)
            raise PermissionError(1, "it is no file of its user")
        return os.fdopen(descriptor, "rb")

    def last_words(self) -> str:
        """Return the last line of the daemon's log, without its time stamp."""
        try:
            with self.log("control.log") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - 4096))
                lines = log.read(4096).decode(errors="replace").strip().splitlines()
        except OSError as error:
            return f"no log ({error.strerror})"
        return lines[-1].partition("] ")[2] if lines else "an empty log"

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keep others of ours away, in other processes too.

        Of two daemons that start at once each may remove the other's socket; of two commands at
        once one was seen to get no answer, or none with the other's effect. The lock is beside the
        directory: in it, its user could hold it for ever.
        """
        if not os.path.lexists(self.directory):
            raise MpsGone("there is no MPS control daemon: No such file or directory")
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(self.directory.with_suffix(".lock"), flags, 0o600)
        except OSError as error:
            raise MpsGone(f"there is no MPS control daemon: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _run(
        self, command: list[str], said: str | None, seconds: float, *, root: bool = False
    ) -> tuple[int, str]:
        user = _User() if root else self._user()
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL if said is None else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=self.variables(),
                cwd="/",
                umask=0o077,
                start_new_session=True,
                **user,
            )
        except FileNotFoundError:
            raise MpsError(f"{command[0]} is not installed") from None
        except (OSError, subprocess.SubprocessError) as error:
            why = getattr(error, "strerror", None) or error
            raise MpsError(f"{command[0]} cannot be run as {self._whose()}: {why}") from error
        with process:
            try:
                answer = _converse(process, said, time.monotonic() + seconds)
                status = process.wait(max(0.0, seconds))
            except subprocess.TimeoutExpired:
                process.kill()
                raise MpsHangs(f"{command[0]} did not answer within {seconds:g} s") from None
        return status, " ".join(answer.decode(errors="replace").split())


def _converse(process: subprocess.Popen[bytes], said: str | None, until: float) -> bytes:
    """Say something to a program and hear it out, until a moment and up to a number of bytes."""
    assert process.stdout is not None
    if said is not None:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it did not want to hear it
            process.stdin.write(said.encode())
            process.stdin.close()
    heard = b""
    with selectors.DefaultSelector() as ready:
        ready.register(process.stdout, selectors.EVENT_READ)
        while len(heard) < MOST_SAID:
            if not ready.select(max(0.0, until - time.monotonic())):
                raise subprocess.TimeoutExpired(process.args, 0.0)
            data = os.read(process.stdout.fileno(), MOST_SAID)
            if not data:
                return heard
            heard += data
    process.kill()
    raise MpsError("what listens in its directory is no MPS daemon: it says too much")
