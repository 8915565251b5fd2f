"""HTTP over a socket that is connected already: single calls, and the event stream.

Single calls are written and read by hand. ``http.client`` reads every answer with the parser of
e-mails, which takes longer than the broker takes to decide; and the other end is always our own.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import socket
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from genv_jupyter import __version__
from genv_jupyter.errors import BrokerDown, GpuError, from_payload
from genv_jupyter.events import Event

BROKEN = (http.client.HTTPException, ConnectionError)
"""What says that a connection is of no more use."""
ACTOR, ACTOR_TOKEN = "genv-jupyter-actor", "genv-jupyter-actor-token"
"""Headers with the name (percent-encoded) and the Hub's token of whoever clicks in a Jupyter server
that is somebody else's; the name alone is a claim."""
_CHUNK = 64 * 1024
_LONGEST_HEAD = 64 * 1024
_NOT_IN_TARGET = re.compile(r"[^!-~]")


class Answer(NamedTuple):
    """What came back: status, body, and who answered (``genv-jupyter/VERSION``)."""

    status: int
    body: bytes
    server: str


class Clicks(NamedTuple):
    """Who clicks in a Jupyter server that is somebody else's: name, and token if it has one."""

    name: str
    token: str | None = None


class Connection:
    """A connection for one call after the other.

    Parameters
    ----------
    token
        What proves who we are, where the broker asks for that.
    """

    def __init__(self, sock: socket.socket, token: str | None = None) -> None:
        self.sock = sock
        self.token = token
        self.owner = os.getpid()

    def exchange(
        self, method: str, target: str, body: bytes | None, actor: Clicks | None = None
    ) -> Answer:
        """Send a request and read its answer.

        Raises
        ------
        OSError, http.client.HTTPException
            The connection is of no more use, or the time is over (``TimeoutError``).
        """
        if _NOT_IN_TARGET.search(target):
            raise http.client.InvalidURL(f"{target[:64]!r} is no path of the broker")
        head = (
            f"{method} {target} HTTP/1.1\r\nHost: broker\r\n"
            f"Genv-Jupyter-Version: {__version__}\r\n{self._who(actor)}"
            f"Content-Length: {len(body or b'')}\r\n\r\n"
        )
        with contextlib.suppress(BrokenPipeError):  # one refused at the door has its answer there
            self.sock.sendall(head.encode("ascii") + (body or b""))
        return self._answer()

    def _who(self, actor: Clicks | None) -> str:
        """Write the headers that tell who calls; whoever asks for no token is shown none."""
        said = "" if self.token is None else f"Authorization: token {self.token}\r\n"
        if actor is not None:
            said += f"{ACTOR}: {quote(actor.name, errors='replace')}\r\n"
            if self.token is not None and actor.token is not None:
                said += f"{ACTOR_TOKEN}: {quote(actor.token)}\r\n"
        return said

    def _answer(self) -> Answer:
        data = bytearray()
        while (end := data.find(b"\r\n\r\n")) < 0:
            if len(data) > _LONGEST_HEAD:
                raise http.client.LineTooLong("header")
            self._receive(data)
        status, found = _read_head(data[:end].decode("latin-1"))
        length = found.get("content-length", "")
        if not (length.isascii() and length.isdigit()):
            raise http.client.HTTPException("an answer of unknown length")
        size = end + 4 + int(length[:18])
        while len(data) < size:
            self._receive(data)
        return Answer(status, bytes(data[end + 4 : size]), found.get("server", ""))

    def _receive(self, data: bytearray) -> None:
        received = self.sock.recv(_CHUNK)
        if not received:
            raise ConnectionResetError("the broker closed the connection")
        data += received

    def close(self) -> None:
        self.sock.close()

    def __del__(self) -> None:
        self.close()  # a client, or a thread of it, that is gone


def _read_head(text: str) -> tuple[int, dict[str, str]]:
    """Read the status line and the headers, their names in small letters."""
    first, *lines = text.split("\r\n")
    try:
        protocol, status, *_ = first.split(" ", 2)
        if not protocol.startswith("HTTP/1."):
            raise ValueError
        pairs = (line.split(":", 1) for line in lines)
        return int(status), {name.lower(): value.strip() for name, value in pairs}
    except ValueError:
        raise http.client.BadStatusLine(first[:64]) from None


class Stream:
    """Lines of an answer that does not end; ``close`` may be called from another thread.

    Parameters
    ----------
    silence
        Seconds after which a broker that says nothing is taken for dead; ``None``: it may.
    token
        What proves who we are, where the broker asks for that.
    """

    def __init__(
        self,
        sock: socket.socket,
        method: str,
        target: str,
        silence: float | None = None,
        token: str | None = None,
    ) -> None:
        self._connection = _StreamConnection(sock)
        headers = {"Genv-Jupyter-Version": __version__}
        if token is not None:
            headers["Authorization"] = f"token {token}"
        try:
            self._connection.request(method, target, headers=headers)
            self._response = self._connection.getresponse()
            if self._response.status >= 400:
                raise refusal(self._response.read(), self._response.status)
            sock.settimeout(silence)
        except (*BROKEN, OSError) as error:
            self._connection.close()
            raise unreachable(error) from error
        except BaseException:
            self._connection.close()
            raise

    def fileno(self) -> int:
        """Return the descriptor of the connection."""
        return self._connection.sock.fileno()

    def read_line(self) -> bytes:
        """Return the next line of JSON text; empty when the stream has ended."""
        try:
            return self._response.readline()
        except (*BROKEN, OSError, ValueError, AttributeError):
            return b""

    def close(self) -> None:
        """End the stream; a reader that waits in another thread gets the end."""
        sock = self._connection.sock
        if sock is not None:
            with contextlib.suppress(OSError):  # the broker closed it first
                sock.shutdown(socket.SHUT_RDWR)
        self._connection.close()


class EventStream(Stream, Iterator[Event]):
    """The broker's events, one by one."""

    def __next__(self) -> Event:
        line = self.read_line()
        if not line:
            raise StopIteration
        return msgspec.json.decode(line, type=Event)


class _StreamConnection(http.client.HTTPConnection):
    """A connection whose answer comes in chunks and does not end."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__("broker")
        self.sock: socket.socket = sock
        self.auto_open = 0

    def __del__(self) -> None:
        self.close()


def refusal(answer: bytes, status: int) -> GpuError:
    """Rebuild the error that the broker wrote."""
    try:
        return from_payload(msgspec.json.decode(answer), status)
    except msgspec.DecodeError:
        return from_payload(None, status)


def unreachable(error: Exception) -> BrokerDown:
    """Say that the broker does not answer."""
    return BrokerDown(
        f"The GPU broker is not reachable ({error or type(error).__name__}).",
        hint="Try again; `jupyter gpu doctor` says more.",
    )
