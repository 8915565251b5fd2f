"""Every operation of the REST API, in one table: what the OpenAPI document is made from."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from genv_jupyter import errors
from genv_jupyter.asks import Answer, Ask, Asked
from genv_jupyter.errors import GpuError
from genv_jupyter.events import Event
from genv_jupyter.isolation.smi.report import SmiAnswer, SmiCall
from genv_jupyter.leftovers import Leftover
from genv_jupyter.maintenance import DevicePatch
from genv_jupyter.model import (
    AuditEntry,
    BrokerHealth,
    Cuda,
    Device,
    DryRun,
    Environment,
    EnvironmentPatch,
    EnvironmentUsage,
    KernelReport,
    NewEnvironment,
    QueueTicket,
    Request,
    ServerReport,
    Time,
)
from genv_jupyter.notices import Notice
from genv_jupyter.quotas import QuotaLimits, QuotaRule, QuotaView
from genv_jupyter.reports import By, DeviceHistory, EnvironmentHistory, UsageReport
from genv_jupyter.reserving import NewReservation
from genv_jupyter.turns import Turn

Method = Literal["get", "put", "post", "patch", "delete"]
INTERNAL = frozenset({"/replace"})
"""Routes for brokers among themselves; no part of the public surface."""


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


_READ = (errors.UnknownEnvironment, errors.NotYours)
_BODY = (errors.BadRequest, errors.TooLarge)
_ASK = (
    *_BODY,
    *_READ,
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
_PAST = (errors.Unavailable,)
_CUDA = Query("cuda", Cuda, "What the caller saw in the process just before.")
_SERVER = Query("server", str, "Only the devices of this server's pool (sockets only).")

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="get",
        path="/health",
        name="health",
        summary="How the broker, its ledger and the driver are",
        answer=BrokerHealth,
    ),
    Operation(
        method="get",
        path="/devices",
        name="devices",
        summary="The devices of the pool, each with its grants",
        answer=list[Device],
        query=(_SERVER, Query("fresh", bool, "Read the driver anew (sockets only).")),
        refusals=(errors.BadRequest,),
    ),
    Operation(
        method="patch",
        path="/devices/{device}",
        name="patch_device",
        summary="Drain a device for maintenance, or put it back; administrators only",
        body=DevicePatch,
        answer=Device,
        refusals=(
            *_BODY,
            errors.Forbidden,
            errors.UnknownDevice,
            errors.AmbiguousDevice,
            errors.Unavailable,
        ),
    ),
    Operation(
        method="get",
        path="/environments",
        name="environments",
        summary="All environments",
        answer=list[Environment],
    ),
    Operation(
        method="post",
        path="/environments",
        name="create",
        summary="A new environment for a process that no Jupyter server of ours started",
        body=NewEnvironment,
        answer=Environment,
        status=201,
        refusals=(*_BODY, errors.UnknownProcess, errors.NotYours),
    ),
    Operation(
        method="post",
        path="/reservations",
        name="reserve",
        summary="Devices for a Jupyter server that is about to start, on behalf of its owner: for "
        "administrators (sockets only)",
        body=NewReservation,
        answer=Environment,
        status=201,
        refusals=(*_ASK, errors.UnknownUser),
    ),
    Operation(
        method="get",
        path="/environments/{id}",
        name="environment",
        summary="One environment; a kernel's environment has the kernel's id",
        answer=Environment,
        refusals=_READ,
    ),
    Operation(
        method="put",
        path="/environments/{id}",
        name="attach",
        summary="Attach: the body replaces the request; on a refusal the old grants stay. With "
        "`wait` and no room: 202, and a place in the queue",
        body=Request,
        answer=Environment,
        further=(202,),
        query=(
            _CUDA,
            Query("restart", bool, "The caller will restart the kernel, so it is never too late."),
        ),
        refusals=(*_ASK, errors.CudaInitialized, errors.Conflict),
    ),
    Operation(
        method="patch",
        path="/environments/{id}",
        name="patch",
        summary="Change the name, or tell what was applied in the process",
        body=EnvironmentPatch,
        answer=Environment,
        refusals=(*_BODY, *_READ),
    ),
    Operation(
        method="delete",
        path="/environments/{id}",
        name="detach",
        summary="Detach everything, or one device",
        answer=Environment,
        query=(Query("device", str, "UUID, unique prefix or index of the one device."), _CUDA),
        refusals=(
            *_READ,
            errors.BadRequest,
            errors.UnknownDevice,
            errors.AmbiguousDevice,
            errors.Conflict,
        ),
    ),
    Operation(
        method="post",
        path="/environments/{id}/restart",
        name="restart",
        summary="Restart the kernel; its grants are kept. Answers at once",
        answer=Environment,
        status=202,
        refusals=(*_READ, errors.Conflict),
    ),
    Operation(
        method="post",
        path="/environments/{id}/leave",
        name="leave",
        summary="Take its processes off MPS, since they are about to be ended (sockets only)",
        answer=Environment,
        refusals=_READ,
    ),
    Operation(
        method="post",
        path="/environments/{id}/turn",
        name="turn",
        summary="Wait for the turn on shared devices, and have it while the connection is open "
        "(sockets only)",
        answer=Turn,
        query=(
            Query("timeout", str, 'How long to wait at most: seconds, or "2h30m".'),
            Query("since", Time, "Since when one waits who comes back from an earlier broker."),
        ),
        refusals=(*_READ, errors.BadRequest, errors.OutOfRange),
        media="application/jsonl",
    ),
    Operation(
        method="post",
        path="/environments/{id}/nvidia-smi",
        name="nvidia_smi",
        summary="What nvidia-smi says inside an environment (sockets only)",
        body=SmiCall,
        answer=SmiAnswer,
        refusals=(*_BODY, *_READ),
    ),
    Operation(
        method="post",
        path="/placements",
        name="place",
        summary="Dry run: the grants that a request would get now, or its refusal",
        body=Request,
        answer=DryRun,
        query=(Query("environment", str, "For this environment, whose grants are a credit."),),
        refusals=_ASK,
    ),
    Operation(
        method="post",
        path="/environments/{id}/ask",
        name="ask",
        summary="Ask those who hold what an environment needs how long still; a notice of theirs",
        body=Ask,
        answer=Asked,
        refusals=(*_ASK, errors.Conflict, errors.TooOften),
    ),
    Operation(
        method="post",
        path="/notices/{id}/answer",
        name="answer",
        summary="Answer those who have asked: a notice of theirs",
        body=Answer,
        refusals=(*_BODY, errors.Conflict, errors.OutOfRange),
    ),
    Operation(
        method="get",
        path="/queue",
        name="queue",
        summary="Who waits for devices, the first first; before them whose turn has just come",
        answer=list[QueueTicket],
    ),
    Operation(
        method="delete",
        path="/queue/{id}",
        name="leave_queue",
        summary="Leave the queue; what has come already stays, and is taken up with this",
        refusals=(errors.UnknownTicket, errors.NotYours),
    ),
    Operation(
        method="get",
        path="/leftovers",
        name="leftovers",
        summary="Processes that outlived kernels of the caller and still use a device",
        answer=list[Leftover],
    ),
    Operation(
        method="delete",
        path="/processes/{id}",
        name="end_process",
        summary="End a leftover process; {id} is its pid and start: 4711-123456",
        answer=Leftover,
        status=202,
        refusals=(errors.BadRequest, errors.UnknownProcess),
    ),
    Operation(
        method="get",
        path="/notices",
        name="notices",
        summary="What the caller is told about their environments, the oldest first",
        answer=list[Notice],
    ),
    Operation(
        method="delete",
        path="/notices/{id}",
        name="dismiss",
        summary="Do not show a notice any more; one that is gone is as good as dismissed",
        refusals=(errors.NotYours,),
    ),
    Operation(
        method="get",
        path="/audit",
        name="audit",
        summary="Who asked the broker of a host for what, the newest first; administrators only",
        answer=list[AuditEntry],
        query=(
            Query("search", str, "Only entries in which this occurs."),
            Query("limit", int, "How many at most: 100, unless said; never more than 1000."),
        ),
        refusals=(errors.BadRequest, errors.Forbidden, errors.Unavailable),
    ),
    Operation(
        method="get",
        path="/quota",
        name="quota",
        summary="What the caller may have, has, and has left; of others only for administrators",
        answer=QuotaView,
        query=(Query("user", str, "This user instead of the caller."),),
        refusals=(errors.Forbidden, errors.UnknownUser),
    ),
    Operation(
        method="get",
        path="/quotas",
        name="quota_rules",
        summary="Every rule of quotas; administrators only",
        answer=list[QuotaRule],
        refusals=(errors.Forbidden,),
    ),
    Operation(
        method="put",
        path="/quotas/{scope}",
        name="set_quota",
        summary="Set the rule of default, group:NAME or user:NAME; administrators only",
        body=QuotaLimits,
        refusals=(errors.BadRequest, errors.Forbidden, errors.OutOfRange, errors.Unavailable),
    ),
    Operation(
        method="delete",
        path="/quotas/{scope}",
        name="unset_quota",
        summary="Forget a rule that was set: what is configured holds again; administrators only",
        refusals=(errors.BadRequest, errors.Forbidden, errors.UnknownQuota, errors.Unavailable),
    ),
    Operation(
        method="get",
        path="/usage",
        name="usage",
        summary="What an environment really uses of its grants, and its peak; with `since` the "
        "past of an environment or of a device",
        answer=(EnvironmentUsage, DeviceHistory, EnvironmentHistory),
        query=(
            Query("environment", str, "This environment; owner and admins only."),
            Query("device", str, "Or the past of the device of this UUID."),
            Query("since", Time, "Where the past begins; left out, the usage now."),
            Query("step", str, 'Seconds of a point, or "5m"; longer where too many would come.'),
        ),
        refusals=(*_READ, errors.BadRequest, errors.OutOfRange, errors.UnknownDevice, *_PAST),
    ),
    Operation(
        method="get",
        path="/usage/report",
        name="usage_report",
        summary="What each user, device or environment had: GPU time, idle time, peak memory",
        answer=UsageReport,
        query=(
            Query("since", Time, "Where the report begins (required)."),
            Query("by", By, "A row for each of these; environments if left out."),
        ),
        refusals=(errors.BadRequest, *_PAST),
    ),
    Operation(
        method="put",
        path="/servers/{id}",
        name="register_server",
        summary="A Jupyter server tells about itself (sockets only)",
        body=ServerReport,
        refusals=(*_BODY, errors.NotYours, errors.UnknownProcess),
    ),
    Operation(
        method="delete",
        path="/servers/{id}",
        name="end_server",
        summary="A Jupyter server leaves, its kernels with it (sockets only)",
        refusals=(errors.UnknownServer, errors.NotYours),
    ),
    Operation(
        method="put",
        path="/servers/{id}/kernels/{kernel}",
        name="report_kernel",
        summary="A kernel's birth, state or restart; creates its environment (sockets only)",
        body=KernelReport,
        answer=Environment,
        refusals=(
            *_BODY,
            errors.UnknownServer,
            errors.NotYours,
            errors.UnknownProcess,
            errors.Conflict,
        ),
    ),
    Operation(
        method="delete",
        path="/servers/{id}/kernels/{kernel}",
        name="end_kernel",
        summary="A kernel is gone for good (sockets only)",
        query=(Query("launch", int, "The launch that has ended: a later one is left alone."),),
        refusals=(
            errors.BadRequest,
            errors.UnknownServer,
            errors.UnknownEnvironment,
            errors.NotYours,
        ),
    ),
    Operation(
        method="get",
        path="/events",
        name="events",
        summary="A snapshot, then changes: a WebSocket on the Jupyter server, lines on the sockets",
        answer=Event,
        query=(Query("since", int, "The last revision that the caller has seen."), _SERVER),
        refusals=(errors.BadRequest, errors.UnknownServer),
        media="application/jsonl",
    ),
    Operation(
        method="get",
        path="/metrics",
        name="metrics",
        summary="What the broker knows and has counted, for Prometheus (sockets only)",
        answer=str,
        media="text/plain",
    ),
    Operation(
        method="get",
        path="/openapi.json",
        name="openapi",
        summary="This document",
        answer=dict[str, Any],
    ),
)
