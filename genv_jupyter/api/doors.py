"""What every door has: its way of knowing the caller, decoding, encoding, and errors in our shape.

A door mixes ``Verbs`` with its own way of knowing the caller: ``LocalDoor`` is the Unix socket of
one user, where the kernel itself says who is at the other end.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import parse_qsl, unquote

import msgspec

from genv_jupyter import __version__
from genv_jupyter.api.http import Connection, Left, Request
from genv_jupyter.api.rendezvous import version_key
from genv_jupyter.errors import (
    BadRequest,
    GpuError,
    MethodNotAllowed,
    Unauthenticated,
    VersionMismatch,
    from_payload,
)
from genv_jupyter.isolation.processes import peer
from genv_jupyter.model import Cuda, KernelReport, NewEnvironment, Principal, ServerReport, Time

if TYPE_CHECKING:
    from genv_jupyter.broker.service import Broker

T = TypeVar("T")
R = TypeVar("R", NewEnvironment, ServerReport, KernelReport)
log = logging.getLogger(__name__)
_DIGITS = 100
ROUTES_HINT = "The routes and their arguments are listed in openapi.json."
_METHODS = {verb.upper(): verb for verb in ("get", "put", "post", "patch", "delete")}
_INTERNAL = {
    "code": "internal",
    "message": "The GPU broker failed inside.",
    "hint": "Try again; broker.log says more, beside the ledger that `jupyter gpu doctor` names.",
}
_CUDA: tuple[Cuda, ...] = ("initialized", "not_initialized", "unknown")


class Host(Protocol):
    """What a door needs of the process it is in."""

    broker: Broker

    async def run(
        self, verb: Callable[[], T], *, patient: bool = False, asks: bool = False, who: str = ""
    ) -> T:
        """Run a verb of somebody off the event loop; a ``patient`` one may wait for programs.

        One that ``asks`` waits for the host's answer who somebody is.
        """

    async def stream(self, handler: Verbs, server: str | None, since: int | None) -> None:
        """Write events until the caller leaves."""

    async def turn(
        self, handler: Verbs, environment: str, since: float | None, timeout: float | None
    ) -> None:
        """Tell a caller of its turn until that is over."""

    def leave(self, version: str) -> bool:
        """Make way for a newer version; say whether it is newer."""


class Verbs:
    """Base of all handlers of a door: one request; every error leaves in our shape."""

    def __init__(self, host: Host, connection: Connection, request: Request) -> None:
        self.host = host
        self.connection = connection
        self.request = request
        self.status = 200
        self.refused: GpuError | None = None

    def principal(self) -> Principal:
        """Return the proven caller; each door has its own way."""
        raise NotImplementedError

    def peer_pid(self) -> int | None:
        """Return the caller's pid, as the kernel says it; 0 where the broker cannot see it."""
        return 0

    def here(self, report: R) -> R:
        """Return a report with its pid as the broker has it; a door of one pid namespace as is."""
        return report

    def prepare(self) -> None:
        self.caller = self.principal()
        asked = self.request.headers.get("genv-jupyter-version")
        if asked is not None and version_key(asked)[:1] != version_key(__version__)[:1]:
            raise VersionMismatch(
                f"This GPU broker has version {__version__}, and the caller {asked[:32]}.",
                hint="Install the same version of genv-jupyter for Jupyter and for its kernels.",
            )

    async def serve(self, arguments: Sequence[str]) -> None:
        """Answer the request; ``arguments`` are the parts of the path that name something."""
        try:
            self.prepare()
            verb = getattr(self, _METHODS.get(self.request.method, ""), None)
            if verb is None:
                self.connection.last = True  # whether its answer may have a body nobody knows
                raise MethodNotAllowed("This verb does not exist here.", hint=ROUTES_HINT)
            await verb(*map(_unquoted, arguments))
            if self.connection.begun:
                self.connection.end()
        except Left:
            raise
        except Exception as error:
            self._refuse(error)

    def _refuse(self, error: Exception) -> None:
        if not isinstance(error, GpuError):
            log.exception("%s %s failed", self.request.method, self.request.path[:256])
            error = from_payload(_INTERNAL, 500)
        self.refused = error
        if self.connection.begun:
            raise Left  # too late to say it
        self.finish(json.dumps(error.payload()).encode(), error.status)

    # -- decode and encode ----------------------------------------------------------------------

    def body(self, kind: type[T]) -> T:
        """Decode the body, or say what is wrong with it."""
        try:
            return msgspec.json.decode(self.request.body or b"null", type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadRequest(
                f"The body cannot be read: {error}.", hint="The fields are listed in openapi.json."
            ) from None

    def get_query_argument(self, name: str, default: T) -> str | T:
        """Return an argument of the query, the last of that name."""
        if not self.request.query:
            return default
        try:
            pairs = parse_qsl(self.request.query, keep_blank_values=True, errors="strict")
        except UnicodeDecodeError:
            raise BadRequest("The query is not UTF-8.", hint=ROUTES_HINT) from None
        return next((value.strip() for key, value in reversed(pairs) if key == name), default)

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
        self,
        verb: Callable[[], Any],
        status: int | Callable[[Any], int] = 200,
        *,
        patient: bool = False,
        asks: bool = False,
    ) -> None:
        """Run a verb and write what it returns, which may decide on the status."""
        result = await self.host.run(verb, patient=patient, asks=asks, who=self.caller.key)
        known = status if isinstance(status, int) else status(result)
        self.finish(msgspec.json.encode(result), known)

    def finish(self, body: bytes, status: int = 200, kind: str = "application/json") -> None:
        """Write the whole answer."""
        self.status = status
        self.connection.answer(status, body, kind)


def _unquoted(part: str) -> str:
    try:
        return unquote(part, errors="strict")
    except UnicodeDecodeError:
        raise BadRequest("The path is not UTF-8.", hint=ROUTES_HINT) from None


class LocalDoor(Verbs):
    """The user broker's socket: the kernel says which uid is at the other end."""

    def principal(self) -> Principal:
        connection = self.connection
        if connection.caller is None:
            pid, uid, _ = peer(connection.socket)
            if uid != os.getuid():
                raise Unauthenticated(
                    "This GPU broker serves another user.",
                    hint="Unset GENV_JUPYTER_SOCKET to use your own.",
                )
            connection.caller = (pid, Principal(realm="local", id=str(uid), name=user_name(uid)))
        found: tuple[int, Principal] = connection.caller
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
