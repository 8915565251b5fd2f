"""The event stream of the Jupyter server: a WebSocket that tells what changes."""

from __future__ import annotations

import asyncio
from typing import Any

from jupyter_core.utils import ensure_async
from jupyter_server.auth.decorator import ws_authenticated
from jupyter_server.base.websocket import WebSocketMixin
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from genv_jupyter.errors import (
    BadRequest,
    Forbidden,
)
from genv_jupyter.server.door import RESOURCE, ErrorShape
from genv_jupyter.server.events import BACKLOG


class EventsHandler(WebSocketMixin, ErrorShape, WebSocketHandler):
    """The event stream: a snapshot, then changes."""

    # Without pings: behind a Hub any byte counts as activity and keeps an abandoned server alive.
    ping_interval = 0
    _unread = 0
    _since: int | None = None

    @ws_authenticated
    async def get(self, *args: Any, **kwargs: Any) -> None:
        user = self.current_user
        if not await ensure_async(self.authorizer.is_authorized(self, user, "read", RESOURCE)):
            raise Forbidden("You may not see the GPUs of this server.", hint="Ask its owner.")
        since = self.get_query_argument("since", None)
        if since is not None and not (since.isascii() and since.isdigit()):
            raise BadRequest("since is a revision: a whole number.")
        if self.request.headers.get("Upgrade", "").lower() != "websocket":
            raise BadRequest("Events come over a WebSocket.", hint="Open it as ws:// or wss://.")
        self._since = None if since is None else int(since[:18])
        await super().get(*args, **kwargs)

    def open(self, *args: Any, **kwargs: Any) -> None:
        super().open(*args, **kwargs)
        self.host.start()
        self.host.hub.join(self, self._since)

    def on_close(self) -> None:
        self.host.hub.leave(self)
        super().on_close()

    def on_message(self, message: str | bytes) -> None:
        """Nothing is expected of a listener."""

    def send(self, text: str) -> None:
        """Send a message; one who does not read is cut off, and will ask for a snapshot."""
        if self._unread >= BACKLOG:
            self.end()
            return
        try:
            sent = asyncio.ensure_future(self.write_message(text))
        except WebSocketClosedError:
            self.host.hub.leave(self)
            return
        self._unread += 1
        sent.add_done_callback(self._sent)

    def _sent(self, sent: asyncio.Future[None]) -> None:
        self._unread -= 1
        if not sent.cancelled() and sent.exception() is not None:
            self.host.hub.leave(self)

    def end(self) -> None:
        """Close the connection."""
        self.host.hub.leave(self)
        self.close(1001)
