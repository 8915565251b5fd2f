"""One user cannot touch another's by the host daemon's socket: operation by actor, each answer."""

from __future__ import annotations

from typing import Any

import pytest

from genv_jupyter.api import operations
from tests.hostile.stages import NAMED, Stage, needs_more, wrong_in
from tests.hostile.table import ACTORS, INTERNAL, ROWS, Row

CELLS = 240


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
