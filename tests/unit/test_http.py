"""HTTP on the broker's sockets: what is read, what is refused, and how connections end."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from genv_jupyter.api.doors import Host, Verbs
from genv_jupyter.api.http import MAX_BODY, MAX_HEAD, Connection, Left, Request, Server
from genv_jupyter.model import Principal

GET = b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n"
Handle = Callable[[Connection, Request], Awaitable[None]]
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter, Server], Awaitable[Any]]


async def echo(connection: Connection, request: Request) -> None:
    connection.answer(200, b"|".join((request.path.encode(), request.query.encode(), request.body)))


def talking(talk: Talk, handle: Handle = echo) -> Any:
    """Run one end of a connection against the other."""

    async def both() -> Any:
        server = Server(handle)
        listening = await asyncio.start_server(server.serve, sock=_listener(), limit=MAX_HEAD)
        where = listening.sockets[0].getsockname()
        reader, writer = await asyncio.open_unix_connection(where)
        try:
            async with asyncio.timeout(30):
                return await talk(reader, writer, server)
        finally:
            writer.close()
            listening.close()
            await server.close(5)

    return asyncio.run(both())


def _listener() -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.bind("")  # the kernel chooses an abstract name
    sock.listen()
    return sock


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    lengths = [it[16:] for it in head.split("\r\n") if it.startswith("Content-Length: ")]
    return int(head.split()[1]), await reader.readexactly(int(lengths[0]))


def test_a_request_may_come_byte_by_byte_and_another_right_behind_it() -> None:
    asked = b"PUT /v1/a%20b?c=d HTTP/1.1\r\nHost: x\r\ncontent-LENGTH: 4\r\n\r\nnull" + GET

    async def talk(reader: Any, writer: Any, server: Server) -> Any:
        for byte in asked:
            writer.write(bytes([byte]))
            await writer.drain()
        return await read_answer(reader), await read_answer(reader)

    assert talking(talk) == ((200, b"/v1/a%20b|c=d|null"), (200, b"/v1/health||"))


def test_the_largest_body_is_taken() -> None:
    body = b"x" * MAX_BODY

    async def talk(reader: Any, writer: Any, server: Server) -> Any:
        writer.write(b"PUT / HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        return await read_answer(reader)

    assert talking(talk) == (200, b"/||" + body)


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (b"GET / HTTP/1.0\r\n\r\n", 400),
        (b"GET http://x/ HTTP/1.1\r\n\r\n", 400),
        (b"GET /\xff HTTP/1.1\r\n\r\n", 400),
        (b"GET  / HTTP/1.1\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nContent-Length : 4\r\n\r\nnull", 400),
        (b"GET / HTTP/1.1\r\nX: a\nContent-Length: 4\r\n\r\nnull", 400),
        (b"GET / HTTP/1.1\r\nX: a\r\n folded\r\n\r\n", 400),
        (b"PUT / HTTP/1.1\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nnull!", 400),
        (b"PUT / HTTP/1.1\r\nContent-Length: -4\r\n\r\n", 400),
        (b"PUT / HTTP/1.1\r\nContent-Length: +4\r\n\r\nnull", 400),
        ("PUT / HTTP/1.1\r\nContent-Length: ²\r\n\r\n".encode("latin-1"), 400),
        (b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"PUT / HTTP/1.1\r\nContent-Length: 300000\r\n\r\n" + b" " * 300_000, 413),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * MAX_HEAD + b"\r\n\r\n", 413),
    ],
)
def test_what_cannot_be_read_is_refused_in_words_and_the_connection_ends(
    asked: bytes, status: int
) -> None:
    async def talk(reader: Any, writer: Any, server: Server) -> Any:
        writer.write(asked + GET)
        await writer.drain()
        head = await reader.readuntil(b"\r\n\r\n")
        return head, await reader.read()

    head, body = talking(talk)
    assert head.startswith(b"HTTP/1.1 %d " % status) and b"\r\nConnection: close\r\n" in head
    assert set(json.loads(body)) == {"code", "message", "hint", "details"}


def test_an_answer_in_pieces_waits_for_its_reader_and_ends_with_it() -> None:
    left: list[str] = []
    sent = 0

    async def handle(connection: Connection, request: Request) -> None:
        nonlocal sent
        connection.begin("application/jsonlines", lambda: left.append("left"))
        while True:
            await connection.send(b"x" * 100_000)
            sent += 1

    async def talk(reader: Any, writer: Any, server: Server) -> Any:
        writer.write(GET)
        head = await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.3)
        waits = sent
        await asyncio.sleep(0.3)
        assert sent == waits, "more is sent than anybody reads"
        writer.transport.abort()
        while server._open:
            await asyncio.sleep(0.01)
        return head

    assert b"\r\nTransfer-Encoding: chunked\r\n" in talking(talk, handle)
    assert left == ["left"]


def test_closing_ends_who_rests_and_waits_for_who_is_answered() -> None:
    entered = asyncio.Event()
    going_on = asyncio.Event()

    async def handle(connection: Connection, request: Request) -> None:
        entered.set()
        await going_on.wait()
        await echo(connection, request)

    async def talk(reader: Any, writer: Any, server: Server) -> Any:
        resting, other = await asyncio.open_unix_connection(writer.get_extra_info("peername"))
        writer.write(GET)
        await entered.wait()
        closing = asyncio.ensure_future(server.close(20))
        assert await resting.read() == b""
        going_on.set()
        answer = await read_answer(reader)
        await closing
        other.close()
        return answer, await reader.read()

    assert talking(talk, handle) == ((200, b"/v1/health||"), b"")


class Door(Verbs):
    def principal(self) -> Principal:
        return Principal(realm="local", id="0", name="root")

    async def get(self, what: str) -> None:
        if what == "broken":
            raise RuntimeError("a mistake of ours")
        if what == "later":
            self.connection.begin("application/jsonlines", lambda: None)
            await self.connection.send(b"begun")
            raise RuntimeError("too late to say it")
        self.finish(str((what, self.get_query_argument("a", None))).encode())


@pytest.mark.parametrize(
    ("line", "status", "said"),
    [
        (b"GET /a%C3%A4?a=1&b=3&a=+%C3%BC HTTP/1.1", 200, "('aä', 'ü')".encode()),
        (b"GET /x?a HTTP/1.1", 200, b"('x', '')"),
        (b"GET /x HTTP/1.1", 200, b"('x', None)"),
        (b"GET /%FF HTTP/1.1", 400, b"bad_request"),
        (b"GET /x?a=%FF HTTP/1.1", 400, b"bad_request"),
        (b"GET /broken HTTP/1.1", 500, b"internal"),
        (b"POST /x HTTP/1.1", 405, b"method_not_allowed"),
        (b"BREW /x HTTP/1.1", 405, b"method_not_allowed"),
        (b"SERVE /x HTTP/1.1", 405, b"method_not_allowed"),
    ],
)
def test_a_door_unquotes_and_never_fails_without_words(
    line: bytes, status: int, said: bytes
) -> None:
    host: Host = None  # type: ignore[assignment]  # these verbs ask nobody

    async def handle(connection: Connection, request: Request) -> None:
        await Door(host, connection, request).serve((request.path[1:],))

    async def talk(reader: Any, writer: Any, server: Server) -> Any:
        writer.write(line + b"\r\n\r\n")
        if status == 405:
            return status, await reader.read()  # to its end: nobody knows if HEAD has a body
        return await read_answer(reader)

    found, body = talking(talk, handle)
    assert found == status and said in body


def test_a_stream_that_fails_does_not_end_as_if_it_were_whole() -> None:
    host: Host = None  # type: ignore[assignment]
    left: list[Left] = []

    async def handle(connection: Connection, request: Request) -> None:
        try:
            await Door(host, connection, request).serve(("later",))
        except Left as error:
            left.append(error)
            raise

    async def talk(reader: Any, writer: Any, server: Server) -> Any:
        writer.write(GET)
        return await reader.read()

    assert talking(talk, handle).endswith(b"\r\n5\r\nbegun\r\n")
    assert left


def test_the_end_of_idle_connections_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    async def talk(reader: Any, writer: Any, server: Server) -> Any:
        writer.write(GET)
        await read_answer(reader)
        await server.close(5)
        return await reader.read()

    assert talking(talk) == b""
    assert not caplog.records
