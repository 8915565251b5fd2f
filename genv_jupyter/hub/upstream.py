"""The way to the host daemon: its Hub socket, with the visitor's own token and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import httpx

from genv_jupyter.errors import BrokerDown

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
                method, path, content=body or None, headers=_headers(token)
            )
        except httpx.HTTPError:
            raise BrokerDown(_DOWN, hint=_HINT) from None
        return Answer(answer.status_code, answer.content)

    @asynccontextmanager
    async def events(self, token: str, path: str) -> AsyncIterator[httpx.Response]:
        """Open a visitor's stream of events, which has no end of its own."""
        quiet = httpx.Timeout(CALL_SECONDS, read=None)
        async with self._client.stream(
            "GET", path, headers=_headers(token), timeout=quiet
        ) as answer:
            yield answer

    async def close(self) -> None:
        """Close what is open."""
        await self._client.aclose()


def down() -> BrokerDown:
    """Return the error of a daemon that is not there."""
    return BrokerDown(_DOWN, hint=_HINT)


def _headers(token: str) -> dict[str, str]:
    kind = {"Content-Type": "application/json"}
    return kind | {"Authorization": f"token {token}"} if token else kind
