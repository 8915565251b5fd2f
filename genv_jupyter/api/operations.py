"""Every operation of the REST API, in one table: what the OpenAPI document is made from."""

from __future__ import annotations

from typing import Any

from genv_jupyter import errors
from genv_jupyter.api.environment_operations import ENVIRONMENTS
from genv_jupyter.api.operation import (
    BODY,
    PAST,
    READ,
    SERVER,
    Operation,
    Query,
)
from genv_jupyter.events import Event
from genv_jupyter.maintenance import DevicePatch
from genv_jupyter.model import (
    AuditEntry,
    BrokerHealth,
    Device,
    Environment,
    EnvironmentUsage,
    KernelReport,
    ServerReport,
    Time,
)
from genv_jupyter.notices import Notice
from genv_jupyter.quotas import QuotaLimits, QuotaRule, QuotaView
from genv_jupyter.reports import By, DeviceHistory, EnvironmentHistory, UsageReport

INTERNAL = frozenset({"/replace"})
"""Routes for brokers among themselves; no part of the public surface."""

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
        query=(SERVER, Query("fresh", bool, "Read the driver anew (sockets only).")),
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
            *BODY,
            errors.Forbidden,
            errors.UnknownDevice,
            errors.AmbiguousDevice,
            errors.Unavailable,
        ),
    ),
    *ENVIRONMENTS,
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
        refusals=(*READ, errors.BadRequest, errors.OutOfRange, errors.UnknownDevice, *PAST),
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
        refusals=(errors.BadRequest, *PAST),
    ),
    Operation(
        method="put",
        path="/servers/{id}",
        name="register_server",
        summary="A Jupyter server tells about itself (sockets only)",
        body=ServerReport,
        refusals=(*BODY, errors.NotYours, errors.UnknownProcess),
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
            *BODY,
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
        query=(Query("since", int, "The last revision that the caller has seen."), SERVER),
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
