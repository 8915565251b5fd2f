"""One user cannot touch another's by the host daemon's socket: operation by actor, each answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from genv_jupyter.api import operations
from tests.hostile.puppets import (
    Puppet,
    acting,
    become,
    in_a_container,
    root_of_a_container,
)
from tests.hostile.stages import NAMED, Stage, needs_more, wrong_in
from tests.hostile.table import ACTORS, INTERNAL, ROWS, Row
from tests.integration.daemons import Daemon, User, make_users, serving

NOBODY = User("no account", 3_999_777, 3_999_777, ())
CELLS = 240


@pytest.fixture(scope="module")
def users() -> Iterator[dict[str, User]]:
    yield from make_users()


@pytest.fixture(scope="module")
def daemon(users: dict[str, User]) -> Iterator[Daemon]:
    admins = f"c.Access.admin_groups = ['{users['adm'].name}ins']"
    with pytest.MonkeyPatch.context() as patch, serving(patch, admins) as made:
        yield made


@pytest.fixture(scope="module")
def actors(daemon: Daemon, users: dict[str, User]) -> Iterator[dict[str, Puppet]]:
    ann, bob = become(users["ann"]), become(users["bob"])
    with acting(
        owner=(ann,),
        server=(ann,),
        other=(bob,),
        nobody=(become(NOBODY),),
        rootless=(bob, root_of_a_container),
        contained=(in_a_container, bob),
        admin=(become(users["adm"]),),
    ) as made:
        assert tuple(made) == ACTORS
        yield made


@pytest.fixture
def stage(actors: dict[str, Puppet], users: dict[str, User]) -> Stage:
    return Stage(actors, users["ann"])


def test_every_operation_has_a_row_and_every_row_a_cell_for_each_actor() -> None:
    assert sorted(row.name for row in ROWS) == sorted(op.name for op in operations.OPERATIONS)
    rows = {row.name: row for row in ROWS}
    for op, row in ((op, rows[op.name]) for op in operations.OPERATIONS):
        assert row.method.lower() == op.method, op.name
        assert row.path(NAMED).split("/")[0] == op.path.split("/")[1], op.name
    assert all(tuple(row.answers) == ACTORS for row in (*ROWS, *INTERNAL))
    assert len(ROWS) * len(ACTORS) >= CELLS


@pytest.mark.parametrize("row", (*ROWS, *INTERNAL), ids=lambda row: row.name)
def test_everybody_is_answered_as_the_table_says(stage: Stage, row: Row) -> None:
    """And whoever is refused has changed nothing, and has seen nothing private."""
    wrong: list[Any] = []
    world, before = None, None
    for actor in ACTORS:
        if world is None:
            world = stage.set(more=needs_more(row))
            before = stage.state(world)
        query = None if row.query is None else row.query(world)
        said = stage.actors[actor].call(row.method, row.path(world), row.encoded(world), query)
        wrong += wrong_in(row, actor, said, row.answers[actor])
        if said.status >= 400 and stage.state(world) != before:
            wrong.append((actor, "was refused, and has changed", stage.state(world), before))
        if said.status < 400 and row.method != "GET":  # the next one finds it as it was
            stage.clear(world)
            world = None
    if world is not None:
        stage.clear(world)
    assert not wrong
