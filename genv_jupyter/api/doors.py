"""What every door has: its way of knowing the caller, decoding, encoding, and errors in our shape.

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
from genv_jupyter.model import Cuda, Principal, Time

if TYPE_CHECKING:
    from genv_jupyter.broker.service import Broker

T = TypeVar("T")
MAX_BODY = 256 * 1024
_DIGITS = 100
ROUTES_HINT = "The routes and their arguments are listed in openapi.json."
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
        return BadRequest(str(reason), hint=ROUTES_HINT)
    if status == 405:
        return MethodNotAllowed("This verb does not exist here.", hint=ROUTES_HINT)
    if status == 413:
        return TooLarge(
            "The request is too large.", hint=f"{MAX_BODY // 1024} KiB are more than any real one."
        )
    if status == 404:
        return Unknown("There is nothing here.", hint=ROUTES_HINT)
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
