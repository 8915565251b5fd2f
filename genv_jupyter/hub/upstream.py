"""The way to the host daemon: its Hub socket, with the visitor's own token and nothing else."""

from __future__ import annotations

import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from genv_jupyter.errors import BrokerDown
from genv_jupyter.isolation import processes
from genv_jupyter.isolation.owners import others_may_write

CALL_SECONDS = 12.0
"""For one verb: longer than the daemon's own limits, which say more."""
_DOWN = "The GPU daemon of this host does not answer."
_HINT = (
    "Kernels go on with what they have. It is tried again; an administrator sees more in its log."
)


class Answer(NamedTuple):
    """What the daemon said."""

    status: int
    body: bytes


class Upstream:
    """Talks to the daemon for visitors.

    Connections are not kept: each has one visitor, whom the daemon counts it for.

    Parameters
    ----------
    socket
        Path of the daemon's Hub socket.
    """

    def __init__(self, socket: str) -> None:
        self.socket = socket
        self._client = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(
                uds=socket, limits=httpx.Limits(max_connections=None, max_keepalive_connections=0)
            ),
            base_url="http://gpu/v1/",
            timeout=CALL_SECONDS,
            trust_env=False,
        )

    async def call(self, token: str, method: str, path: str, body: bytes = b"") -> Answer:
        """Send a request of a visitor.

        Raises
        ------
        BrokerDown
            The daemon cannot be reached, or does not answer in time.
        """
        try:
            answer = await self._client.request(
                method,
                path,
                content=body or None,
                headers=_headers(token),
                extensions={"trace": self._look},
            )
        except httpx.HTTPError:
            raise BrokerDown(_DOWN, hint=_HINT) from None
        return Answer(answer.status_code, answer.content)

    @asynccontextmanager
    async def events(self, token: str, path: str) -> AsyncIterator[httpx.Response]:
        """Open a visitor's stream of events, which has no end of its own."""
        quiet = httpx.Timeout(CALL_SECONDS, read=None)
        async with self._client.stream(
            "GET",
            path,
            headers=_headers(token),
            timeout=quiet,
            extensions={"trace": self._look},
        ) as answer:
            yield answer

    async def close(self) -> None:
        """Close what is open."""
        await self._client.aclose()

    async def _look(self, event: str, info: dict[str, Any]) -> None:
        """See who listens, between the connection and the token."""
        if event != "connection.connect_unix_socket.complete":
            return
        stream = info["return_value"]
        uid = processes.peer(stream.get_extra_info("socket"))[1]
        if not believed(self.socket, uid):
            await stream.aclose()
            raise BrokerDown(
                f"At {self.socket} listens a process of uid {uid}, which is not believed.",
                hint="The directory is to be root's, or the daemon's, with a mode of 0755.",
            )


def believed(socket: str, uid: int) -> bool:
    """Say whether whoever listens there may be shown tokens.

    It is root or the owner of the socket's directory; in one of root's alone, whomever root has
    let listen. Others must not be able to write there: they could put their own socket in place.
    """
    directory = Path(socket).absolute().parent
    try:
        found, above = directory.stat(), directory.parent.stat()
    except OSError:
        return False
    sticky = above.st_mode & stat.S_ISVTX
    if others_may_write(found) or (others_may_write(above) and not sticky):
        return False
    return found.st_uid == 0 or uid in (0, found.st_uid)


def down() -> BrokerDown:
    """Return the error of a daemon that is not there."""
    return BrokerDown(_DOWN, hint=_HINT)


def _headers(token: str) -> dict[str, str]:
    kind = {"Content-Type": "application/json"}
    return kind | {"Authorization": f"token {token}"} if token else kind
