"""A token is shown to a broker that asks for one, and to no other."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from genv_jupyter.api import rendezvous, tokens
from genv_jupyter.api.client import Client
from genv_jupyter.broker.hub_identity import CHALLENGE
from genv_jupyter.errors import Unauthenticated

SECRET = "a-token-of-the-hub"


class Broker:
    """A socket that writes down what it is sent, and answers the same to all who have no token."""

    def __init__(self, path: Path, status: str, body: object) -> None:
        self.heads: list[str] = []
        self.answer = self._answer(status, body)
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.bind(str(path))
        self.sock.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    @staticmethod
    def _answer(status: str, body: object) -> bytes:
        text = json.dumps(body)
        return f"HTTP/1.1 {status}\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode()

    def _serve(self) -> None:
        while True:
            try:
                there, _ = self.sock.accept()
            except OSError:
                return
            with there:
                self.heads.append(there.recv(65536).decode())
                known = f"Authorization: token {SECRET}" in self.heads[-1].splitlines()
                there.sendall(self._answer("200 OK", []) if known else self.answer)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(tokens, "_asking", set())
    monkeypatch.setenv("GENV_JUPYTER_SOCKET", str(tmp_path / "sock"))
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", SECRET)
    yield tmp_path / "sock"


def refusing(path: Path, details: dict[str, str]) -> Broker:
    body = {"code": "unauthenticated", "message": "Who?", "hint": "", "details": details}
    return Broker(path, "401 Unauthorized", body)


def test_a_broker_that_asks_is_shown_the_token(path: Path) -> None:
    broker = refusing(path, CHALLENGE)
    assert Client(start=False).devices() == []
    assert [SECRET in head for head in broker.heads] == [False, True]
    assert Client(start=False).devices() == [], "it is remembered who asks"
    assert [SECRET in head for head in broker.heads] == [False, True, True]
    broker.sock.close()


def test_an_event_stream_is_opened_with_it(path: Path) -> None:
    broker = refusing(path, CHALLENGE)
    Client(start=False).events().close()
    assert [SECRET in head for head in broker.heads] == [False, True]
    broker.sock.close()


@pytest.mark.parametrize("details", [{}, {"challenge": "password"}])
def test_one_that_only_refuses_is_not(path: Path, details: dict[str, str]) -> None:
    broker = refusing(path, details)
    for call in (Client(start=False).devices, Client(start=False).events):
        with pytest.raises(Unauthenticated):
            call()
    assert [head for head in broker.heads if SECRET in head] == []
    assert len(broker.heads) == 2
    broker.sock.close()


def test_one_that_serves_is_not(path: Path) -> None:
    broker = Broker(path, "200 OK", [])
    assert Client(start=False).devices() == []
    assert [head for head in broker.heads if SECRET in head] == []
    broker.sock.close()


@pytest.mark.parametrize("token", [None, "", "two words", "a\r\nX: y"])
def test_without_a_token_the_refusal_is_told(
    path: Path, token: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if token is None:
        monkeypatch.delenv("JUPYTERHUB_API_TOKEN")
    else:
        monkeypatch.setenv("JUPYTERHUB_API_TOKEN", token)
    broker = refusing(path, CHALLENGE)
    for call in (Client(start=False).devices, Client(start=False).events):
        with pytest.raises(Unauthenticated, match="Who"):
            call()
    broker.sock.close()


def test_another_socket_is_not_shown_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asking = refusing(path, CHALLENGE)
    Client(start=False).devices()
    other = path.with_name("other")
    monkeypatch.setenv("GENV_JUPYTER_SOCKET", str(other))
    own = Broker(other, "200 OK", [])
    Client(start=False).devices()
    assert [head for head in own.heads if SECRET in head] == []
    asking.sock.close()
    own.sock.close()


def test_where_only_the_hub_s_socket_is_it_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GENV_JUPYTER_HOST_SOCKET", "GENV_JUPYTER_SOCKET", "GENV_JUPYTER_HOME"):
        monkeypatch.delenv(name, raising=False)
    host, hub = tmp_path / "broker.sock", tmp_path / "hub.sock"
    monkeypatch.setattr(rendezvous, "HOST_SOCKET", str(host))
    monkeypatch.setattr(rendezvous, "HUB_SOCKET", str(hub))
    assert rendezvous.host_socket() is None
    hub.touch()
    assert rendezvous.host_socket() == str(hub)
    host.touch()
    assert rendezvous.host_socket() == str(host)


def test_where_uids_count_none_is_shown_whoever_asks(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever took over the daemon of a host could ask there, and be its users at the Hub."""
    monkeypatch.setattr(rendezvous, "HOST_SOCKET", str(path))
    broker = refusing(path, CHALLENGE)
    with pytest.raises(Unauthenticated):
        Client(start=False).environments()
    assert broker.heads and not any(SECRET in head for head in broker.heads)
