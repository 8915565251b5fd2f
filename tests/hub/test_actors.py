"""Who acts in another's server is in the audit log by their own name, on the owner's account."""

from __future__ import annotations

import grp
from collections.abc import Iterator
from typing import Any

import pytest

from tests.hub.beside import NAMES, running
from tests.hub.door import Caller
from tests.hub.hubs import Answer, Hub, Server, until
from tests.integration.daemons import Daemon, User


def entry(admin: Caller, target: str, status: int) -> dict[str, Any]:
    """Return the newest entry of the audit log about something."""

    def look() -> dict[str, Any] | None:
        found = [it for it in admin("GET", f"audit?search={target}").json if it["action"] == "PUT"]
        return found[0] if found and found[0]["status"] == status else None

    return dict(until(look, f"{status} for {target} in the audit log"))


def visits(hub: Hub) -> None:
    """Let bob into ann's servers, and start the Hub."""
    scopes = [f"access:servers!user={hub.names['ann']}"]
    hub.roles.append({"name": "helpers", "users": [hub.names["bob"]], "scopes": scopes})
    hub.start()


def attach(server: Server, kernel: str, by: str) -> Answer:
    return server.gpu("PUT", f"environments/{kernel}", {"fraction": 0.5}, by=by)


@pytest.fixture(scope="module")
def hub_users() -> Iterator[tuple[Hub, Daemon]]:
    with running(
        "simple", {it: it for it in NAMES}, "c.HubAccess.admin_users = ['adm']", start=False
    ) as made:
        visits(made[0])
        yield made


@pytest.fixture(scope="module")
def unix_users(users: dict[str, User]) -> Iterator[tuple[Hub, Daemon]]:
    names = {key: user.name for key, user in users.items()}
    lines = ("c.HubAccess.local_users = True", f"c.HubAccess.admin_users = ['{names['adm']}']")
    with running("local", names, *lines, start=False) as made:
        visits(made[0])
        yield made


def test_a_visitor_of_the_hub_is_proved(hub_users: tuple[Hub, Daemon]) -> None:
    hub, daemon = hub_users
    server = hub.spawn("ann")
    kernel = server.start_kernel()
    adm = Caller(daemon.hub_socket, hub.token_of("adm"))
    found = attach(server, kernel, "bob")
    assert (found.status, found.json["user"]) == (200, "ann"), "it is the owner's"
    written = entry(adm, kernel, 200)
    assert (written["actor"], written["name"]) == ("hub:bob", "bob")
    assert (written["owner"], written["claimed"]) == ("hub:ann", None)
    # On ann's account: bob himself may not touch it.
    bob = Caller(daemon.hub_socket, hub.token_of("bob"))
    assert bob("DELETE", f"environments/{kernel}").json["code"] == "not_yours"
    assert server.gpu("PUT", f"environments/{kernel}", {"gpus": 1}, by="ann").status == 200
    until(lambda: entry(adm, kernel, 200)["actor"] == "hub:ann", "ann's own is ann's")
    # Somebody who may not enter is nobody's actor.
    assert attach(server, kernel, "cat").status == 401


def test_one_user_by_two_sockets_and_a_visitor_who_is_only_claimed(
    unix_users: tuple[Hub, Daemon], users: dict[str, User]
) -> None:
    hub, daemon = unix_users
    ann, bob = users["ann"], users["bob"]
    server = hub.spawn("ann")
    kernel = server.start_kernel()
    assert attach(server, kernel, "bob").status == 200
    adm = Caller(daemon.hub_socket, hub.token_of("adm"))
    written = entry(adm, kernel, 200)
    assert (written["actor"], written["name"], written["owner"]) == (ann.key, ann.name, None)
    assert written["claimed"] == bob.name
    by_token = Caller(daemon.hub_socket, hub.token_of("ann"))
    seen = by_token("GET", f"environments/{kernel}")
    assert seen.json["environ"], "what the Unix user holds is the Hub's user's"
    assert by_token("GET", "quota").json["groups"] == sorted(_groups(ann))
    assert by_token("DELETE", f"environments/{kernel}").status == 200


def _groups(user: User) -> list[str]:
    return [grp.getgrgid(number).gr_name for number in user.groups]
