"""Calling the broker: connections, what is repeated, and what is said when it is not there."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import urlencode

import msgspec

from genv_jupyter import __version__
from genv_jupyter.api import rendezvous, tokens
from genv_jupyter.api.connection import (
    BROKEN,
    Clicks,
    Connection,
    Stream,
    refusal,
    unreachable,
)
from genv_jupyter.errors import BadRequest, BrokerDown, GpuError, Unauthenticated

T = TypeVar("T")
S = TypeVar("S", bound=Stream)
Query = Mapping[str, str | None]
ENDING = 0.1
"""Seconds after which one that has met a broker that was ending looks for the next."""


class Caller:
    """Sends calls to the broker over a connection of each thread's own."""

    def __init__(self, *, start: bool = True, timeout: float = 10.0) -> None:
        self.start = start
        self.timeout = timeout
        self._local = threading.local()
        self._heeded = False

    def call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        query: Query | None = None,
        actor: Clicks | None = None,
    ) -> tuple[int, bytes]:
        """Send one request as it is and return status and body: for a relay.

        ``actor`` is who wants it, where that is not whom the broker takes us for.

        Raises
        ------
        BrokerDown
            The broker cannot be reached, could not be started, or did not answer in time.
        """
        target = f"/v1/{path}"
        pairs = {key: value for key, value in (query or {}).items() if value is not None}
        if pairs:
            target += "?" + urlencode(pairs, errors="replace")
        fresh = method == "POST"
        try:
            try:
                return self._exchange(method, target, body, actor, fresh=fresh)
            except BROKEN:
                if fresh:
                    raise
            try:
                return self._exchange(method, target, body, actor, fresh=True)
            except BROKEN:  # of a broker that is ending the socket is the last to go
                time.sleep(ENDING)
                return self._exchange(method, target, body, actor, fresh=True)
        except TimeoutError:
            self.close()
            raise BrokerDown(
                f"The GPU broker did not answer within {self.timeout:g} s.",
                hint="Try again; `jupyter gpu doctor` says more.",
            ) from None
        except (*BROKEN, OSError) as error:
            self.close()
            raise unreachable(error) from error

    def close(self) -> None:
        """Close the connection of the calling thread."""
        connection: Connection | None = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
            self._local.connection = None

    def _exchange(
        self,
        method: str,
        target: str,
        body: bytes | None,
        actor: Clicks | None = None,
        *,
        fresh: bool,
    ) -> tuple[int, bytes]:
        connection: Connection | None = getattr(self._local, "connection", None)
        # After a fork the child must not speak on its parent's connection.
        if fresh or connection is None or connection.owner != os.getpid():
            self.close()
            connection = self._local.connection = Connection(self._connect(), tokens.known())
        try:
            answer = connection.exchange(method, target, body, actor)
        except BaseException:  # Ctrl-C: the answer to this call would be taken for that to the next
            self.close()
            raise
        if (
            answer.status == 401
            and connection.token is None
            and tokens.asked(refusal(answer.body, 401))
        ):
            return self._exchange(method, target, body, actor, fresh=True)
        self._heed(answer.server)
        return answer.status, answer.body

    def _open(self, kind: type[S], method: str, target: str, silence: float | None = None) -> S:
        """Open a stream, with a token where one is asked for."""
        token = tokens.known()
        try:
            return kind(self._connect(), method, target, silence, token)
        except OSError as error:
            raise unreachable(error) from error
        except Unauthenticated as error:
            if token is not None or not tokens.asked(error):
                raise
        return self._open(kind, method, target, silence)

    def _heed(self, server: str) -> None:
        """Have an older broker replaced, once: only a newer version replaces an older one."""
        if self._heeded or not self.start or rendezvous.host_socket() is not None:
            return  # that of a host is replaced by whoever runs it
        self._heeded = True
        version = rendezvous.version_key(server.rpartition("/")[2])
        if version < rendezvous.version_key(__version__):
            with contextlib.suppress(GpuError):  # then the older one goes on serving us
                rendezvous.start_broker(replace=True)
            self.close()

    def _connect(self) -> socket.socket:
        sock = rendezvous.ensure_broker() if self.start else rendezvous.connect()
        sock.settimeout(self.timeout)
        return sock

    def _get(self, path: str, kind: type[T], query: Query | None = None) -> T:
        return self._send("GET", path, None, kind, query=query)

    def _send(
        self, method: str, path: str, body: Any, kind: type[T], *, query: Query | None = None
    ) -> T:
        try:
            encoded = None if body is None else msgspec.json.encode(body)
        except UnicodeEncodeError as error:  # bytes of a command line that are no text
            raise BadRequest(
                f"{error.object[:64]!r} is no text: it has bytes that are not UTF-8.",
                hint="Write it again, in UTF-8.",
            ) from None
        status, answer = self.call(method, path, encoded, query)
        if status >= 400:
            raise refusal(answer, status)
        return msgspec.json.decode(answer or b"null", type=kind)
