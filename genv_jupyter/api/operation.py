"""What an operation of the REST API is: one verb, what goes in, comes out, may be refused."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from genv_jupyter import errors
from genv_jupyter.errors import GpuError
from genv_jupyter.model import Cuda

Method = Literal["get", "put", "post", "patch", "delete"]


class Query(Struct, frozen=True):
    """A query argument of an operation."""

    name: str
    kind: Any
    meaning: str


class Operation(Struct, frozen=True, kw_only=True):
    """One verb of the API: what goes in, what comes out, and what may be refused.

    ``further`` are other statuses with the same answer.
    """

    method: Method
    path: str
    name: str
    summary: str
    body: Any = None
    answer: Any = None
    status: int = 200
    further: tuple[int, ...] = ()
    query: tuple[Query, ...] = ()
    refusals: tuple[type[GpuError], ...] = ()
    media: str = "application/json"


READ = (errors.UnknownEnvironment, errors.NotYours)
BODY = (errors.BadRequest, errors.TooLarge)
ASK = (
    *BODY,
    *READ,
    errors.QuotaExceeded,
    errors.UnknownDevice,
    errors.AmbiguousDevice,
    errors.OutOfRange,
    errors.NoCapacity,
    errors.NoDriver,
    errors.DriverTimeout,
)
EVERYWHERE = (
    GpuError,
    errors.Unauthenticated,
    errors.Forbidden,
    errors.VersionMismatch,
    errors.BrokerDown,
)
PAST = (errors.Unavailable,)
CUDA = Query("cuda", Cuda, "What the caller saw in the process just before.")
SERVER = Query("server", str, "Only the devices of this server's pool (sockets only).")
