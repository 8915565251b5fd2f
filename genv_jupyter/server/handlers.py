"""The browser's door: authenticate, authorise, relay to the broker.

The broker sees the user who owns this server; who clicks is known to Jupyter's login alone, and
decides here what they may do: ``read`` or ``write`` on the resource ``gpu``.
"""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

import msgspec
from jupyter_server.base.handlers import JupyterHandler

from genv_jupyter.errors import Forbidden, Unknown
from genv_jupyter.model import Environment
from genv_jupyter.server.door import ROUTES_HINT, Door, allowed
from genv_jupyter.server.stream import EventsHandler

_OF_THE_PROCESS = frozenset({"applied", "cuda", "revision", "visible"})
"""What ``PATCH environments`` takes in from whoever has looked into the process."""

APPLY_SECONDS = 1.0
"""For which an attach waits until its variables are in the kernel."""


class HealthHandler(Door):
    @allowed("read")
    async def get(self) -> None:
        await self.relay("GET", "health")


class DevicesHandler(Door):
    @allowed("read")
    async def get(self) -> None:
        await self.relay("GET", "devices", server=self.host.reports.link.id)


class DeviceHandler(Door):
    @allowed("write")
    async def patch(self, device: str) -> None:
        await self.relay("PATCH", f"devices/{quote(device, safe='')}", self.request.body)


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
        """Change name or lease. What was seen in a process this server and the kernel tell."""
        body = self.request.body
        if told := _OF_THE_PROCESS & _fields(body):
            raise Forbidden(
                f"A browser cannot tell what a kernel sees ({', '.join(sorted(told))}).",
                hint="Kernels and their server tell it by themselves.",
            )
        await self.relay("PATCH", _path(environment), body)

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
        raise Unknown("There is nothing here.", hint=ROUTES_HINT)


def _fields(body: bytes) -> set[str]:
    """Return the fields of a body; of one that cannot be read none: the broker refuses it."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return set()
    return {*found} if isinstance(found, dict) else set()


def _path(environment: str) -> str:
    return f"environments/{quote(environment, safe='')}"


_ID = r"([^/]+)"
_BASE = r"/genv-jupyter/v1/"
ROUTES: tuple[tuple[str, type[JupyterHandler]], ...] = (
    (f"{_BASE}health", HealthHandler),
    (f"{_BASE}devices", DevicesHandler),
    (f"{_BASE}devices/{_ID}", DeviceHandler),
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
