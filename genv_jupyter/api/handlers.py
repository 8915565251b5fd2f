"""The verbs over HTTP: authenticate, decode, call one broker method, encode.

A door mixes ``Verbs`` with its own way of knowing the caller: ``LocalDoor`` is the Unix socket of
one user, where the kernel itself says who is at the other end.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec
from tornado import web

from genv_jupyter import __version__
from genv_jupyter.api import usage
from genv_jupyter.api.rendezvous import version_key
from genv_jupyter.errors import (
    BadRequest,
    GpuError,
    MethodNotAllowed,
    TooLarge,
    Unauthenticated,
    Unknown,
    VersionMismatch,
    from_payload,
)
from genv_jupyter.isolation.processes import peer
from genv_jupyter.isolation.smi.report import SmiCall
from genv_jupyter.model import (
    Cuda,
    EnvironmentPatch,
    KernelReport,
    NewEnvironment,
    Principal,
    Request,
    ServerReport,
    Time,
)
from genv_jupyter.units import parse_duration

if TYPE_CHECKING:
    from genv_jupyter.broker.service import Broker

T = TypeVar("T")
MAX_BODY = 256 * 1024
_DIGITS = 100
_ROUTES_HINT = "The routes and their arguments are listed in openapi.json."
_CUDA: tuple[Cuda, ...] = ("initialized", "not_initialized", "unknown")


class Host(Protocol):
    """What a door needs of the process it is in."""

    broker: Broker

    async def run(self, verb: Callable[[], T], *, patient: bool = False) -> T:
        """Run a verb off the event loop; a ``patient`` one may wait without keeping others."""

    async def stream(self, handler: Verbs, server: str | None, since: int | None) -> None:
        """Write events until the caller leaves."""

    async def turn(
        self, handler: Verbs, environment: str, since: float | None, timeout: float | None
    ) -> None:
        """Tell a caller of its turn until that is over."""

    def leave(self, version: str) -> bool:
        """Make way for a newer version; say whether it is newer."""


class Verbs(web.RequestHandler):
    """Base of all handlers of a door; every error leaves in our shape."""

    host: Host

    def initialize(self, host: Host) -> None:
        self.host = host

    def principal(self) -> Principal:
        """Return the proven caller; each door has its own way."""
        raise NotImplementedError

    def peer_pid(self) -> int | None:
        """Return the caller's pid where the door can prove it."""
        return None

    def set_default_headers(self) -> None:
        self.set_header("Server", f"genv-jupyter/{__version__}")
        self.set_header("Content-Type", "application/json")
        self.set_header("Cache-Control", "no-store")

    def prepare(self) -> None:
        self.caller = self.principal()
        asked = self.request.headers.get("Genv-Jupyter-Version")
        if asked is not None and version_key(asked)[:1] != version_key(__version__)[:1]:
            raise VersionMismatch(
                f"This GPU broker has version {__version__}, and the caller {asked[:32]}.",
                hint="Install the same version of genv-jupyter for Jupyter and for its kernels.",
            )

    def compute_etag(self) -> None:
        return None

    def check_xsrf_cookie(self) -> None:
        """No cookie authenticates anything here, so there is nothing to forge."""

    # -- decode and encode ----------------------------------------------------------------------

    def body(self, kind: type[T]) -> T:
        """Decode the body, or say what is wrong with it."""
        try:
            return msgspec.json.decode(self.request.body or b"null", type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadRequest(
                f"The body cannot be read: {error}.", hint="The fields are listed in openapi.json."
            ) from None

    def cuda(self) -> Cuda:
        """Read ``?cuda=``."""
        value = self.get_query_argument("cuda", "unknown")
        for known in _CUDA:
            if value == known:
                return known
        raise BadRequest(
            f"cuda={value[:32]!r} is not known.", hint=f"Say one of {', '.join(_CUDA)}."
        )

    def time(self, name: str) -> float | None:
        """Read a point in time, as seconds since the epoch."""
        value = self.get_query_argument(name, None)
        if value is None:
            return None
        try:
            return msgspec.convert(value, Time).timestamp()
        except (msgspec.ValidationError, OverflowError):
            raise BadRequest(
                f"{name}={value[:32]!r} is no time.", hint="Write it as RFC 3339 has it, with Z."
            ) from None

    def flag(self, name: str) -> bool:
        """Read a yes-or-no query argument."""
        value = self.get_query_argument(name, "false")
        if value not in ("true", "false"):
            raise BadRequest(f"{name}={value[:32]!r} is not known.", hint="Say true or false.")
        return value == "true"

    def number(self, name: str, meaning: str) -> int | None:
        """Read a query argument that counts something."""
        value = self.get_query_argument(name, None)
        if value is None:
            return None
        if not (value.isascii() and value.isdigit()):
            raise BadRequest(
                f"{name}={value[:32]!r} is no whole number.",
                hint=f"Say {meaning}, or leave it out.",
            )
        return int(value[:_DIGITS])

    async def answer(
        self, verb: Callable[[], Any], status: int = 200, *, patient: bool = False
    ) -> None:
        """Run a verb and write what it returns."""
        result = await self.host.run(verb, patient=patient)
        self.set_status(status)
        self.finish(msgspec.json.encode(result))

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = kwargs.get("exc_info", (None, None, None))[1]
        if not isinstance(error, GpuError):
            error = _http_error(error, status_code)
        self.clear()
        self.set_status(error.status)
        self.finish(json.dumps(error.payload()))

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        if not isinstance(value, GpuError):
            super().log_exception(typ, value, tb)


def _http_error(error: object, status: int) -> GpuError:
    """Put what tornado says into our words."""
    if isinstance(error, web.MissingArgumentError | UnicodeDecodeError) or status == 400:
        reason = getattr(error, "log_message", None) or "The request cannot be read."
        return BadRequest(str(reason), hint=_ROUTES_HINT)
    if status == 405:
        return MethodNotAllowed("This verb does not exist here.", hint=_ROUTES_HINT)
    if status == 413:
        return TooLarge(
            "The request is too large.", hint=f"{MAX_BODY // 1024} KiB are more than any real one."
        )
    if status == 404:
        return Unknown("There is nothing here.", hint=_ROUTES_HINT)
    return from_payload(
        {
            "code": "internal",
            "message": "The GPU broker failed inside.",
            "hint": "Try again; broker.log says more, beside the ledger that `jupyter gpu doctor` "
            "names.",
        },
        status,
    )


class LocalDoor(Verbs):
    """The user broker's socket: the kernel says which uid is at the other end."""

    def principal(self) -> Principal:
        connection: Any = self.request.connection
        found: tuple[int, Principal] | None = getattr(connection, "genv_peer", None)
        if found is None:
            pid, uid, _ = peer(connection.stream.socket)
            if uid != os.getuid():
                raise Unauthenticated(
                    "This GPU broker serves another user.",
                    hint="Unset GENV_JUPYTER_SOCKET to use your own.",
                )
            found = (pid, Principal(realm="local", id=str(uid), name=user_name(uid)))
            connection.genv_peer = found
        self._pid = found[0]
        return found[1]

    def peer_pid(self) -> int | None:
        return self._pid


_names: dict[int, str] = {}


def user_name(uid: int) -> str:
    """Return the login name of a uid, or the number itself."""
    if uid not in _names:
        import pwd

        try:
            _names[uid] = pwd.getpwuid(uid).pw_name
        except KeyError:
            _names[uid] = str(uid)
    return _names[uid]


class HealthHandler(Verbs):
    async def get(self) -> None:
        await self.answer(self.host.broker.health)


class DevicesHandler(Verbs):
    async def get(self) -> None:
        server, fresh = self.get_query_argument("server", None), self.flag("fresh")
        await self.answer(lambda: self.host.broker.devices(server, fresh=fresh))


class EnvironmentsHandler(Verbs):
    async def get(self) -> None:
        await self.answer(lambda: self.host.broker.environments(self.caller))

    async def post(self) -> None:
        new = self.body(NewEnvironment)
        await self.answer(lambda: self.host.broker.create(self.caller, new), 201)


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
            patient=True,
        )

    async def patch(self, environment: str) -> None:
        body = self.body(EnvironmentPatch)
        await self.answer(lambda: self.host.broker.patch(self.caller, environment, body))

    async def delete(self, environment: str) -> None:
        device, cuda, pid = self.get_query_argument("device", None), self.cuda(), self.peer_pid()
        await self.answer(
            lambda: self.host.broker.detach(
                self.caller, environment, device=device, cuda=cuda, peer_pid=pid
            ),
            patient=True,
        )


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


