"""One user cannot touch another's through a Jupyter server, nor without a login: each answer."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from genv_jupyter.api import operations
from genv_jupyter.server import handlers
from tests.hostile.jupyters import OWNER, READER, STRANGER, Jupyter, jupyter
from tests.hostile.puppets import Puppet
from tests.hostile.stages import Stage, needs_more, wrong_in
from tests.hostile.table import ROWS, Cell, Row
from tests.integration.daemons import Daemon, User

UNKNOWN, NOT_IN, FORBIDDEN = (404, "unknown_route"), (401, "unauthenticated"), (403, "forbidden")
READS = {"place"}
"""Besides GET."""
CELLS = 190


class Visitor(NamedTuple):
    """Somebody who calls a Jupyter server: whose it is, and with which headers."""

    server: str
    headers: dict[str, str]


VISITORS = {
    "owner": Visitor("ann", {"Authorization": f"token {OWNER}"}),
    "reader": Visitor("ann", {"Authorization": f"token {READER}"}),
    "stranger": Visitor("ann", {"Authorization": f"token {STRANGER}"}),
    "nobody": Visitor("ann", {}),
    "forger": Visitor("ann", {"Authorization": f"token {OWNER}x"}),
    "claimer": Visitor("ann", {"X_Forwarded_User": "owner", "Cookie": "username=owner"}),
    "intruder": Visitor("bob", {"Authorization": f"token {OWNER}"}),
}
"""
``owner``: whose server it is · ``reader``: who may only look, by the server's ``Authorizer`` ·
``stranger``: who is logged in, and may nothing · ``nobody``, ``forger``, ``claimer``: without a
token, with a wrong one, and who only says who they are · ``intruder``: another user, through a
server of their own.
"""


@pytest.fixture(scope="module")
def servers(daemon: Daemon, users: dict[str, User]) -> Iterator[dict[str, Jupyter]]:
    with tempfile.TemporaryDirectory(prefix="genv-jupyter-people-") as place:
        Path(place).chmod(0o755)
        top = Path(place)
        with jupyter(top / "ann", users["ann"]) as ann, jupyter(top / "bob", users["bob"]) as bob:
            yield {"ann": ann, "bob": bob}


def is_there(row: Row) -> bool:
    """Say whether a Jupyter server has the operation of a row."""
    path = next(op.path for op in operations.OPERATIONS if op.name == row.name)
    known = {route.removeprefix(handlers._BASE).replace(r"\.", ".") for route, _ in handlers.ROUTES}
    return re_written(path) in known


def re_written(path: str) -> str:
    return "/".join(r"([^/]+)" if part.startswith("{") else part for part in path[1:].split("/"))


HERE = [row for row in ROWS if is_there(row)]


def expected(row: Row, who: str) -> Cell:
    """Return the cell: as at the socket for those whose server it is, and else by who they are."""
    if who in ("nobody", "forger", "claimer"):
        return NOT_IN
    if who == "stranger":
        return FORBIDDEN
    if who == "intruder":
        return row.answers["other"] if row.name != "events" else (400, "bad_request")
    if who == "reader" and row.method != "GET" and row.name not in READS:
        return FORBIDDEN
    return row.answers["server"] if row.name != "events" else (400, "bad_request")


def test_there_are_as_many_cells() -> None:
    assert len(HERE) * len(VISITORS) >= CELLS


@pytest.mark.parametrize("row", HERE, ids=lambda row: row.name)
def test_everybody_is_answered_as_the_table_says(
    actors: dict[str, Puppet], users: dict[str, User], servers: dict[str, Jupyter], row: Row
) -> None:
    stage = Stage(actors, users["ann"])
    wrong: list[Any] = []
    world, before = None, None
    for who, visitor in VISITORS.items():
        if world is None:
            world = stage.set(more=needs_more(row))
            before = stage.state(world)
        query = None if row.query is None else row.query(world)
        said = servers[visitor.server].call(
            row.method, row.path(world), row.encoded(world), query, **visitor.headers
        )
        wrong += wrong_in(row, who, said, expected(row, who))
        if said.status >= 400 and stage.state(world) != before:
            wrong.append((who, "was refused, and has changed", stage.state(world), before))
        if said.status < 400 and row.method != "GET":  # the next one finds it as it was
            stage.clear(world)
            world = None
    if world is not None:
        stage.clear(world)
    assert not wrong


@pytest.mark.parametrize(
    "told", [{"visible": ""}, {"applied": "live"}, {"cuda": "not_initialized"}, {"revision": 1}]
)
def test_a_browser_cannot_tell_what_a_kernel_sees(
    actors: dict[str, Puppet],
    users: dict[str, User],
    servers: dict[str, Jupyter],
    told: dict[str, Any],
) -> None:
    """Its server would be believed: it is the one that has started the kernel."""
    stage = Stage(actors, users["ann"])
    world = stage.set(more=False)
    said = servers["ann"].call(
        "PATCH",
        f"environments/{world.kernel}",
        json.dumps({"name": "x", **told}).encode(),
        **VISITORS["owner"].headers,
    )
    assert (said.status, json.loads(said.body)["code"]) == FORBIDDEN
    assert next(iter(told)) in json.loads(said.body)["message"]
    stage.clear(world)
