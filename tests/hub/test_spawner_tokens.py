"""Reservations where the Hub has no more than a token, and its spawner no class of ours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from genv_jupyter.api.client import Client
from genv_jupyter.model import Environment
from tests.hub.beside import running
from tests.hub.hubs import Hub, until
from tests.integration.daemons import Daemon

TOKEN = "f" * 64
SCOPES = {
    "custom:genv-jupyter:use": {"description": "Use GPUs"},
    "custom:genv-jupyter:admin": {"description": "Administer the GPUs of the host"},
}
HOOKS = "options_form", "options_from_form", "pre_spawn_hook", "post_stop_hook"


@pytest.fixture(scope="module")
def simple() -> Iterator[tuple[Hub, Daemon]]:
    names = {name: name for name in ("ann", "bob", "adm")}
    with running("simple", names, start=False, spec="1x24GiB") as (hub, daemon):
        hub.scopes |= SCOPES
        hub.services.append({"name": "reservations", "api_token": TOKEN})
        scopes = ["custom:genv-jupyter:admin"]
        hub.roles.append({"name": "reservations", "services": ["reservations"], "scopes": scopes})
        hub.lines += [
            "from genv_jupyter.hub import spawner as gpu",
            *(f"c.Spawner.{name} = gpu.{name}" for name in HOOKS),
            "c.GpuReservations.users = 'hub'",
            f"c.GpuReservations.socket = {str(daemon.hub_socket)!r}",
            f"c.GpuReservations.token = {TOKEN!r}",
        ]
        hub.start()
        yield hub, daemon


def reserved() -> list[Environment]:
    return [it for it in Client(start=False).environments() if it.kind == "server"]


def call(daemon: Daemon, token: str, body: Any) -> httpx.Response:
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(daemon.hub_socket))) as client:
        headers = {"Authorization": f"token {token}"} if token else {}
        return client.post("http://gpu/v1/reservations", json=body, headers=headers)


def test_users_of_one_uid_have_reservations_of_their_own(simple: tuple[Hub, Daemon]) -> None:
    hub, daemon = simple
    one = hub.spawn("ann", options={"gpu": "half"})
    two = hub.spawn("bob", options={"gpu": "half"})
    assert {(it.user, it.state) for it in reserved()} == {("ann", "granted"), ("bob", "granted")}
    kernel = one.start_kernel()
    one.run(kernel, "%gpu attach 0.5")
    found = one.gpu("GET", f"environments/{kernel}").json
    assert (found["state"], found["user"]) == ("granted", "ann")
    drawn = {it.user: it.grants for it in reserved()}
    assert drawn["ann"] == () and drawn["bob"] != ()
    other = two.start_kernel()
    said = two.run(other, "%gpu attach 1")
    assert "ann" in said and two.gpu("GET", f"environments/{other}").json["grants"] == []
    for server in (one, two):
        server.stop()
    until(lambda: not reserved(), "the end of what was reserved")
    audit = Client(start=False).audit("reservations", 20)
    assert {it.actor for it in audit if it.target == "reservations"} == {"hub:service/reservations"}
    assert daemon.process is not None and daemon.process.poll() is None


def test_nobody_but_an_administrator_reserves_for_others(simple: tuple[Hub, Daemon]) -> None:
    hub, daemon = simple
    body = {"user": "bob", "request": {"gpus": 1}}
    for user in ("ann", "bob", "adm"):  # an administrator of the Hub is none of GPUs
        answer = call(daemon, hub.token_of(user), body)
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), answer.text
    assert call(daemon, "", body).status_code == 401
    assert call(daemon, TOKEN, {**body, "user": ""}).status_code == 400
    assert call(daemon, TOKEN, {**body, "uid": 0}).status_code == 400
    assert not reserved()
