"""Fixtures of the tests with a JupyterHub; those that start something are of module scope."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hub.beside import NAMES, running
from tests.hub.hubs import Hub
from tests.integration.daemons import Daemon, User, make_users


@pytest.fixture(scope="module")
def users() -> Iterator[dict[str, User]]:
    """Real Unix users: three ordinary ones and an administrator. Needs root."""
    yield from make_users()


@pytest.fixture(scope="module")
def local(users: dict[str, User]) -> Iterator[tuple[Hub, Daemon]]:
    """A Hub whose servers run as real Unix users, and a daemon."""
    with running("local", {key: user.name for key, user in users.items()}) as made:
        yield made


@pytest.fixture(scope="module")
def simple() -> Iterator[tuple[Hub, Daemon]]:
    """A Hub whose servers all have its own uid, and a daemon."""
    with running("simple", {name: name for name in NAMES}) as made:
        yield made
