"""Callers of the daemon's socket for the Hub's users, with a token or without."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.hub.hubs import Answer

SECONDS = 20.0


def connected(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(SECONDS)
    sock.connect(str(path))
    return sock


def head(method: str, target: str, token: str | None, length: int = 0) -> bytes:
    """Write the head of a request."""
    lines = [f"{method} /v1/{target} HTTP/1.1", "Host: broker", f"Content-Length: {length}"]
    if token is not None:
        lines.append(f"Authorization: token {token}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


class Caller:
    """Somebody with a token; ``None``: without. Each call has a connection of its own."""

    def __init__(self, path: Path, token: str | None) -> None:
        self.path, self.token = path, token

    def __call__(self, method: str, target: str, body: Any = None) -> Answer:
        data = b"" if body is None else json.dumps(body).encode()
        with connected(self.path) as sock:
            sock.sendall(head(method, target, self.token, len(data)) + data)
            answer = http.client.HTTPResponse(sock, method=method)
            answer.begin()
            with answer:
                return Answer(answer.status, answer.read())

    @contextlib.contextmanager
    def events(self) -> Iterator[Iterator[bytes]]:
        """Open the event stream: lines, until it ends."""
        with connected(self.path) as sock:
            sock.sendall(head("GET", "events", self.token))
            answer = http.client.HTTPResponse(sock, method="GET")
            answer.begin()
            assert answer.status == 200, answer.read()
            with answer:
                yield iter(lambda: _line(answer), b"")


def _line(answer: http.client.HTTPResponse) -> bytes:
    try:
        return answer.readline()
    except (http.client.HTTPException, ConnectionError):
        return b""  # it was broken off
