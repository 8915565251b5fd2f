"""Many viewers in one thread: WebSockets that read what comes, count it, and look at nothing.

A client that parsed what it gets would take the processor from the servers that are measured.
"""

from __future__ import annotations

import base64
import contextlib
import os
import selectors
import socket
import struct
import threading
from typing import Self

CHUNK = 2**16
SECONDS = 30.0


class Viewers:
    """Open WebSockets.

    Attributes
    ----------
    messages, octets
        What has come so far on all of them.
    ended
        How many the server has closed.
    """

    def __init__(self, port: int, token: str) -> None:
        self.port = port
        self.token = token
        self.messages = self.octets = self.ended = 0
        self._selector = selectors.DefaultSelector()
        self._sockets: list[socket.socket] = []
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self, path: str) -> socket.socket:
        """Open one more."""
        sock = socket.create_connection(("127.0.0.1", self.port), SECONDS)
        key = base64.b64encode(os.urandom(16)).decode()
        sock.sendall(
            f"GET /{path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n"
            f"Authorization: token {self.token}\r\n\r\n".encode()
        )
        answer = b""
        while b"\r\n\r\n" not in answer:
            got = sock.recv(CHUNK)
            if not got:
                raise ConnectionError(f"{path} was not opened: {answer!r}")
            answer += got
        head, _, rest = answer.partition(b"\r\n\r\n")
        if b" 101 " not in head.split(b"\r\n", 1)[0]:
            raise ConnectionError(f"{path} was not opened: {answer[:2000]!r}")
        sock.setblocking(False)
        self._sockets.append(sock)
        self._selector.register(sock, selectors.EVENT_READ, _Frames(rest))
        return sock

    def say(self, message: bytes) -> None:
        """Send a message of up to 125 bytes on all that are open."""
        for sock in self._sockets:
            # A client's frames are masked; a mask of zeros changes nothing.
            sock.sendall(struct.pack("!BB4x", 0x81, 0x80 | len(message)) + message)

    def drop(self, sock: socket.socket) -> None:
        """Close one, without a word, as a browser that is gone does."""
        self._sockets.remove(sock)
        with contextlib.suppress(KeyError, ValueError):  # the server was first
            self._selector.unregister(sock)
        sock.close()

    def close(self) -> None:
        """Close all."""
        self._ending.set()
        self._thread.join()
        for sock in self._sockets:
            sock.close()
        self._selector.close()

    def _read(self) -> None:
        while not self._ending.is_set():
            if not self._selector.get_map():
                self._ending.wait(0.05)
                continue
            for key, _ in self._selector.select(0.2):
                self._take(key.fileobj, key.data)  # type: ignore[arg-type]

    def _take(self, sock: socket.socket, frames: _Frames) -> None:
        try:
            got = sock.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            got = b""
        if not got:
            self.ended += 1
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(sock)
            return
        self.octets += len(got)
        self.messages += frames.count(got)


class _Frames:
    """Counts the messages in a stream of a server's frames."""

    def __init__(self, rest: bytes) -> None:
        self._head = b""
        self._left = 0
        self.count(rest)

    def count(self, got: bytes) -> int:
        found, at = 0, 0
        while at < len(got):
            if self._left:
                step = min(self._left, len(got) - at)
                self._left -= step
                at += step
                continue
            self._head += got[at : at + 1]
            at += 1
            length = self._length()
            if length is not None:
                found += 1
                self._left, self._head = length, b""
        return found

    def _length(self) -> int | None:
        """Return how long the frame is, once its head is there."""
        if len(self._head) < 2:
            return None
        short = self._head[1] & 0x7F
        if short < 126:
            return short
        more = 2 if short == 126 else 8
        if len(self._head) < 2 + more:
            return None
        return int.from_bytes(self._head[2:], "big")
