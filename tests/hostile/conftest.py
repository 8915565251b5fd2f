"""Fixtures of the tests with hostile users: users, a daemon of their host, and who acts there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hostile.puppets import Puppet, acting, become, in_a_container, root_of_a_container
from tests.hostile.stages import Stage
from tests.hostile.table import ACTORS
from tests.integration.daemons import Daemon, User, make_users, serving

NOBODY = User("no account", 3_999_777, 3_999_777, ())


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
def stage(actors: dict[str, Puppet], users: dict[str, User]) -> Iterator[Stage]:
    made = Stage(actors, users["ann"])
    yield made
    for world in made.worlds:  # of a test that has failed
        made.clear(world)
