"""Whatever is sent to the socket, the answer is ours: no 5xx, the error's shape, nothing changed.

The operations are those of the OpenAPI document, the bodies and arguments hypothesis's.
"""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from genv_jupyter.api import openapi, operations
from genv_jupyter.api.client import Client
from genv_jupyter.api.operation import Operation
from genv_jupyter.errors import all_errors
from genv_jupyter.model import NewEnvironment

DOCUMENT = openapi.document()
OPERATIONS = [op for op in operations.OPERATIONS if op.name not in ("events", "openapi")]
ATTACH = next(op for op in OPERATIONS if op.name == "attach")

numbers = st.one_of(
    st.integers(-(10**30), 10**30),
    st.floats(),
    st.sampled_from([0, -1, 1.5, 0.005, 10**30, 2**63, 1, 0.5]),
)
words = st.one_of(
    st.text(max_size=300),
    st.sampled_from(["4X", "4G", "", "0", "-1", "GPU-", "GPU-5", "nan", "2h30m", "../../etc"]),
)
anything = st.recursive(
    st.none() | st.booleans() | numbers | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)
FIELDS = sorted(
    {
        name
        for schema in ("Request", "EnvironmentPatch", "NewEnvironment", "ServerReport")
        for name in DOCUMENT["components"]["schemas"][schema]["properties"]
    }
    | set(DOCUMENT["components"]["schemas"]["KernelReport"]["properties"])
)
amounts = st.integers(-(2**70), 2**70) | words
askings = st.fixed_dictionaries(
    {},
    optional={
        "gpus": numbers.filter(lambda number: number == number and abs(number) != float("inf")),
        "fraction": st.floats(-1, 3) | st.integers(-2, 3),
        "memory": amounts,
        "devices": st.lists(words | st.sampled_from(["0", "1", "2"]), max_size=3),
        "processes": st.integers(-3, 60),
        "duration": amounts,
        "name": words,
    },
)
bodies = st.one_of(
    askings.map(lambda value: json.dumps(value).encode()),
    st.binary(max_size=64),
    anything.map(lambda value: json.dumps(value).encode()),
    st.dictionaries(st.sampled_from(FIELDS), anything, max_size=4).map(
        lambda value: json.dumps(value).encode()
    ),
)
queries = st.dictionaries(
    st.sampled_from(["cuda", "restart", "device", "server", "environment", "since"]),
    words,
    max_size=2,
)


def test_nothing_that_is_sent_breaks_the_broker_or_changes_anything(broker_home: Path) -> None:
    client = Client()
    mine = client.create(NewEnvironment(kind="command", pid=os.getpid())).id
    status, _ = client.call("PUT", f"environments/{mine}", b'{"memory": "4G"}')
    assert status == 200
    shape = Draft202012Validator(
        {"$ref": "#/components/schemas/Error", "components": DOCUMENT["components"]}
    )
    statuses: set[int] = set()

    @example(operation=ATTACH, name=mine, body=b'{"gpus": 1.5}', query={})
    @example(operation=ATTACH, name=mine, body=b'{"gpus": 1', query={})
    @example(operation=ATTACH, name="nobody", body=b'{"gpus": 1}', query={})
    @settings(
        max_examples=250,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(
        operation=st.sampled_from(OPERATIONS),
        name=st.one_of(st.just(mine), st.just(str(uuid.uuid4())), words),
        body=bodies,
        query=queries,
    )
    def send(operation: Operation, name: str, body: bytes, query: dict[str, str]) -> None:
        if operation.name == "turn" and name == mine:
            return  # is had, and lasts as long as the connection
        path = operation.path.strip("/")
        for parameter in ("{id}", "{kernel}"):
            path = path.replace(parameter, quoted(name))
        before = everything(client)
        sent = body if operation.body is not None else None
        status, answer = client.call(operation.method.upper(), path, sent, query)
        statuses.add(status)
        if status < 400:
            if operation.method != "get" and operation.name not in ("place", "health"):
                restore(client, mine)
            return
        assert status < 500, answer
        error = json.loads(answer)
        shape.validate(error)
        assert all_errors()[error["code"]].status == status
        assert "Traceback" not in error["message"]
        assert everything(client) == before, "a refused request changed something"

    send()
    client.close()
    assert {400, 404, 422} <= statuses, "the bad input was not bad"


@pytest.mark.parametrize(
    "query", [{"timeout": "nan"}, {"timeout": "-1"}, {"timeout": ""}, {"since": "then"}]
)
def test_a_turn_that_cannot_be_is_refused_before_its_stream(
    broker_home: Path, query: dict[str, str]
) -> None:
    client = Client()
    mine = client.create(NewEnvironment(kind="command", pid=os.getpid())).id
    status, answer = client.call("POST", f"environments/{mine}/turn", b"", query)
    client.close()
    assert status in (400, 422)
    assert all_errors()[json.loads(answer)["code"]].status == status


def quoted(text: str) -> str:
    return quote(text, safe="") or "%20"


def everything(client: Client) -> Any:
    """Return what a refused request must not change."""
    environments = sorted(client.environments(), key=lambda one: one.id)
    return [(one.id, one.name, one.request, one.grants) for one in environments]


def restore(client: Client, mine: str) -> None:
    """Undo what an accepted request did."""
    client.call("PUT", f"environments/{mine}", b'{"memory": "4G"}')
