"""The verbs over HTTP: authenticate, decode, call one broker method, encode (``doors``)."""

from __future__ import annotations

import re

from genv_jupyter import __version__
from genv_jupyter.api import quota, usage
from genv_jupyter.api.doors import ROUTES_HINT, Host, LocalDoor, Verbs
from genv_jupyter.api.http import Connection, Server
from genv_jupyter.api.http import Request as HttpRequest
from genv_jupyter.asks import Answer, Ask
from genv_jupyter.errors import BadRequest, Unknown
from genv_jupyter.isolation.smi.report import SmiCall
from genv_jupyter.maintenance import DevicePatch
from genv_jupyter.model import (
    EnvironmentPatch,
    KernelReport,
    NewEnvironment,
    Request,
    ServerReport,
)
from genv_jupyter.reserving import NewReservation
from genv_jupyter.units import parse_duration


class HealthHandler(Verbs):
    async def get(self) -> None:
        await self.answer(lambda: self.host.broker.health(self.caller))


class DevicesHandler(Verbs):
    async def get(self) -> None:
        server, fresh = self.get_query_argument("server", None), self.flag("fresh")
        viewer = self.caller
        await self.answer(lambda: self.host.broker.devices(server, fresh=fresh, viewer=viewer))


class DeviceHandler(Verbs):
    async def patch(self, device: str) -> None:
        body = self.body(DevicePatch)
        await self.answer(lambda: self.host.broker.patch_device(self.caller, device, body))


class EnvironmentsHandler(Verbs):
    async def get(self) -> None:
        await self.answer(lambda: self.host.broker.environments(self.caller))

    async def post(self) -> None:
        new = self.body(NewEnvironment)
        await self.answer(lambda: self.host.broker.create(self.caller, self.here(new)), 201)


class EnvironmentHandler(Verbs):
    async def get(self, environment: str) -> None:
        await self.answer(lambda: self.host.broker.environment(self.caller, environment))

    async def put(self, environment: str) -> None:
        request, cuda, restart = self.body(Request), self.cuda(), self.flag("restart")
        pid = self.peer_pid()
        await self.answer(
            lambda: self.host.broker.attach(
                self.caller, environment, request, cuda=cuda, restart=restart, peer_pid=pid
            ),
            lambda found: 200 if found.pending is None else 202,
            patient=True,
        )

    async def patch(self, environment: str) -> None:
        body, pid = self.body(EnvironmentPatch), self.peer_pid()
        await self.answer(
            lambda: self.host.broker.patch(self.caller, environment, body, peer_pid=pid)
        )

    async def delete(self, environment: str) -> None:
        device, cuda, pid = self.get_query_argument("device", None), self.cuda(), self.peer_pid()
        await self.answer(
            lambda: self.host.broker.detach(
                self.caller, environment, device=device, cuda=cuda, peer_pid=pid
            ),
            patient=True,
        )


class ReservationsHandler(Verbs):
    async def post(self) -> None:
        new = self.body(NewReservation)
        await self.answer(lambda: self.host.broker.reserve(self.caller, new), 201, asks=True)


class RestartHandler(Verbs):
    async def post(self, environment: str) -> None:
        await self.answer(lambda: self.host.broker.restart(self.caller, environment), 202)


class LeaveHandler(Verbs):
    async def post(self, environment: str) -> None:
        await self.answer(lambda: self.host.broker.leave(self.caller, environment), patient=True)


class TurnHandler(Verbs):
    async def post(self, environment: str) -> None:
        since, timeout = self.time("since"), self.get_query_argument("timeout", None)
        seconds = None if timeout is None else parse_duration(timeout)
        await self.host.turn(self, environment, since, seconds)


class SmiHandler(Verbs):
    async def post(self, environment: str) -> None:
        call = self.body(SmiCall)
        await self.answer(lambda: self.host.broker.nvidia_smi(self.caller, environment, call))


class UsageHandler(Verbs):
    async def get(self) -> None:
        await usage.usage(self)


class UsageReportHandler(Verbs):
    async def get(self) -> None:
        await usage.report(self)


class NoticesHandler(Verbs):
    async def get(self) -> None:
        await self.answer(lambda: self.host.broker.notices(self.caller))


class NoticeHandler(Verbs):
    async def delete(self, notice: str) -> None:
        await self.answer(lambda: self.host.broker.dismiss(self.caller, notice))


class AskHandler(Verbs):
    async def post(self, environment: str) -> None:
        body = self.body(Ask)
        await self.answer(lambda: self.host.broker.asking.ask(self.caller, environment, body))


class AnswerHandler(Verbs):
    async def post(self, notice: str) -> None:
        body = self.body(Answer)
        await self.answer(lambda: self.host.broker.asking.answer(self.caller, notice, body))


class QueueHandler(Verbs):
    async def get(self) -> None:
        await self.answer(lambda: self.host.broker.tickets(self.caller))


class TicketHandler(Verbs):
    async def delete(self, ticket: str) -> None:
        await self.answer(lambda: self.host.broker.queue.leave(self.caller, ticket))


class LeftoversHandler(Verbs):
    async def get(self) -> None:
        await self.answer(lambda: self.host.broker.leftovers(self.caller))


class ProcessHandler(Verbs):
    async def delete(self, process: str) -> None:
        pid, start = identity(process)
        await self.answer(
            lambda: self.host.broker.end_process(self.caller, pid, start), 202, patient=True
        )


