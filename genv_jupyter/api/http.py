"""HTTP/1.1 on the broker's sockets, over asyncio's streams.

Requests are read and answers written by hand, as ``connection`` does at the other end: a web
framework takes longer for a request than the broker takes to decide. Nothing is guessed: what is
not plain HTTP/1.1 with its length said is refused, and the connection ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import re
import socket
from collections.abc import Awaitable, Callable, Hashable
from http.client import responses
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from genv_jupyter import __version__
from genv_jupyter.errors import BadRequest, GpuError, TooLarge

MAX_HEAD = 32 * 1024
MAX_BODY = 256 * 1024
SMALL_BODY = 16 * 1024
LARGE = 4
"""Larger bodies of one caller that are read at a time: others of theirs wait, and fill nothing."""
PART_SECONDS = 2.0
"""For which one is read on who has been refused while still sending: so the answer gets there."""
_FIRST_LINE = re.compile(r"([A-Z]{1,16}) (/[!-~]*) HTTP/1\.1")
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\0\r\n]*)")
_LENGTH = re.compile(r"[0-9]{1,18}")
_HINT = "Speak HTTP/1.1, and say the length of a body in Content-Length."


class Left(ConnectionError):
    """The caller has closed the connection."""


class Request(NamedTuple):
    """What was asked; the names of ``headers`` are in small letters."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes


