"""One NVIDIA MPS control daemon: started, asked, and ended through its own program.

A daemon serves one device of one user (facts of ``man nvidia-cuda-mps-control`` and of NVIDIA's
MPS guide): a fault reaches every client of a server, and clients of several uids wait for each
other. It runs as that user, in a directory of mode 0700 of that user: its control socket is 0666
whatever the umask, and everyone who reaches it may raise every limit.

MPS stops accidents, not intent: its limits are variables of the client, which may delete them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import re
import shutil
import socket
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TypedDict

from genv_jupyter.isolation.processes import peer

PROGRAM = "nvidia-cuda-mps-control"
ASK_SECONDS = 2.0
START_SECONDS = 5.0
MEBIBYTE = 2**20
"""``M`` of MPS is 2**20 bytes: its server logs 5120M as 0x140000000."""

_LONGEST_PATH = 107
"""``sun_path`` is 108 bytes with its NUL."""
_LONGEST_NAME = "control_privileged"
_KEPT_VARIABLES = ("PATH", "LD_LIBRARY_PATH")
_AMOUNT = re.compile(r"\d+[GM]")


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


class ControlDaemon:
    """The daemon of one device.

    Parameters
    ----------
    directory
        Where its sockets and logs are: what clients are given as ``CUDA_MPS_PIPE_DIRECTORY``.
    device
        UUID of the device.
    program
        The program of the daemon, which is its front end as well.
    uid
        As whom it runs; ours by default, another's only where we are root.
    """

    def __init__(
        self, directory: Path, device: str, program: str = PROGRAM, uid: int | None = None
    ) -> None:
        self.directory = directory
        self.device = device
        self.program = program
        self.uid = os.getuid() if uid is None else uid

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
        self._prepare()
        with self._alone():
            if self.pid() is None:
                self._start()

    def _start(self) -> None:
        status, said = self._run([self.program, "-d"], None, START_SECONDS)
        if status != 0:
            raise MpsError(
                f"{self.program} ended with status {status}: {said or self.last_words()}"
            )
        if self.pid() is None:
            raise MpsGone(f"{self.program} has started and does not listen: {self.last_words()}")

    def _prepare(self) -> None:
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
            pid, uid, _ = peer(sock)
            return pid if self._trusts(uid) else None

    def _trusts(self, uid: int) -> bool:
        return uid == self.uid

    def quit(self, seconds: int = 0) -> None:
        """End the daemon and its server; clients that are left lose their contexts.

        Raises
        ------
        MpsError
            It still runs.
        """
        # A server that did not end gracefully looks like no daemon at all: the next line knows.
        with contextlib.suppress(MpsGone):
            self.ask(f"quit -t {seconds}", seconds=seconds + ASK_SECONDS)
        if self.pid() is not None:
            raise MpsError("the daemon does not end")

    def last_words(self) -> str:
        """Return the last line of the daemon's log, without its time stamp."""
        try:
            with open_log(self.logs / "control.log") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - 4096))
                lines = log.read().decode(errors="replace").strip().splitlines()
        except OSError as error:
            return f"no log ({error.strerror})"
        return lines[-1].partition("] ")[2] if lines else "an empty log"

    # -- questions ------------------------------------------------------------------------------

    def healthy(self) -> bool:
        """Say whether the daemon answers."""
        try:
            return float(self.ask("get_default_active_thread_percentage")) > 0
        except (MpsError, ValueError):
            return False

    def servers(self) -> tuple[int, ...]:
        """Return the pids of its servers: at most one of ours."""
        return _pids(self.ask("get_server_list"))

    def clients(self) -> dict[int, int]:
        """Return the server of each client, both as pids."""
        return {
            client: server
            for server in self.servers()
            for client in _pids(self.ask(f"get_client_list {server}"))
        }

    def status(self, server: int) -> str | None:
        """Return the state of a server in the daemon's words; ``None``: this version tells none."""
        try:
            return self.ask(f"get_server_status {server}") or None
        except MpsUnknown:
            return None

    def ceiling(self) -> str | None:
        """Return the most memory that a client of the next server gets, as the daemon says it.

        From one GiB on it says whole GiB only, rounded down: 2861M is read back as ``2G``.
        """
        said = self.ask("get_default_device_pinned_mem_limit 0")
        return said if _AMOUNT.fullmatch(said) else None

    def set_ceiling(self, memory: int) -> None:
        """Limit the memory of every client that connects from now on, in bytes.

        Raises
        ------
        MpsError
            The daemon does not confirm it.
        """
        mebibytes = memory // MEBIBYTE
        amount = f"{mebibytes}M"
        self.ask(f"set_default_device_pinned_mem_limit 0 {amount}")
        for server in self.servers():
            self.ask(f"set_device_pinned_mem_limit {server} 0 {amount}")
        confirmed = self.ceiling()
        if confirmed not in (amount, f"{mebibytes // 1024}G"):
            raise MpsError(f"the daemon says {confirmed or 'no limit'} where {amount} was set")

    def terminate_client(self, client: int, server: int | None = None) -> bool:
        """Take a client's work off the device; say whether that was done.

        For a process that is about to be ended, never at an interrupt: its contexts are lost for
        good (error 810). ``server`` is the client's, where that is known.
        """
        server = server or self.clients().get(client)
        if server is None:
            return False
        return self.ask(f"terminate_client {server} {client}").endswith("0")

    def ask(self, command: str, seconds: float | None = None) -> str:
        """Send one command and return what is said.

        Raises
        ------
        MpsHangs
            It did not answer in time.
        MpsGone
            There is no daemon.
        MpsError
            It does not know the command.
        """
        with self._alone():
            status, said = self._run([self.program], f"{command}\n", seconds or ASK_SECONDS)
        if status != 0:
            raise MpsGone(said or "no MPS control daemon answers")
        if said.startswith("Unknown command"):
            raise MpsUnknown(f"this version of MPS does not know {command.split()[0]!r}")
        return said

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep others of ours away, in other processes too.

        Of two daemons that start at once each may remove the other's socket; of two commands at
        once one was seen to get no answer, or none with the other's effect.
        """
        try:
            descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError as error:
            raise MpsGone(f"there is no MPS control daemon: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _run(self, command: list[str], said: str | None, seconds: float) -> tuple[int, str]:
        try:
            done = subprocess.run(
                command,
                input=said,
                stdin=subprocess.DEVNULL if said is None else None,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=self.variables(),
                cwd="/",
                umask=0o077,
                start_new_session=True,
                **self._user(),
                timeout=seconds,
                text=True,
                errors="replace",
            )
        except subprocess.TimeoutExpired:
            raise MpsHangs(f"{command[0]} did not answer within {seconds:g} s") from None
        except FileNotFoundError:
            raise MpsError(f"{command[0]} is not installed") from None
        except (OSError, subprocess.SubprocessError) as error:
            why = getattr(error, "strerror", None) or error
            raise MpsError(f"{command[0]} cannot be run as {self._whose()}: {why}") from error
        return done.returncode, " ".join(done.stdout.split())


def _pids(said: str) -> tuple[int, ...]:
    """Read pids; a sentence in their place says that there are none."""
    return tuple(int(word) for word in said.split() if word.isdigit()) if said[:1].isdigit() else ()


def open_log(path: Path) -> BinaryIO:
    """Open a log of a daemon, which may be another user's: no link, and nothing that waits."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    return os.fdopen(descriptor, "rb")
