"""Calls over a socket: what is sent, and what an answer may look like."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from genv_jupyter import __version__
from genv_jupyter.api import rendezvous
from genv_jupyter.api.client import Client
from genv_jupyter.api.connection import ACTOR, ACTOR_TOKEN, Answer, Clicks, Connection
from genv_jupyter.errors import BrokerDown

HEAD = b"HTTP/1.1 200 OK\r\nServer: genv-jupyter/9\r\ncontent-length: 4\r\n\r\n"


@pytest.fixture
def ends() -> Iterator[tuple[Connection, socket.socket]]:
    """Return a connection, and the broker's end of it."""
    here, there = socket.socketpair()
    here.settimeout(5)
    there.settimeout(5)
    with here, there:
        yield Connection(here), there


def test_a_call_is_written_as_http(ends: tuple[Connection, socket.socket]) -> None:
    connection, broker = ends
    broker.sendall(HEAD + b"null")
    assert connection.exchange("PUT", "/v1/x?a=b%20c", b'{"n":1}') == Answer(
        200, b"null", "genv-jupyter/9"
    )
    assert broker.recv(4096) == (
        b"PUT /v1/x?a=b%20c HTTP/1.1\r\nHost: broker\r\n"
        b"Genv-Jupyter-Version: " + __version__.encode() + b"\r\nContent-Length: 7\r\n\r\n"
        b'{"n":1}'
    )


@pytest.mark.parametrize("token", [None, "s3cret"])
def test_a_token_is_shown_where_it_is_asked_for_and_a_visitor_s_with_it(
    ends: tuple[Connection, socket.socket], token: str | None
) -> None:
    connection, broker = ends
    connection.token = token
    broker.sendall(HEAD + b"null")
    connection.exchange("PUT", "/v1/x", None, Clicks("bøb\r\nX: y", "theirs"))
    head = broker.recv(4096).decode().split("\r\n")
    assert ("Authorization: token s3cret" in head) is (token is not None)
    assert (f"{ACTOR_TOKEN}: theirs" in head) is (token is not None)
    assert f"{ACTOR}: b%C3%B8b%0D%0AX%3A%20y" in head


def test_an_answer_may_come_byte_by_byte(ends: tuple[Connection, socket.socket]) -> None:
    connection, broker = ends

    def answer() -> None:
        for byte in HEAD + b"nul":
            broker.sendall(bytes([byte]))
        broker.sendall(b"l")

    thread = threading.Thread(target=answer)
    thread.start()
    assert connection.exchange("GET", "/v1/health", None).body == b"null"
    thread.join()


def test_answers_follow_each_other(ends: tuple[Connection, socket.socket]) -> None:
    connection, broker = ends
    for body in (b"[1]!", b"[22]"):
        broker.sendall(HEAD + body)
        assert connection.exchange("GET", "/v1/devices", None).body == body


def test_one_refused_at_the_door_is_told_why(ends: tuple[Connection, socket.socket]) -> None:
    connection, broker = ends
    broker.sendall(HEAD + b"no!!")
    broker.close()
    assert connection.exchange("GET", "/v1/health", None).body == b"no!!"


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        HEAD[:20],
        HEAD + b"nu",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 ok\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -4\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000,
    ],
)
def test_what_is_no_whole_answer_breaks_the_connection(
    ends: tuple[Connection, socket.socket], answer: bytes
) -> None:
    connection, broker = ends
    broker.sendall(answer)
    broker.shutdown(socket.SHUT_WR)
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        connection.exchange("GET", "/v1/health", None)


def test_a_silent_broker_is_not_waited_for(ends: tuple[Connection, socket.socket]) -> None:
    connection, _ = ends
    connection.sock.settimeout(0.05)
    with pytest.raises(TimeoutError):
        connection.exchange("GET", "/v1/health", None)


@pytest.mark.parametrize("target", ["/v1/a b", "/v1/a\r\nX: y", "/v1/ä", "/v1/\0"])
def test_a_target_cannot_end_its_line(ends: tuple[Connection, socket.socket], target: str) -> None:
    connection, broker = ends
    with pytest.raises(http.client.InvalidURL):
        connection.exchange("GET", target, None)
    broker.setblocking(False)
    with pytest.raises(BlockingIOError):
        broker.recv(1)


def test_who_connects_waits_in_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where many connect at once, nobody is refused for that."""
    path = tmp_path / "sock"
    monkeypatch.setenv("GENV_JUPYTER_SOCKET", str(path))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen(1)
        first = [rendezvous.connect() for _ in range(2)]  # as many as fit
        with pytest.raises(TimeoutError, match="nobody was let in"):
            rendezvous.connect(0.05)
        later = threading.Timer(0.2, lambda: first.append(listening.accept()[0]))
        later.start()
        first.append(rendezvous.connect(20))
        later.join()
        for sock in first:
            sock.close()


@pytest.mark.parametrize(("method", "answered"), [("GET", True), ("PUT", True), ("POST", False)])
def test_one_that_meets_a_broker_which_is_ending_asks_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, answered: bool
) -> None:
    """Its socket still lets callers in; what may not be done twice is not asked again."""
    path = tmp_path / "sock"
    monkeypatch.setenv("GENV_JUPYTER_SOCKET", str(path))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        listening.settimeout(5)

        def serve() -> None:
            for said in (b"", b"", HEAD + b"null") if answered else (b"",):
                with listening.accept()[0] as caller:
                    caller.recv(4096)
                    caller.sendall(said)

        serving = threading.Thread(target=serve)
        serving.start()
        client = Client(start=False)
        try:
            if answered:
                assert client.call(method, "x") == (200, b"null")
            else:
                with pytest.raises(BrokerDown):
                    client.call(method, "x")
        finally:
            client.close()
            serving.join()
