"""Every error a face can show, in one tree.

::

    GpuError                        500 internal
    ├── BadRequest                  400 bad_request
    │   └── AmbiguousDevice         400 ambiguous_device
    ├── Unauthenticated             401 unauthenticated
    ├── Forbidden                   403 forbidden
    │   ├── NotYours                403 not_yours
    │   └── QuotaExceeded           403 quota_exceeded
    ├── Unknown                     404 unknown_route
    │   ├── UnknownEnvironment      404 unknown_environment
    │   ├── UnknownDevice           404 unknown_device
    │   ├── UnknownServer           404 unknown_server
    │   ├── UnknownProcess          404 unknown_process
    │   ├── UnknownQuota            404 unknown_quota
    │   ├── UnknownTicket           404 unknown_ticket
    │   └── UnknownUser             404 unknown_user
    ├── MethodNotAllowed            405 method_not_allowed
    ├── Conflict                    409 conflict
    │   ├── NoCapacity              409 no_capacity
    │   └── CudaInitialized         409 cuda_initialized
    ├── TooLarge                    413 too_large
    ├── OutOfRange                  422 out_of_range
    ├── VersionMismatch             426 version
    ├── TooMany                     429 too_many
    ├── TooOften                    429 too_often
    └── Unavailable                 503 unavailable
        ├── NoDriver                503 no_driver
        ├── BrokerDown              503 broker_down
        ├── LedgerNewer             503 ledger_newer
        └── DriverTimeout           504 driver_timeout

Each carries a stable ``code``, an HTTP ``status``, a sentence for the user (``message``), what to
do next (``hint``) and machine-readable ``details``. ``payload()`` is the only shape that leaves a
door; ``from_payload`` rebuilds the same error on the client's side.
"""

from __future__ import annotations

from typing import Any, ClassVar


class GpuError(Exception):
    """Base of all errors that are meant to be read by a user.

    Parameters
    ----------
    message
        One or two sentences: what happened, and who holds what.
    hint
        What to do next; may be empty.
    details
        JSON-compatible facts behind the sentence.
    """

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500

    def __init__(
        self, message: str, *, hint: str = "", details: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details: dict[str, Any] = details or {}

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()

    def payload(self) -> dict[str, Any]:
        """Return the body of the error as every door writes it."""
        return {
            "code": self.code,
            "message": self.message,
            "hint": self.hint,
            "details": self.details,
        }


class BadRequest(GpuError):
    """The request cannot be read: wrong JSON, wrong type, unknown field, not a number."""

    code = "bad_request"
    status = 400


class AmbiguousDevice(BadRequest):
    """A UUID prefix fits more than one device."""

    code = "ambiguous_device"


class Unauthenticated(GpuError):
    """Nobody is behind the request that could be proven."""

    code = "unauthenticated"
    status = 401


class Forbidden(GpuError):
    """The caller is known, and may not do this."""

    code = "forbidden"
    status = 403


class NotYours(Forbidden):
    """The thing exists and may be seen, and belongs to somebody else."""

    code = "not_yours"


class QuotaExceeded(Forbidden):
    """More than the caller's quota allows; ``details`` has what is used, left, and which rule."""

    code = "quota_exceeded"


class Unknown(GpuError):
    """There is no such thing, or the caller may not see it."""

    code = "unknown_route"
    status = 404


class UnknownEnvironment(Unknown):
    """No environment of that id."""

    code = "unknown_environment"


class UnknownDevice(Unknown):
    """No device of that UUID, prefix or index in the caller's pool."""

    code = "unknown_device"


class UnknownServer(Unknown):
    """The Jupyter server has not registered (or the broker forgot it: register again)."""

    code = "unknown_server"


class UnknownProcess(Unknown):
    """No such process, or another one has its pid now."""

    code = "unknown_process"


class UnknownTicket(Unknown):
    """No place in the queue of that id: it was left, or served."""

    code = "unknown_ticket"


class UnknownUser(Unknown):
    """The host knows no user of that name."""

    code = "unknown_user"


class UnknownQuota(Unknown):
    """No quota was set for that scope."""

    code = "unknown_quota"


class MethodNotAllowed(GpuError):
    """The route exists, without that verb."""

    code = "method_not_allowed"
    status = 405


class Conflict(GpuError):
    """The request is well formed and cannot be met in the present state."""

    code = "conflict"
    status = 409


class NoCapacity(Conflict):
    """No device has room; ``details`` has ``reasons`` per device and ``holders``."""

    code = "no_capacity"


class CudaInitialized(Conflict):
    """Too late: CUDA has read its variables in this process; a restart is needed."""

    code = "cuda_initialized"


class TooLarge(GpuError):
    """The body of the request is larger than any real one."""

    code = "too_large"
    status = 413


class TooMany(GpuError):
    """One user has more open than the broker of a host keeps for each: connections, kernels."""

    code = "too_many"
    status = 429


class OutOfRange(GpuError):
    """A number that can be read and can never be granted."""

    code = "out_of_range"
    status = 422


class VersionMismatch(GpuError):
    """Client and broker do not speak the same version of the API."""

    code = "version"
    status = 426


class TooOften(GpuError):
    """What may be done only every few minutes was done a moment ago."""

    code = "too_often"
    status = 429


class Unavailable(GpuError):
    """Something this host needs does not work at present."""

    code = "unavailable"
    status = 503


class NoDriver(Unavailable):
    """There is no working NVIDIA driver; the message says what was found."""

    code = "no_driver"


class BrokerDown(Unavailable):
    """The broker cannot be reached and could not be started."""

    code = "broker_down"


class LedgerNewer(Unavailable):
    """The ledger was written by a newer version; it is not touched."""

    code = "ledger_newer"


class DriverTimeout(Unavailable):
    """The driver did not answer in time."""

    code = "driver_timeout"
    status = 504


def all_errors() -> dict[str, type[GpuError]]:
    """Return every error of this module by its code."""
    found: dict[str, type[GpuError]] = {}
    todo: list[type[GpuError]] = [GpuError]
    while todo:
        kind = todo.pop()
        found.setdefault(kind.code, kind)  # not what a caller derives from it for its own ends
        todo.extend(kind.__subclasses__())
    return found


def from_payload(body: Any, status: int) -> GpuError:
    """Rebuild the error that a door wrote; anything unreadable becomes a plain ``GpuError``."""
    if not isinstance(body, dict):
        body = {}
    kind = all_errors().get(str(body.get("code")), GpuError)
    details = body.get("details")
    return kind(
        str(body.get("message") or f"The broker answered with status {status}."),
        hint=str(body.get("hint") or ""),
        details=details if isinstance(details, dict) else {},
    )
