"""The browser's door: authenticate, authorise, relay to the broker.

The broker sees the user who owns this server; who clicks is known to Jupyter's login alone, and
decides here what they may do: ``read`` or ``write`` on the resource ``gpu``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, TypeVar, cast
from urllib.parse import quote

import msgspec
from jupyter_core.utils import ensure_async
from jupyter_server.auth.decorator import authorized, ws_authenticated
from jupyter_server.base.handlers import APIHandler, JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from tornado import web
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from genv_jupyter.api.http import MAX_BODY
from genv_jupyter.errors import (
    BadRequest,
    Forbidden,
    GpuError,
    MethodNotAllowed,
    TooLarge,
    Unauthenticated,
    Unknown,
)
from genv_jupyter.model import Environment
from genv_jupyter.server.events import BACKLOG
from genv_jupyter.server.kernels import ServerHost

Verb = TypeVar("Verb", bound=Callable[..., Any])

RESOURCE = "gpu"
APPLY_SECONDS = 1.0
"""For which an attach waits until its variables are in the kernel."""

_ROUTES_HINT = "The routes are listed in openapi.json."


class ErrorShape(JupyterHandler):
    """Every error leaves in our shape, those of login, XSRF, JSON and routing included."""

    auth_resource = RESOURCE
    _track_activity = False  # a sidebar that looks on must not keep an idle server alive

    def initialize(self, host: ServerHost) -> None:
        self.host = host

    def set_default_headers(self) -> None:
        super().set_default_headers()
        self.set_header("Cache-Control", "no-store")

    def get_login_url(self) -> str:
        """An API answers 401 instead of leading to a page."""
        raise Unauthenticated("You are not logged in to this server.", hint="Log in and try again.")

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = kwargs.get("exc_info", (None, None, None))[1]
        if not isinstance(error, GpuError):
            error = self._translated(error, status_code)
        self.set_status(error.status)
        self.set_header("Content-Type", "application/json")
        # Not APIHandler's finish: a refused request is no activity.
        web.RequestHandler.finish(self, json.dumps(error.payload()))

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        if not isinstance(value, GpuError):
            super().log_exception(typ, value, tb)

    def _translated(self, error: object, status: int) -> GpuError:
        """Put what jupyter_server and tornado say into our words."""
        said = str(getattr(error, "log_message", None) or "")
        if status in (401, 403) and self.__dict__.get("_jupyter_current_user") is None:
            return Unauthenticated(
                "You are not logged in to this server.", hint="Log in and try again."
            )
        if status == 403:
            return Forbidden(said or "You may not do this.", hint="Ask the owner of this server.")
        if status == 404:
            return Unknown("There is nothing here.", hint=_ROUTES_HINT)
        if status == 405:
            return MethodNotAllowed("This verb does not exist here.", hint=_ROUTES_HINT)
        if status == 413:
            return TooLarge("The request is too large.")
        if 400 <= status < 500:
            return BadRequest(said or "The request cannot be read.")
        return GpuError("The GPU extension failed inside; the server's log says more.")


def allowed(action: str) -> Callable[[Verb], Verb]:
    """Let in only who is logged in and may do this to the resource ``gpu``."""

    def decorate(verb: Verb) -> Verb:
        return cast(Verb, web.authenticated(authorized(action, RESOURCE)(verb)))

    return decorate


class Door(ErrorShape, APIHandler):
    """Base of the verbs."""

    async def relay(
        self, method: str, path: str, body: bytes | None = None, **query: str | None
    ) -> None:
        """Send a request to the broker and pass its answer on."""
        self.answer(*await self.ask(method, path, body, **query))

    async def ask(
        self, method: str, path: str, body: bytes | None = None, **query: str | None
    ) -> tuple[int, bytes]:
        """Send a request to the broker, as the owner of this server."""
        if body is not None and len(body) > MAX_BODY:
            raise TooLarge("The request is too large.")
        self.host.start()
        call = self.host.reports.link.call(method, path, body, query)
        try:
            status, answer = await asyncio.wrap_future(call)
        except GpuError as error:
            self.host.metrics.refused(error.code)
            raise
        self.host.metrics.answered(status, answer)
        return status, answer

    def answer(self, status: int, body: bytes) -> None:
        """Write an answer of the broker."""
        self.set_status(status)
        self.finish(body)

    def argument(self, name: str) -> str | None:
        """Read a query argument."""
        return self.get_query_argument(name, None)


class HealthHandler(Door):
    @allowed("read")
    async def get(self) -> None:
        await self.relay("GET", "health")


class DevicesHandler(Door):
    @allowed("read")
    async def get(self) -> None:
        await self.relay("GET", "devices", server=self.host.reports.link.id)


class EnvironmentsHandler(Door):
    @allowed("read")
    async def get(self) -> None:
        await self.relay("GET", "environments")

    @allowed("write")
    async def post(self) -> None:
        await self.relay("POST", "environments", self.request.body)


class EnvironmentHandler(Door):
    @allowed("read")
    async def get(self, environment: str) -> None:
        await self.relay("GET", _path(environment))

    @allowed("write")
    async def put(self, environment: str) -> None:
        """Attach; a kernel of this server is asked how CUDA is, and is given its variables."""
        cuda = await self.host.applier.probe(environment)
        status, body = await self.ask(
            "PUT",
            _path(environment),
            self.request.body,
            cuda=cuda,
            restart=self.argument("restart"),
        )
        if status == 200 and await self._applied(self._learned(body)):
            status, body = await self.ask("GET", _path(environment))
        self.answer(status, body)

    @allowed("write")
    async def patch(self, environment: str) -> None:
        await self.relay("PATCH", _path(environment), self.request.body)

    @allowed("write")
    async def delete(self, environment: str) -> None:
        """Detach; a kernel of this server hides the devices at once, and then they are free."""
        cuda = await self.host.applier.probe(environment)
        device = self.argument("device")
        status, body = await self.ask("DELETE", _path(environment), device=device, cuda=cuda)
        if status == 200 and await self._applied(self._learned(body)):
            status, body = await self.ask("GET", _path(environment))
        self.answer(status, body)

    def _learned(self, body: bytes) -> Environment:
        """Read an answer; a kernel of this server that restarts now needs to know it."""
        environment = msgspec.json.decode(body, type=Environment)
        self.host.reports.learn(environment)
        return environment

    async def _applied(self, environment: Environment) -> bool:
        """Apply what was granted or given back; say whether that was done in time."""
        environ = environment.environ
        drains = any(grant.state == "draining" for grant in environment.grants)
        late = environment.cuda == "initialized"
        if environ is None or not (environment.applied == "pending" or (drains and not late)):
            return False
        if self.host.manager_of(environment.id) is None:
            return False
        task = self.host.applier.apply(environment.id, environ)
        done, _ = await asyncio.wait({task}, timeout=APPLY_SECONDS)
        return bool(done)


class RestartHandler(Door):
    @allowed("write")
    async def post(self, environment: str) -> None:
        await self.relay("POST", f"{_path(environment)}/restart")


class AskHandler(Door):
    @allowed("write")
    async def post(self, environment: str) -> None:
        await self.relay("POST", f"{_path(environment)}/ask", self.request.body)


class AnswerHandler(Door):
    @allowed("write")
    async def post(self, notice: str) -> None:
        path = f"notices/{quote(notice, safe='')}/answer"
        await self.relay("POST", path, self.request.body)


class QueueHandler(Door):
    @allowed("read")
    async def get(self) -> None:
        await self.relay("GET", "queue")


class TicketHandler(Door):
    @allowed("write")
    async def delete(self, ticket: str) -> None:
        await self.relay("DELETE", f"queue/{quote(ticket, safe='')}")


class UsageHandler(Door):
    @allowed("read")
    async def get(self) -> None:
        environment, device = self.argument("environment"), self.argument("device")
        since, step = self.argument("since"), self.argument("step")
        await self.relay(
            "GET", "usage", environment=environment, device=device, since=since, step=step
        )


class UsageReportHandler(Door):
    @allowed("read")
    async def get(self) -> None:
        since, by = self.argument("since"), self.argument("by")
        await self.relay("GET", "usage/report", since=since, by=by)


class NoticesHandler(Door):
    @allowed("read")
    async def get(self) -> None:
        await self.relay("GET", "notices")


class NoticeHandler(Door):
    @allowed("write")
    async def delete(self, notice: str) -> None:
        await self.relay("DELETE", f"notices/{quote(notice, safe='')}")


class AuditHandler(Door):
    @allowed("read")
    async def get(self) -> None:
        search, limit = self.argument("search"), self.argument("limit")
        await self.relay("GET", "audit", search=search, limit=limit)


class QuotaHandler(Door):
    @allowed("read")
    async def get(self) -> None:
        await self.relay("GET", "quota", user=self.argument("user"))


class QuotaRulesHandler(Door):
    @allowed("read")
    async def get(self) -> None:
        await self.relay("GET", "quotas")


class QuotaRuleHandler(Door):
    @allowed("write")
    async def put(self, scope: str) -> None:
        await self.relay("PUT", f"quotas/{quote(scope, safe='')}", self.request.body)

    @allowed("write")
    async def delete(self, scope: str) -> None:
        await self.relay("DELETE", f"quotas/{quote(scope, safe='')}")


class LeftoversHandler(Door):
    @allowed("read")
    async def get(self) -> None:
        await self.relay("GET", "leftovers")


class ProcessHandler(Door):
    @allowed("write")
    async def delete(self, process: str) -> None:
        await self.relay("DELETE", f"processes/{quote(process, safe='')}")


class PlacementsHandler(Door):
    @allowed("read")
    async def post(self) -> None:
        environment = self.argument("environment")
        await self.relay("POST", "placements", self.request.body, environment=environment)


class OpenApiHandler(Door):
    @allowed("read")
    async def get(self) -> None:
        await self.relay("GET", "openapi.json")


class NotFoundHandler(Door):
    """Whatever else is asked for below our name."""

    async def prepare(self, **kwargs: Any) -> None:
        await super().prepare(**kwargs)
        if self.current_user is None:
            self.get_login_url()
        raise Unknown("There is nothing here.", hint=_ROUTES_HINT)


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


def _path(environment: str) -> str:
    return f"environments/{quote(environment, safe='')}"


_ID = r"([^/]+)"
_BASE = r"/genv-jupyter/v1/"
ROUTES: tuple[tuple[str, type[JupyterHandler]], ...] = (
    (f"{_BASE}health", HealthHandler),
    (f"{_BASE}devices", DevicesHandler),
    (f"{_BASE}environments", EnvironmentsHandler),
    (f"{_BASE}environments/{_ID}", EnvironmentHandler),
    (f"{_BASE}environments/{_ID}/restart", RestartHandler),
    (f"{_BASE}placements", PlacementsHandler),
    (f"{_BASE}environments/{_ID}/ask", AskHandler),
    (rf"{_BASE}notices/{_ID}/answer", AnswerHandler),
    (f"{_BASE}queue", QueueHandler),
    (f"{_BASE}queue/{_ID}", TicketHandler),
    (f"{_BASE}leftovers", LeftoversHandler),
    (f"{_BASE}processes/{_ID}", ProcessHandler),
    (f"{_BASE}notices", NoticesHandler),
    (f"{_BASE}notices/{_ID}", NoticeHandler),
    (f"{_BASE}audit", AuditHandler),
    (f"{_BASE}quota", QuotaHandler),
    (f"{_BASE}quotas", QuotaRulesHandler),
    (f"{_BASE}quotas/{_ID}", QuotaRuleHandler),
    (f"{_BASE}usage", UsageHandler),
    (f"{_BASE}usage/report", UsageReportHandler),
    (f"{_BASE}events", EventsHandler),
    (rf"{_BASE}openapi\.json", OpenApiHandler),
    (r"/genv-jupyter(?:/.*)?", NotFoundHandler),
)