class PlacementsHandler(Verbs):
    async def post(self) -> None:
        request = self.body(Request)
        environment = self.get_query_argument("environment", None)
        await self.answer(lambda: self.host.broker.place(self.caller, request, environment))


class ServerHandler(Verbs):
    async def put(self, server: str) -> None:
        report = self.body(ServerReport)
        await self.answer(lambda: self.host.broker.put_server(self.caller, server, report))

    async def delete(self, server: str) -> None:
        await self.answer(lambda: self.host.broker.end_server(self.caller, server))


class KernelHandler(Verbs):
    async def put(self, server: str, kernel: str) -> None:
        report = self.body(KernelReport)
        await self.answer(lambda: self.host.broker.put_kernel(self.caller, server, kernel, report))

    async def delete(self, server: str, kernel: str) -> None:
        launch = self.number("launch", "the number of a launch")
        await self.answer(lambda: self.host.broker.end_kernel(self.caller, server, kernel, launch))


class EventsHandler(Verbs):
    async def get(self) -> None:
        since = self.number("since", "the last revision that was seen")
        server = self.get_query_argument("server", None)
        await self.host.stream(self, server, since)


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
        raise Unknown("There is nothing here.", hint=_ROUTES_HINT)


_ID = r"([^/]+)"
ROUTES: tuple[tuple[str, type[Verbs]], ...] = (
    ("health", HealthHandler),
    ("devices", DevicesHandler),
    ("environments", EnvironmentsHandler),
    (f"environments/{_ID}", EnvironmentHandler),
    (f"environments/{_ID}/restart", RestartHandler),
    (f"environments/{_ID}/leave", LeaveHandler),
    (f"environments/{_ID}/nvidia-smi", SmiHandler),
    (f"environments/{_ID}/turn", TurnHandler),
    ("placements", PlacementsHandler),
    ("usage", UsageHandler),
    ("usage/report", UsageReportHandler),
    (f"servers/{_ID}", ServerHandler),
    (f"servers/{_ID}/kernels/{_ID}", KernelHandler),
    ("events", EventsHandler),
    (r"openapi\.json", OpenApiHandler),
    ("replace", ReplaceHandler),
)


def application(host: Host, door: type[Verbs] = LocalDoor) -> web.Application:
    """Mount every verb behind a door."""

    def behind(handler: type[Verbs]) -> type[Verbs]:
        return type(f"{door.__name__}{handler.__name__}", (handler, door), {})

    return web.Application(
        [(rf"/v1/{path}", behind(handler), {"host": host}) for path, handler in ROUTES],
        default_handler_class=behind(NotFoundHandler),
        default_handler_args={"host": host},
        log_function=lambda handler: None,
    )
