"""The OpenAPI 3.1 document of the REST API, made from the types and one table of operations.

``python -m genv_jupyter.api.openapi`` prints it; the browser's types are generated from that. The
same operations stand at two doors: ``/v1/`` on the sockets and ``<base_url>genv-jupyter/v1/`` on
the Jupyter server; what one server tells the broker (``servers/…``) is for the sockets only.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
from msgspec import Struct

from genv_jupyter import __version__
from genv_jupyter.api.operation import EVERYWHERE, Operation
from genv_jupyter.api.operations import OPERATIONS
from genv_jupyter.errors import GpuError, all_errors

_REFS = "#/components/schemas/{name}"


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
    from genv_jupyter import (
        asks,
        events,
        leftovers,
        maintenance,
        model,
        notices,
        quotas,
        reports,
        turns,
    )

    modules = (model, asks, events, leftovers, maintenance, notices, quotas, reports, turns)
    return [
        value
        for module in modules
        for value in vars(module).values()
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
            **{
                str(status): {
                    "description": op.summary,
                    "content": {op.media: {"schema": answer}},
                }
                for status in (op.status, *op.further)
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
    listed: tuple[type[GpuError], ...] = (*op.refusals, *EVERYWHERE)
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