class Connection:
    """One request after the other, each answered before the next is read.

    Attributes
    ----------
    busy
        Somebody waits for a whole answer.
    last
        The connection ends with the present answer.
    caller
        What a door has found out of the other end.
    challenge
        How callers can prove who they are: told to those who could not.
    room
        For bodies that are not small, shared with the other connections of the same caller.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, caller: Any = None
    ) -> None:
        self.socket: socket.socket = writer.get_extra_info("socket")
        self.busy = False
        self.last = False
        self.caller = caller
        self.challenge = b""
        self.room = asyncio.Semaphore(LARGE)
        self._reader = reader
        self._writer = writer
        self._watch: asyncio.Task[bytes] | None = None

    async def read(self) -> Request:
        """Return the next request.

        Raises
        ------
        Left
            There is none.
        BadRequest, TooLarge
            It cannot be read, nor what may follow it.
        """
        try:
            head = await self._reader.readuntil(b"\r\n\r\n")
            method, target, headers = _read_head(head[:-4].decode("latin-1"))
            length = _length(headers)
            body = await self._body(length) if length else b""
        except asyncio.LimitOverrunError:
            raise TooLarge("The head of the request is too large.", hint=_HINT) from None
        except (asyncio.IncompleteReadError, ConnectionError):
            raise Left from None
        self.busy = True
        self.last = self.last or headers.get("connection", "").lower() == "close"
        path, _, query = target.partition("?")
        return Request(method, path, query, headers, body)

    async def _body(self, length: int) -> bytes:
        if length <= SMALL_BODY:
            return await self._reader.readexactly(length)
        async with self.room:
            return await self._reader.readexactly(length)

    def answer(self, status: int, body: bytes, kind: str = "application/json") -> None:
        """Write a whole answer."""
        close = b"Connection: close\r\n" if self.last else b""
        if status == 401 and self.challenge:
            close += b"WWW-Authenticate: %b\r\n" % self.challenge
        head = _head(status, kind)
        self._writer.write(b"%b%bContent-Length: %d\r\n\r\n%b" % (head, close, len(body), body))

    def begin(self, kind: str, on_leave: Callable[[], None]) -> None:
        """Begin an answer in pieces, after which the connection ends.

        ``on_leave`` is called when the caller goes, or says more than it was asked to.
        """
        self.busy, self.last = False, True
        head = _head(200, kind)
        self._writer.write(head + b"Transfer-Encoding: chunked\r\n\r\n")
        self._watch = asyncio.ensure_future(self._reader.read(1))
        self._watch.add_done_callback(lambda _: on_leave())

    async def send(self, piece: bytes = b"") -> None:
        """Send a piece, as fast as it is read.

        Raises
        ------
        Left
            Nobody reads it.
        """
        if piece:
            self._writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        try:
            await self._writer.drain()
        except ConnectionError:
            raise Left from None

    @property
    def begun(self) -> bool:
        """Whether an answer in pieces has begun."""
        return self._watch is not None

    def end(self) -> None:
        """End an answer in pieces in good order."""
        self._writer.write(b"0\r\n\r\n")

    def refuse(self, error: GpuError) -> None:
        """Refuse the connection itself, or what cannot be read."""
        self.last = True
        self.answer(error.status, json.dumps(error.payload()).encode())

    async def linger(self) -> None:
        """Let one who is still sending get to its answer."""
        self._writer.write_eof()
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(PART_SECONDS):
                while await self._reader.read(MAX_BODY):
                    pass

    def drop(self) -> None:
        """End the connection now, whatever is going on on it."""
        self.last = True
        self._writer.transport.abort()

    def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._writer.close()


class Server:
    """Has each request handled, and ends all connections when it closes.

    Parameters
    ----------
    handle
        Answers a request; whatever it raises but ``Left`` is its mistake.
    """

    def __init__(self, handle: Callable[[Connection, Request], Awaitable[None]]) -> None:
        self.handle = handle
        self._open: dict[asyncio.Task[None], Connection] = {}
        self._closing = False
        self._rooms: WeakValueDictionary[Hashable, asyncio.Semaphore] = WeakValueDictionary()

    async def serve(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        caller: Any = None,
        *,
        whose: Hashable = None,
    ) -> None:
        """Serve a connection until it ends: what ``asyncio.start_server`` calls.

        ``caller`` is what is known of the other end before it has said anything; connections of
        the same ``whose`` share what one caller may fill.
        """
        task: Any = asyncio.current_task()
        connection = self._open[task] = Connection(reader, writer, caller)
        # By default up to 256 KiB are read at once, also of who may not send so much yet.
        setattr(writer.transport, "max_size", MAX_HEAD)  # noqa: B010 (no type has it)
        connection.room = self._rooms.setdefault(whose, connection.room)
        try:
            while not connection.last:
                request = await connection.read()
                await self.handle(connection, request)
                connection.busy = False
                await connection.send()
        except Left:
            pass
        except asyncio.CancelledError:
            if not self._closing:  # of each that ``close`` ends asyncio would log a traceback
                raise
        except GpuError as error:
            connection.refuse(error)
            await connection.linger()
        finally:
            connection.close()
            del self._open[task]

    async def close(self, seconds: float) -> None:
        """End what is open; who waits for an answer gets it, within so many seconds."""
        self._closing = True
        for task, connection in self._open.items():
            connection.last = True
            if not connection.busy:
                task.cancel()
        if self._open:
            await asyncio.wait(self._open, timeout=seconds)


def _read_head(text: str) -> tuple[str, str, dict[str, str]]:
    """Return method, target and headers."""
    first, *lines = text.split("\r\n")
    found = _FIRST_LINE.fullmatch(first)
    if found is None:
        raise BadRequest("The request cannot be read.", hint=_HINT)
    headers: dict[str, str] = {}
    for line in lines:
        header = _HEADER.fullmatch(line)
        if header is None:
            raise BadRequest(f"The header {line[:32]!r} cannot be read.", hint=_HINT)
        name, value = header[1].lower(), header[2].rstrip(" \t")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return found[1], found[2], headers


def _length(headers: dict[str, str]) -> int:
    """Return the length of the body that follows."""
    text = headers.get("content-length", "0")
    if not _LENGTH.fullmatch(text) or "transfer-encoding" in headers:
        raise BadRequest("The length of the body is not known.", hint=_HINT)
    length = int(text)
    if length > MAX_BODY:
        raise TooLarge(
            "The request is too large.", hint=f"{MAX_BODY // 1024} KiB are more than any real one."
        )
    return length


@functools.cache
def _head(status: int, kind: str) -> bytes:
    """Return the first lines of an answer."""
    return (
        f"HTTP/1.1 {status} {responses.get(status, '')}\r\nServer: genv-jupyter/{__version__}\r\n"
        f"Content-Type: {kind}\r\nCache-Control: no-store\r\n"
    ).encode("ascii")
