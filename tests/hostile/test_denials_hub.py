"""One user cannot touch another's by the Hub socket, whatever uid they have: each answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.hostile.puppets import Become, Puppet, acting, become, calling, in_a_container
from tests.hostile.stages import Stage, needs_more, wrong_in
from tests.hostile.table import INTERNAL, ROWS, Cell, Row
from tests.hub.beside import NAMES, running
from tests.hub.hubs import Hub
from tests.integration.daemons import Daemon, User

CALLERS = (
    "owner",
    "server",
    "reader",
    "other",
    "contained",
    "rooted",
    "nobody",
    "root",
    "forger",
    "replayed",
    "admin",
)
"""
All but the roots have one uid, as in containers of one image. ``owner`` and ``server``: a user's
programs, with their token · ``reader``: with a token of the user that is good for looking only ·
``other``: another user · ``contained``: the same in a pid namespace · ``rooted``: the same as root
· ``nobody`` and ``root``: without a token · ``forger``: with one that the Hub has not made ·
``replayed``: with a token of the user that was revoked · ``admin``: an administrator of GPUs.
"""
CELLS = 350
NOT_IN, FORBIDDEN = (401, "unauthenticated"), (403, "forbidden")
READS = {"place"}
"""Besides GET."""
OTHERWISE: dict[tuple[str, str], Cell] = {
    ("create", "admin"): (201, None),  # of a process of the same uid: the environment it has
    ("report_kernel", "rooted"): (403, "not_yours"),  # of a process of another uid
}
"""Where a uid matters: outside containers a process is that of its uid."""


@pytest.fixture(scope="module")
def beside(users: dict[str, User]) -> Iterator[tuple[Hub, Daemon]]:
    names = {name: name for name in NAMES}
    with running("simple", names, "c.HubAccess.admin_users = ['adm']") as made:
        yield made


@pytest.fixture(scope="module")
def actors(beside: tuple[Hub, Daemon], users: dict[str, User]) -> Iterator[dict[str, Puppet]]:
    hub, daemon = beside
    tokens = {name: hub.token_of(name) for name in NAMES}
    looking, _ = hub.new_token("ann", scopes=["read:users!user"])
    revoked, number = hub.new_token("ann")
    hub.revoke("ann", number)
    shared, root = become(users["cat"]), become(User("root", 0, 0, (0,)))

    def caller(token: str | None, *steps: Become) -> tuple[Become, ...]:
        return (calling(daemon.hub_socket, token), *steps)

    with acting(
        owner=caller(tokens["ann"], shared),
        server=caller(tokens["ann"], shared),
        reader=caller(looking, shared),
        other=caller(tokens["bob"], shared),
        contained=caller(tokens["bob"], in_a_container, shared),
        rooted=caller(tokens["bob"], root),
        nobody=caller(None, shared),
        root=caller(None, root),
        forger=caller("0" * 64, shared),
        replayed=caller(revoked, shared),
        admin=caller(tokens["adm"], shared),
    ) as made:
        assert tuple(made) == CALLERS
        yield made


def expected(row: Row, who: str) -> Cell:
    """Return the cell: as at the local socket for who proves to be somebody, and 401 otherwise."""
    if who in ("nobody", "root", "forger", "replayed"):
        return NOT_IN
    if who == "reader":
        looks = row.method == "GET" or row.name in READS
        return row.answers["owner"] if looks else FORBIDDEN
    if (row.name, who) in OTHERWISE:
        return OTHERWISE[row.name, who]
    return row.answers["other" if who == "rooted" else who]


def test_there_are_as_many_cells() -> None:
    assert len(ROWS) * len(CALLERS) >= CELLS


@pytest.mark.parametrize("row", (*ROWS, *INTERNAL), ids=lambda row: row.name)
def test_everybody_is_answered_as_the_table_says(
    actors: dict[str, Puppet], users: dict[str, User], row: Row
) -> None:
    stage = Stage(actors, users["cat"]._replace(name="ann"))
    wrong: list[Any] = []
    world, before = None, None
    for who in CALLERS:
        if world is None:
            world = stage.set(more=needs_more(row))
            before = stage.state(world)
        query = None if row.query is None else row.query(world)
        said = actors[who].call(row.method, row.path(world), row.encoded(world), query)
        wrong += wrong_in(row, who, said, expected(row, who))
        if said.status >= 400 and stage.state(world) != before:
            wrong.append((who, "was refused, and has changed", stage.state(world), before))
        if said.status < 400 and row.method != "GET":  # the next one finds it as it was
            stage.clear(world)
            world = None
    if world is not None:
        stage.clear(world)
    assert not wrong
