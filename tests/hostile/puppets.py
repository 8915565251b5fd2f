"""Processes that call the broker's socket as somebody else, in whatever namespaces.

Each is a child that has become a user for good and does what it is told, one thing after the
other: that is one caller, with one pid, for all that it asks.
"""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import os
import signal
import socket
import subprocess
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

from tests.integration.daemons import User

_NEW_USER, _NEW_PID, _NEW_MOUNTS = 0x10000000, 0x20000000, 0x00020000  # linux/sched.h
_PRIVATE = 1 << 14 | 1 << 18  # MS_REC | MS_PRIVATE
_DUMPABLE, _DIE_WITH_PARENT = 4, 1  # linux/prctl.h
_libc = ctypes.CDLL(None, use_errno=True)
TOKEN = "JUPYTERHUB_API_TOKEN"
Become = Callable[[], None]


class Said(NamedTuple):
    """Status and body of an answer; of one that goes on, its first line."""

    status: int
    body: bytes


class Puppet:
    """A process that acts as somebody.

    Parameters
    ----------
    become
        Called in the child, one after the other, before it obeys; one may fork on the way, as long
        as only one process goes on.
    """

    def __init__(self, *become: Become) -> None:
        self._mine, theirs = Pipe()
        self._child = os.fork()
        if self._child == 0:
            try:
                self._mine.close()
                _checked(_libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0))
                for one in become:
                    one()
                _obey(theirs)
            except EOFError:
                pass
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        theirs.close()
        self.pid = int(self._ask("pid"))
        """Its pid where it is; on the host another one, perhaps."""

    def call(
        self, method: str, path: str, body: bytes | None = None, query: dict[str, str] | None = None
    ) -> Said:
        """Call the broker's API, over the socket."""
        return Said(*self._ask("call", method, path, body, query or {}))

    def listen(self, server: str) -> None:
        """Open the event stream as a server would."""
        self._ask("listen", server)

    def heard(self, until: str) -> list[bytes]:
        """Return what came on the stream, up to a line in which something occurs; end it."""
        return list(self._ask("heard", until))

    def spawn(self) -> int:
        """Start a process of its own that does nothing; return its pid."""
        return int(self._ask("spawn"))

    def end(self, pid: int) -> None:
        """End a process that it has started."""
        self._ask("end", pid)

    def open(self, path: str) -> str:
        """Try to read a file, to write it and to list it; say what went well, or ``nothing``."""
        return str(self._ask("open", path))

    def close(self) -> None:
        """End it, and what it has started."""
        self._mine.send(("quit",))  # later children have our end of the pipe, too
        os.waitpid(self._child, 0)
        self._mine.close()

    def _ask(self, *words: Any) -> Any:
        self._mine.send(words)
        well, value = self._mine.recv()
        assert well, value
        return value


def become(user: User, *, login: bool = True) -> Become:
    """Be a user for good, with their groups."""

    def now() -> None:
        os.setgroups(user.groups if login else ())
        os.setresgid(user.gid, user.gid, user.gid)
        os.setresuid(user.uid, user.uid, user.uid)

    return now


def calling(path: Path, token: str | None) -> Become:
    """Call this socket from now on, with a token or with none."""

    def now() -> None:
        os.environ["GENV_JUPYTER_HOST_SOCKET"] = str(path)
        os.environ.pop(TOKEN, None)
        if token is not None:
            os.environ[TOKEN] = token

    return now


def root_of_a_container() -> None:
    """Be root in a user namespace of one's own: nobody but oneself on the host."""
    uid = os.getuid()
    _checked(_libc.prctl(_DUMPABLE, 1, 0, 0, 0))  # its own /proc files are root's otherwise
    _checked(_libc.unshare(_NEW_USER))
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
    assert os.getuid() == 0


def in_a_container() -> None:
    """Go on as a child in a pid namespace of its own, with its own ``/proc``."""
    _checked(_libc.unshare(_NEW_PID | _NEW_MOUNTS))
    _checked(_libc.mount(b"none", b"/", None, _PRIVATE, None))
    for _ in range(2):  # pid 1 is root's, and only waits
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            os._exit(0)
        _checked(_libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0))
        if os.getpid() == 1:
            _checked(_libc.mount(b"proc", b"/proc", b"proc", 0, None))


def _checked(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


# -- the other side -------------------------------------------------------------------------------


def _obey(orders: Connection) -> None:
    """Do what one is told, until nobody is there any more."""
    started: dict[int, subprocess.Popen[bytes]] = {}
    streams: list[http.client.HTTPResponse] = []
    verbs: dict[str, Callable[..., Any]] = {
        "pid": os.getpid,
        "call": _call,
        "listen": lambda server: streams.append(_listen(server)),
        "heard": lambda until: _heard(streams.pop(), until),
        "spawn": lambda: _spawn(started),
        "end": lambda pid: _end(started.pop(pid)),
        "open": _open,
    }
    try:
        while True:
            verb, *words = orders.recv()
            if verb == "quit":
                return
            try:
                orders.send((True, verbs[verb](*words)))
            except Exception:
                orders.send((False, traceback.format_exc()))
    finally:
        for process in started.values():
            _end(process)


def _answer(
    method: str, path: str, body: bytes | None, query: dict[str, str]
) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("broker")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(30)
    connection.sock.connect(os.environ["GENV_JUPYTER_HOST_SOCKET"])
    target = f"/v1/{path}" + (f"?{urlencode(query)}" if query else "")
    token = os.environ.get(TOKEN)
    headers = {"Connection": "close"}  # then the answer owns the socket
    if token is not None:
        headers["Authorization"] = f"token {token}"
    connection.request(method, target, body, headers)
    return connection.getresponse()


def _call(method: str, path: str, body: bytes | None, query: dict[str, str]) -> tuple[int, bytes]:
    with _answer(method, path, body, query) as answer:
        goes_on = answer.getheader("Transfer-Encoding") == "chunked"
        return answer.status, answer.readline() if goes_on else answer.read()


def _listen(server: str) -> http.client.HTTPResponse:
    return _answer("GET", "events", None, {"server": server})


def _heard(stream: http.client.HTTPResponse, until: str) -> list[bytes]:
    lines: list[bytes] = []
    with stream:
        while not lines or until.encode() not in lines[-1]:
            line = stream.readline()
            if not line:
                raise EOFError("the stream has ended")
            lines.append(line)
    return lines


def _spawn(started: dict[int, subprocess.Popen[bytes]]) -> int:
    process = subprocess.Popen(["sleep", "600"])
    started[process.pid] = process
    return process.pid


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _open(path: str) -> str:
    done = []
    for name, flags in (("read", os.O_RDONLY), ("write", os.O_WRONLY)):
        with contextlib.suppress(OSError):
            os.close(os.open(path, flags))
            done.append(name)
    with contextlib.suppress(OSError):
        os.listdir(path)  # noqa: PTH208 (nothing but whether it may)
        done.append("list")
    with contextlib.suppress(OSError):
        os.rename(path, f"{path}.taken")  # noqa: PTH104
        done.append("replace")
    return " and ".join(done) or "nothing"


@contextlib.contextmanager
def acting(**become: tuple[Become, ...]) -> Iterator[dict[str, Puppet]]:
    """Several puppets, by name."""
    made: dict[str, Puppet] = {}
    try:
        for name, steps in become.items():
            made[name] = Puppet(*steps)
        yield made
    finally:
        for puppet in made.values():
            puppet.close()
