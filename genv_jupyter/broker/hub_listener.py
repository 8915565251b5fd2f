"""The host daemon's second listener: the Hub's socket, which may be mounted into containers.

Anybody who gets at it may knock, so those of whom nothing is known are few and soon gone; whoever
is known has as many connections as a local user.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from typing import TYPE_CHECKING

from genv_jupyter.api.handlers import application
from genv_jupyter.api.http import MAX_HEAD, Connection
from genv_jupyter.api.hub_door import Guest, HubDoor
from genv_jupyter.broker.hub_identity import Caller, HubIdentities
from genv_jupyter.errors import TooMany
from genv_jupyter.isolation import processes

if TYPE_CHECKING:
    from genv_jupyter.broker.host import HostProcess

MOST_STRANGERS, STRANGERS_OF_ONE = 256, 64
"""Connections of callers of whom nothing is known yet: in all, and from one container or uid."""
STRANGER_SECONDS = 6.0
BACKLOG = 1024


class HubListener:
    """Serves the Hub's socket in a host daemon.

    Parameters
    ----------
    process
        The daemon.
    sock
        The listening socket.
    identities
        Knows whose a token is.
    """

    def __init__(
        self, process: HostProcess, sock: socket.socket, identities: HubIdentities
    ) -> None:
        self.process = process
        self.sock = sock
        self.identities = identities
        self.strangers: Counter[str] = Counter()
        self.waiting: dict[Guest, asyncio.StreamWriter] = {}
        """Who they are, the oldest first."""
        self.server = application(process, HubDoor)
        self._listening: asyncio.Server | None = None

    async def open(self) -> None:
        """Begin to serve."""
        self._listening = await asyncio.start_server(
            self._welcome, sock=self.sock, limit=MAX_HEAD, backlog=BACKLOG
        )

    async def close(self, seconds: float) -> None:
        """Serve nobody new, and end what is open within so many seconds."""
        if self._listening is not None:
            self._listening.close()
        await self.server.close(seconds)

    async def admit(self, guest: Guest, token: str | None) -> Caller:
        """Return who has that token, and count the connection as theirs.

        Raises
        ------
        GpuError
            Nobody has it, or they have too many connections.
        """
        caller = await self.identities.identify(token)
        key = caller.principal.key
        if guest.key != key:
            refused = self.process.too_many(key)
            if refused is not None:
                raise refused
            self._forget(guest)
            guest.key = key
            self.process.connections[key] += 1
        return caller

    async def identify(self, token: str) -> Caller:
        """Return who has that token, whoever calls."""
        return await self.identities.identify(token)

    def fresh_for(self, token: str) -> float:
        """Return for how many seconds a token need not be looked at again."""
        return self.identities.fresh_for(token)

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sock = writer.get_extra_info("socket")
        pid, uid, _ = processes.peer(sock)
        guest = Guest(pid, processes.peer_start(sock), uid)
        if self.strangers[guest.origin] >= STRANGERS_OF_ONE:
            connection = Connection(reader, writer)
            connection.refuse(
                TooMany(
                    "Too many connections are open of whom the GPU broker knows nothing yet.",
                    hint="Try again in some seconds, and send your token with the first request.",
                )
            )
            connection.close()
            return
        if self.strangers.total() >= MOST_STRANGERS:
            self._make_room()
        self.strangers[guest.origin] += 1
        self.waiting[guest] = writer
        late = asyncio.get_running_loop().call_later(STRANGER_SECONDS, self._late, guest, writer)
        try:
            await self.server.serve(reader, writer, guest, whose=guest.origin)
        finally:
            late.cancel()
            writer.close()
            self._forget(guest)

    def _late(self, guest: Guest, writer: asyncio.StreamWriter) -> None:
        """End the connection of one who has not said who they are."""
        if guest.key is None:
            writer.transport.abort()

    def _make_room(self) -> None:
        """End the oldest stranger of those who have most: whoever means it is known by then."""
        crowd = self.strangers.most_common(1)[0][0]
        oldest = next(guest for guest in self.waiting if guest.origin == crowd)
        writer = self.waiting[oldest]
        self._forget(oldest)
        writer.transport.abort()

    def _forget(self, guest: Guest) -> None:
        """Count a connection as nobody's."""
        if guest.key is not None:
            self.process.gone(guest.key)
        elif self.waiting.pop(guest, None) is not None:
            self.strangers[guest.origin] -= 1
            if not self.strangers[guest.origin]:
                del self.strangers[guest.origin]