class PlacementsHandler(Verbs):
    async def post(self) -> None:
        request = self.body(Request)
        environment = self.get_query_argument("environment", None)
        await self.answer(lambda: self.host.broker.place(self.caller, request, environment))


class ServerHandler(Verbs):
    async def put(self, server: str) -> None:
        report, pid = self.body(ServerReport), self.peer_pid()
        await self.answer(
            lambda: self.host.broker.put_server(
                self.caller, server, self.here(report), peer_pid=pid
            )
        )

    async def delete(self, server: str) -> None:
        pid = self.peer_pid()
        await self.answer(lambda: self.host.broker.end_server(self.caller, server, peer_pid=pid))


class KernelHandler(Verbs):
    async def put(self, server: str, kernel: str) -> None:
        report, pid = self.body(KernelReport), self.peer_pid()
        await self.answer(
            lambda: self.host.broker.put_kernel(
                self.caller, server, kernel, self.here(report), peer_pid=pid
            )
        )

    async def delete(self, server: str, kernel: str) -> None:
        launch, pid = self.number("launch", "the number of a launch"), self.peer_pid()
        await self.answer(
            lambda: self.host.broker.end_kernel(self.caller, server, kernel, launch, peer_pid=pid)
        )


class EventsHandler(Verbs):
    async def get(self) -> None:
        since = self.number("since", "the last revision that was seen")
        server = self.get_query_argument("server", None)
        await self.host.stream(self, server, since)


class MetricsHandler(Verbs):
    async def get(self) -> None:
        from genv_jupyter.api import metrics  # prometheus_client: for whom asks, and nobody else

        known = await self.host.run(
            lambda: self.host.broker.snapshot(self.caller), who=self.caller.key
        )
        self.finish(metrics.page(known), kind=metrics.MEDIA)


class OpenApiHandler(Verbs):
    async def get(self) -> None:
        from genv_jupyter.api.openapi import document

        await self.answer(document)


class ReplaceHandler(Verbs):
    def prepare(self) -> None:
        self.caller = self.principal()  # whatever version it has

    async def post(self) -> None:
        version = self.body(dict[str, str]).get("version", "")
        if not self.host.leave(version):
            raise BadRequest(
                f"{version[:32]!r} is not newer than {__version__}.",
                hint="Only a newer version replaces an older one.",
            )
        self.finish(b"null")


class NotFoundHandler(Verbs):
    def prepare(self) -> None:
        super().prepare()
        raise Unknown("There is nothing here.", hint=ROUTES_HINT)


def identity(text: str) -> tuple[int, int]:
    """Read the name of a process: its pid, and its start in clock ticks since boot.

    Raises
    ------
    BadRequest
        That is no such name.
    """
    pid, dash, start = text.partition("-")
    if not (dash and pid.isascii() and pid.isdigit() and start.isascii() and start.isdigit()):
        raise BadRequest(
            f"{text[:32]!r} names no process.",
            hint="Write its pid and start as `GET leftovers` has them: 4711-123456.",
        )
    return int(pid[:18]), int(start[:18])


_ID = r"([^/]+)"
ROUTES: tuple[tuple[str, type[Verbs]], ...] = (
    ("health", HealthHandler),
    ("devices", DevicesHandler),
    (f"devices/{_ID}", DeviceHandler),
    ("environments", EnvironmentsHandler),
    (f"environments/{_ID}", EnvironmentHandler),
    (f"environments/{_ID}/restart", RestartHandler),
    (f"environments/{_ID}/leave", LeaveHandler),
    (f"environments/{_ID}/ask", AskHandler),
    (f"environments/{_ID}/nvidia-smi", SmiHandler),
    (f"environments/{_ID}/turn", TurnHandler),
    ("reservations", ReservationsHandler),
    ("placements", PlacementsHandler),
    ("queue", QueueHandler),
    (f"queue/{_ID}", TicketHandler),
    ("leftovers", LeftoversHandler),
    (f"processes/{_ID}", ProcessHandler),
    ("notices", NoticesHandler),
    (f"notices/{_ID}", NoticeHandler),
    (f"notices/{_ID}/answer", AnswerHandler),
    ("audit", quota.AuditHandler),
    ("quota", quota.QuotaHandler),
    ("quotas", quota.QuotaRulesHandler),
    (f"quotas/{_ID}", quota.QuotaRuleHandler),
    ("usage", UsageHandler),
    ("usage/report", UsageReportHandler),
    (f"servers/{_ID}", ServerHandler),
    (f"servers/{_ID}/kernels/{_ID}", KernelHandler),
    ("events", EventsHandler),
    ("metrics", MetricsHandler),
    (r"openapi\.json", OpenApiHandler),
    ("replace", ReplaceHandler),
)


def application(host: Host, door: type[Verbs] = LocalDoor) -> Server:
    """Mount every verb behind a door."""

    def behind(handler: type[Verbs]) -> type[Verbs]:
        return type(f"{door.__name__}{handler.__name__}", (handler, door), {})

    routes = [(re.compile(rf"/v1/{path}"), behind(handler)) for path, handler in ROUTES]
    missing = behind(NotFoundHandler)

    async def handle(connection: Connection, request: HttpRequest) -> None:
        for pattern, handler in routes:
            found = pattern.fullmatch(request.path)
            if found is not None:
                await handler(host, connection, request).serve(found.groups())
                return
        await missing(host, connection, request).serve(())

    return Server(handle)
