"""schemathesis at every door: no 5xx, and no answer that the OpenAPI document does not describe.

Every operation is called with what its schema allows and with what it does not, by administrators
and by ordinary users; ids are often those of something that is there.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.core.transport import Response
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from genv_jupyter.api import openapi
from tests.hostile.jupyters import OWNER, jupyter
from tests.hostile.test_denials_browser import HERE
from tests.hub.beside import NAMES, running
from tests.hub.hubs import Hub
from tests.integration.daemons import Daemon, User, unprivileged

EXAMPLES = 20
"""Of each operation, at each door, with each kind of data: what is allowed, and what is not."""
LEAST = 2000
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
STREAMS = {"events", "turn"}
"""Answers that go on: their first line is looked at."""
SCHEMA = schemathesis.openapi.from_dict(openapi.document())
COUNTED: Counter[str] = Counter()
Send = Callable[[requests.PreparedRequest], tuple[int, dict[str, list[str]], bytes]]


class Entrance:
    """A door, how it is called, and the ids of what is behind it."""

    def __init__(self, name: str, base: str, send: Send, ids: dict[str, str]) -> None:
        self.name, self.base, self.send, self.ids = name, base, send, ids


def over_socket(path: Path, **headers: str) -> Send:
    """Send requests over a Unix socket, each on a connection of its own."""

    def send(request: requests.PreparedRequest) -> tuple[int, dict[str, list[str]], bytes]:
        connection = http.client.HTTPConnection("broker")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(30)
        connection.sock.connect(str(path))
        sent = {**request.headers, **headers, "Connection": "close"}
        connection.request(str(request.method), request.path_url, request.body, sent)
        with connection.sock, connection.getresponse() as answer:
            told: dict[str, list[str]] = {}
            for name, value in answer.getheaders():
                told.setdefault(name.lower(), []).append(value)
            goes_on = "transfer-encoding" in told
            return answer.status, told, answer.readline() if goes_on else answer.read()

    return send


def over_tcp(**headers: str) -> Send:
    session = requests.Session()

    def send(request: requests.PreparedRequest) -> tuple[int, dict[str, list[str]], bytes]:
        request.headers.update(headers)
        answer = session.send(request, timeout=30, allow_redirects=False)
        told = {name.lower(): [value] for name, value in answer.headers.items()}
        return answer.status_code, told, answer.content

    return send


@contextlib.contextmanager
def something(send: Send, base: str, who: User | None) -> Iterator[dict[str, str]]:
    """An environment with a grant, of a process that does nothing."""
    wrapped = [] if who is None else unprivileged(who)
    process = subprocess.Popen([*wrapped, "sleep", "600"])
    deadline = time.monotonic() + 30
    try:
        while True:  # until it has become the user
            body = {"kind": "command", "pid": process.pid, "name": "work"}
            found = send(requests.Request("POST", f"{base}/environments", json=body).prepare())
            if found[0] == 201:
                break
            assert time.monotonic() < deadline, found
        made = json.loads(found[2])["id"]
        url = f"{base}/environments/{made}"
        status, _, body = send(requests.Request("PUT", url, json={"memory": "1G"}).prepare())
        assert status == 200, body
        (grant,) = json.loads(body)["grants"]
        yield {"environments": made, "devices": grant["device"], "quotas": "user:nobody"}
    finally:
        process.kill()
        process.wait()


def hostile(entrance: Entrance, name: str, mode: GenerationMode) -> None:
    """Call one operation with what schemathesis thinks of."""
    operation = next(
        found.ok() for found in SCHEMA.get_all_operations() if found.ok().label == name
    )
    kind = operation.path.split("/")[1]
    real = entrance.ids.get(kind)

    @seed(1)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy(generation_mode=mode), st.booleans())
    def call(case: Any, known: bool) -> None:
        parameter = "scope" if kind == "quotas" else "id"
        if known and real is not None and parameter in (case.path_parameters or {}):
            case.path_parameters[parameter] = real
        sent = requests.Request(**case.as_transport_kwargs(base_url=entrance.base)).prepare()
        began = time.monotonic()
        status, headers, body = entrance.send(sent)
        COUNTED[entrance.name] += 1
        if operation_name(name) in STREAMS and status == 200:
            json.loads(body)  # a line of several is no document of that media type
            return
        answer = Response(status, headers, body, sent, time.monotonic() - began, verify=False)
        case.validate_response(answer, checks=CHECKS)

    call()


def operation_name(label: str) -> str:
    method, path = label.split()
    return str(SCHEMA.raw_schema["paths"][path][method.lower()]["operationId"])


def may_be(label: str, mode: GenerationMode) -> bool:
    """Say whether there is such data: any text is a part of a path, so no path is a wrong one."""
    method, path = label.split()
    told = SCHEMA.raw_schema["paths"][path][method.lower()]
    queried = any(it["in"] == "query" for it in told.get("parameters", ()))
    return mode is GenerationMode.POSITIVE or queried or "requestBody" in told


LABELS = [found.ok().label for found in SCHEMA.get_all_operations()]
CALLS = [(label, mode) for label in LABELS for mode in GenerationMode if may_be(label, mode)]
AT_BROWSER = {row.name for row in HERE} - {"events"}  # that is a WebSocket there
EVERY = pytest.mark.parametrize(("label", "mode"), CALLS, ids=lambda it: getattr(it, "value", it))
THERE = pytest.mark.parametrize(
    ("label", "mode"),
    [call for call in CALLS if operation_name(call[0]) in AT_BROWSER],
    ids=lambda it: getattr(it, "value", it),
)


@pytest.fixture(scope="module")
def local(daemon: Daemon) -> Iterator[Entrance]:
    """The local socket, for root: who may do everything gets furthest."""
    send, base = over_socket(daemon.socket), "http://broker/v1"
    with something(send, base, None) as ids:
        yield Entrance("local", base, send, ids)


@pytest.fixture(scope="module")
def own_server(daemon: Daemon, users: dict[str, User]) -> Iterator[Entrance]:
    """A Jupyter server of an ordinary user."""
    with tempfile.TemporaryDirectory(prefix="genv-jupyter-people-") as place:
        Path(place).chmod(0o755)
        with jupyter(Path(place, "ann"), users["ann"]) as server:
            send = over_tcp(Authorization=f"token {OWNER}")
            base = f"{server.url}/genv-jupyter/v1"
            with something(send, base, users["ann"]) as ids:
                yield Entrance("browser", base, send, ids)


@pytest.fixture(scope="module")
def hub(users: dict[str, User]) -> Iterator[Entrance]:
    """The Hub socket, for an ordinary user of the Hub."""
    with running("simple", {name: name for name in NAMES}) as (made, daemon):
        assert isinstance(made, Hub)
        token = made.token_of("ann")
        send, base = over_socket(daemon.hub_socket, Authorization=f"token {token}"), "http://hub/v1"
        with something(send, base, None) as ids:
            yield Entrance("hub", base, send, ids)


@EVERY
def test_local_socket(local: Entrance, label: str, mode: GenerationMode) -> None:
    hostile(local, label, mode)


@THERE
def test_jupyter_server(own_server: Entrance, label: str, mode: GenerationMode) -> None:
    hostile(own_server, label, mode)


@EVERY
def test_hub_socket(hub: Entrance, label: str, mode: GenerationMode) -> None:
    hostile(hub, label, mode)


def test_that_were_as_many_examples() -> None:
    if len(COUNTED) < 3:
        pytest.skip("NOT COUNTED: only some of the doors were tested")
    assert COUNTED.total() >= LEAST, COUNTED
