"""The OpenAPI document: complete, valid, and true of what the broker and the server answer."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator
from tornado import web

from genv_jupyter.api import handlers, openapi, operations
from genv_jupyter.errors import GpuError, NoCapacity, all_errors
from genv_jupyter.model import Request
from genv_jupyter.server import handlers as server_handlers
from tests.unit.brokers import HALF, WHOLE, Bench, bench

VERBS = ("get", "put", "post", "patch", "delete")
DOCUMENT = openapi.document()


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path) as made:
        yield made


def described() -> set[tuple[str, str]]:
    """Return every (verb, path) of the document, with its parameters unnamed."""
    return {
        (verb, re.sub(r"\{\w+\}", "{}", path))
        for path, verbs in DOCUMENT["paths"].items()
        for verb in verbs
    }


def handled(routes: Any, base: str = "/") -> set[tuple[str, str]]:
    """Return every (verb, path) that a table of handlers answers."""
    found = set()
    for pattern, handler in routes:
        path = "/" + pattern.removeprefix(base).replace(r"\.", ".").replace("([^/]+)", "{}")
        for verb in VERBS:
            if getattr(handler, verb, None) not in (None, getattr(web.RequestHandler, verb)):
                found.add((verb, path))
    return found


def check(kind: str | dict[str, Any], value: Any) -> None:
    """Hold a value, as it would be written, against a schema of the document."""
    schema = {"$ref": f"#/components/schemas/{kind}"} if isinstance(kind, str) else kind
    whole = {**schema, "components": DOCUMENT["components"]}
    Draft202012Validator(whole).validate(msgspec.json.decode(msgspec.json.encode(value)))


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def test_every_route_of_the_socket_is_described_and_the_reverse() -> None:
    public = {route for route in handled(handlers.ROUTES) if route[1] not in operations.INTERNAL}
    assert public == described()


def test_internal_routes_exist() -> None:
    assert {path for _, path in handled(handlers.ROUTES)} >= operations.INTERNAL


def test_jupyter_server_has_all_routes_but_what_servers_tell() -> None:
    routes = server_handlers.ROUTES[:-1]  # the last one is whatever else is asked for
    found = handled(routes, server_handlers._BASE)
    sockets_only = {route for route in described() if route[1].startswith("/servers")}
    # A process waits, or asks for itself, and no browser.
    local = ("turn", "nvidia-smi", "leave")
    sockets_only.add(("post", "/reservations"))  # of a Hub, and not of a server
    sockets_only.add(("get", "/metrics"))  # a Jupyter server has an endpoint of its own for them
    sockets_only |= {("post", f"/environments/{{}}/{verb}") for verb in local}
    assert found == described() - sockets_only


def test_operations_have_names_of_their_own() -> None:
    names = [operation.name for operation in operations.OPERATIONS]
    assert len(set(names)) == len(names)


def test_every_schema_is_valid_and_every_reference_leads_somewhere() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)
    used = set(references(DOCUMENT))
    assert used <= {f"#/components/schemas/{name}" for name in schemas}
    assert {name.rsplit("/", 1)[1] for name in used} == schemas.keys(), "a schema nobody uses"


def test_every_error_may_be_met_and_names_its_code() -> None:
    text = json.dumps(DOCUMENT["paths"])
    # What only an abstract class stands for, and what is an answer to no route at all.
    elsewhere = {"unknown_route", "method_not_allowed", "ledger_newer", "too_many"}
    assert {code for code in all_errors() if f"`{code}`" not in text} == elsewhere
    assert DOCUMENT["components"]["schemas"]["Error"]["properties"]["code"]["enum"] == sorted(
        all_errors()
    )


def test_refusals_stand_under_their_status() -> None:
    for path, verbs in DOCUMENT["paths"].items():
        for verb, operation in verbs.items():
            for status, response in operation["responses"].items():
                codes = re.findall(r"^`(\w+)`:", response["description"], re.M)
                assert all(all_errors()[code].status == int(status) for code in codes), (path, verb)


def test_times_are_marked_as_times() -> None:
    grant = DOCUMENT["components"]["schemas"]["DeviceGrant"]["properties"]
    assert grant["since"] == {"type": "string", "format": "date-time"}


def test_answers_are_what_the_document_says(desk: Bench) -> None:
    kernel, other = desk.kernel("llm.ipynb"), desk.kernel("debug.ipynb")
    kernel.attach(WHOLE)
    check("Environment", other.attach(HALF))
    check("DryRun", desk.broker.place(desk.me, Request(memory="1G")))
    check("BrokerHealth", desk.broker.health())
    check("Event", desk.broker.snapshot(desk.me))
    check(
        {"type": "array", "items": {"$ref": "#/components/schemas/Device"}}, desk.broker.devices()
    )
    with pytest.raises(NoCapacity) as refusal:
        other.attach(Request(gpus=2))
    check("Error", refusal.value.payload())
    check("Error", GpuError("It failed.").payload())


def test_answers_name_all_their_fields() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    for name in ("Device", "Environment", "Grant", "Event", "BrokerHealth", "Error"):
        assert set(schemas[name]["required"]) == schemas[name]["properties"].keys()
    assert "required" not in schemas["Request"] or not schemas["Request"]["required"]


@pytest.mark.parametrize("body", [{"gpu": 1}, {"gpus": "1"}, {"mps": "maybe"}, {"devices": [0]}])
def test_request_schema_refuses_what_the_broker_refuses(body: dict[str, Any]) -> None:
    schema = {"$ref": "#/components/schemas/Request", "components": DOCUMENT["components"]}
    assert not Draft202012Validator(schema).is_valid(body)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(body, Request)


def test_the_module_prints_the_document() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "genv_jupyter.api.openapi"], capture_output=True, check=True
    )
    assert json.loads(done.stdout) == DOCUMENT
