"""Devices under maintenance at the daemon of a host: who may, for how long, and what is said."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from genv_jupyter.api.client import Client
from genv_jupyter.cli.main import main
from genv_jupyter.errors import Forbidden, NoCapacity
from genv_jupyter.maintenance import DevicePatch
from genv_jupyter.model import Environment, NewEnvironment, Request
from tests.integration.daemons import Daemon, User, as_user, make_users, serving

DRAIN = DevicePatch(maintenance=True, reason="a new fan")


@pytest.fixture(scope="module")
def users() -> Iterator[dict[str, User]]:
    yield from make_users()


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    with serving(monkeypatch) as made:
        yield made


def attach(user: User, request: Request) -> Environment:
    """Attach in a process of a user's that lives for just that."""

    def call() -> Environment:
        import os

        client = Client(start=False)
        made = client.create(NewEnvironment(kind="command", pid=os.getpid(), name="it"))
        return client.attach(made.id, request, cuda="not_initialized")

    return as_user(user, call)


def test_administrators_alone_drain_and_it_survives_a_crash(
    daemon: Daemon, users: dict[str, User]
) -> None:
    ann = users["ann"]
    with pytest.raises(Forbidden):
        as_user(ann, lambda: Client(start=False).patch_device("0", DRAIN))
    drained = Client(start=False).patch_device("0", DRAIN)
    assert drained.maintenance is not None and drained.maintenance.by == "root"
    with pytest.raises(Forbidden):
        as_user(ann, lambda: Client(start=False).patch_device("0", DevicePatch(maintenance=False)))
    daemon.kill()
    daemon.start()
    seen = as_user(ann, lambda: Client(start=False).devices())
    assert [device.maintenance for device in seen] == [drained.maintenance, None]
    assert attach(ann, Request(fraction=0.5)).grants[0].device == seen[1].uuid
    with pytest.raises(NoCapacity, match=r"GPU 0 is under maintenance since .* by root: a new fan"):
        attach(ann, Request(gpus=2))


def test_the_command_drains_and_puts_back(daemon: Daemon, users: dict[str, User]) -> None:
    def run(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(main, list(words))
        return done.exit_code, done.output

    status, said = run("drain", "1", "--reason", "a new fan")
    assert status == 0 and "GPU 1 is under maintenance since" in said and "a new fan" in said
    assert "under maintenance" in run("devices")[1]
    status, said = as_user(users["bob"], lambda: run("undrain", "1"))
    assert status != 0 and "administrators" in said
    status, said = run("undrain", "1")
    assert status == 0 and "maintenance" not in said
    status, said = run("drain", "7")
    assert status != 0 and "There is no GPU" in said
