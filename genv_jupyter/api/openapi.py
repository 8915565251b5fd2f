"""The OpenAPI 3.1 document of the REST API, made from the types and one table of operations.

``python -m genv_jupyter.api.openapi`` prints it; the browser's types are generated from that. The
same operations stand at two doors: ``/v1/`` on the sockets and ``<base_url>genv-jupyter/v1/`` on
the Jupyter server; what one server tells the broker (``servers/…``) is for the sockets only.
"""

from __future__ import annotations

import json
import re
from typing import Any, Literal

import msgspec
from msgspec import Struct

from genv_jupyter import __version__, errors
from genv_jupyter.errors import GpuError, all_errors
from genv_jupyter.isolation.smi.report import SmiAnswer, SmiCall
from genv_jupyter.model import (
    BrokerHealth,
    Cuda,
    Device,
    DryRun,
    Environment,
    EnvironmentPatch,
    EnvironmentUsage,
    Event,
    KernelReport,
    NewEnvironment,
    Request,
    ServerReport,
    Time,
    Turn,
)
from genv_jupyter.reports import By, DeviceHistory, EnvironmentHistory, UsageReport

Method = Literal["get", "put", "post", "patch", "delete"]
INTERNAL = frozenset({"/replace"})
"""Routes for brokers among themselves; no part of the public surface."""

_REFS = "#/components/schemas/{name}"


class Query(Struct, frozen=True):
    """A query argument of an operation."""

    name: str
    kind: Any
    meaning: str


class Operation(Struct, frozen=True, kw_only=True):
    """One verb of the API: what goes in, what comes out, and what may be refused."""

    method: Method
    path: str
    name: str
    summary: str
    body: Any = None
    answer: Any = None
    status: int = 200
    query: tuple[Query, ...] = ()
    refusals: tuple[type[GpuError], ...] = ()
    media: str = "application/json"


_READ = (errors.UnknownEnvironment, errors.NotYours)
_BODY = (errors.BadRequest, errors.TooLarge)
_ASK = (
    *_BODY,
    *_READ,
    errors.UnknownDevice,
    errors.AmbiguousDevice,
    errors.OutOfRange,
    errors.NoCapacity,
    errors.NoDriver,
    errors.DriverTimeout,
)
_EVERYWHERE = (
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
        summary="Attach: the body replaces the request; on a refusal the old grants stay",
        body=Request,
        answer=Environment,
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
        path="/openapi.json",
        name="openapi",
        summary="This document",
        answer=dict[str, Any],
    ),
)


def document() -> dict[str, Any]:
    """Return the OpenAPI 3.1 document."""
    kinds = [kind for op in OPERATIONS for kind in (op.body, *_answers(op)) if kind is not None]
    schemas, components = _schemas(kinds)
    paths: dict[str, dict[str, Any]] = {}
    for op in OPERATIONS:
        paths.setdefault(op.path, {})[op.method] = _operation(op, schemas)
    built = {
        "openapi": "3.1.0",
        "info": {
            "title": "genv-jupyter",
            "version": __version__,
            "license": {"name": "BSD-3-Clause", "identifier": "BSD-3-Clause"},
            "description": "Bytes are integers; compute is an integer in hundredths of a percent; "
            "times are RFC 3339 UTC; what is unknown is null.",
        },
        "servers": [
            {"url": "/genv-jupyter/v1", "description": "The Jupyter server, below its base_url"},
            {"url": "/v1", "description": "The broker's Unix socket"},
        ],
        "paths": paths,
        "components": {"schemas": {**components, "Error": _error_schema()}},
    }
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(built))  # no tuple is left
    return plain


def _schemas(kinds: list[Any]) -> tuple[dict[int, Any], dict[str, Any]]:
    """Return the schema of each kind (by identity) and the components they refer to."""
    found, components = msgspec.json.schema_components(kinds, ref_template=_REFS)
    for kind in _structs():
        schema = components.get(kind.__name__)
        if schema is None:
            continue
        schema["description"] = _plain(kind.__doc__ or "")
        config = kind.__struct_config__
        if not config.forbid_unknown_fields and not config.omit_defaults:
            schema["required"] = list(schema["properties"])  # an answer always has all of them
    return {id(kind): schema for kind, schema in zip(kinds, found, strict=True)}, components


def _answers(op: Operation) -> tuple[Any, ...]:
    """Return what an operation may answer: one kind, several by its arguments, or nothing."""
    if isinstance(op.answer, tuple):
        return op.answer
    return () if op.answer is None else (op.answer,)


def _structs() -> list[type[Struct]]:
    """Return every wire type."""
    from genv_jupyter import model, reports

    return [
        value
        for value in {**vars(model), **vars(reports)}.values()
        if isinstance(value, type) and issubclass(value, Struct)
    ]


def _operation(op: Operation, schemas: dict[int, Any]) -> dict[str, Any]:
    several = [schemas[id(kind)] for kind in _answers(op)]
    answer = {"anyOf": several} if len(several) > 1 else (several or [{"type": "null"}])[0]
    built: dict[str, Any] = {
        "operationId": op.name,
        "summary": op.summary,
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in re.findall(r"\{(\w+)\}", op.path)
        ]
        + [
            {
                "name": query.name,
                "in": "query",
                "description": query.meaning,
                "schema": msgspec.json.schema(query.kind),
            }
            for query in op.query
        ],
        "responses": {
            str(op.status): {
                "description": op.summary,
                "content": {op.media: {"schema": answer}},
            },
            **_refusals(op),
        },
    }
    if op.body is not None:
        built["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schemas[id(op.body)]}},
        }
    return built


def _refusals(op: Operation) -> dict[str, Any]:
    """Describe the errors of an operation, one response for each status."""
    by_status: dict[int, list[type[GpuError]]] = {}
    listed: tuple[type[GpuError], ...] = (*op.refusals, *_EVERYWHERE)
    for kind in dict.fromkeys(listed):
        by_status.setdefault(kind.status, []).append(kind)
    return {
        str(status): {
            "description": "\n".join(
                f"`{kind.code}`: {_plain(kind.__doc__ or '').splitlines()[0]}" for kind in kinds
            ),
            "content": {"application/json": {"schema": {"$ref": _REFS.format(name="Error")}}},
        }
        for status, kinds in sorted(by_status.items())
    }


def _error_schema() -> dict[str, Any]:
    return {
        "title": "Error",
        "type": "object",
        "description": "Every refusal has this shape.",
        "properties": {
            "code": {"enum": sorted(all_errors())},
            "message": {"type": "string", "description": "What happened, and who holds what."},
            "hint": {"type": "string", "description": "What to do next; may be empty."},
            "details": {
                "type": "object",
                "description": "`no_capacity`: `reasons` by device and `holders`.",
            },
        },
        "required": ["code", "message", "hint", "details"],
    }


def _plain(docstring: str) -> str:
    """Return a docstring without its indentation and without reST's doubled backquotes."""
    lines = [line.strip() for line in docstring.strip().splitlines()]
    return "\n".join(lines).replace("``", "`")


if __name__ == "__main__":
    print(json.dumps(document(), indent=2, ensure_ascii=False))
