"""The daemon's socket for the Hub's users: nobody comes in but by a token that the Hub knows."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from genv_jupyter.broker.hub_listener import MOST_STRANGERS, STRANGERS_OF_ONE
from tests.hub.beside import NAMES, running
from tests.hub.door import Caller, connected, head
from tests.hub.hubs import Answer, Hub, until
from tests.integration.daemons import Daemon

MINE = {"fraction": 0.5}
CUSTOM = {
    "custom:genv-jupyter:admin": {"description": "Administers GPUs"},
    "custom:genv-jupyter:read": {"description": "Looks at GPUs"},
}
CACHE = 2


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Hub, Daemon]]:
    token = tmp_path_factory.mktemp("hub") / "token"
    token.write_text("a-token-of-the-groups\n")
    lines = (
        f"c.HubAccess.token_file = {str(token)!r}",
        f"c.HubAccess.cache_seconds = {CACHE}",
        "c.HubAccess.admin_groups = ['gpu-admins']",
        "c.Access.connections = 8",
    )
    with running("simple", {name: name for name in NAMES}, *lines, start=False) as made:
        hub, _ = made
        hub.scopes = CUSTOM
        hub.groups = {"gpu-admins": ["adm"], "lab": ["ann"]}
        hub.services = [
            {"name": "looker", "api_token": "a-token-of-the-looker"},
            {"name": "stranger", "api_token": "a-token-of-the-stranger"},
            {"name": "boss", "api_token": "a-token-of-the-boss"},
            {"name": "groups", "api_token": "a-token-of-the-groups"},
        ]
        hub.roles = [
            {"name": "look", "services": ["looker"], "scopes": ["custom:genv-jupyter:read"]},
            {"name": "gpu", "services": ["boss"], "scopes": ["custom:genv-jupyter:admin"]},
            {"name": "ask", "services": ["groups"], "scopes": ["list:groups", "read:groups"]},
        ]
        hub.start()
        yield made


@pytest.fixture
def hub(both: tuple[Hub, Daemon]) -> Hub:
    return both[0]


@pytest.fixture
def daemon(both: tuple[Hub, Daemon]) -> Daemon:
    return both[1]


@pytest.fixture
def sleeper() -> Iterator[int]:
    """A process of this uid, which is what the Hub's servers are too."""
    process = subprocess.Popen(["sleep", "600"])
    yield process.pid
    process.kill()
    process.wait()


def caller(both: tuple[Hub, Daemon], name: str) -> Caller:
    return Caller(both[1].hub_socket, both[0].token_of(name))


def refused(answer: Answer, status: int, code: str) -> str:
    """Check that something was refused, in our shape; return what is said."""
    assert (answer.status, answer.json["code"]) == (status, code), answer
    assert {*answer.json} == {"code", "message", "hint", "details"}
    return f"{answer.json['message']} {answer.json['hint']}"


def seen(who: Caller, environment: str) -> dict[str, Any]:
    """Return what somebody sees of an environment."""
    (found,) = (it for it in who("GET", "environments").json if it["id"] == environment)
    return dict(found)


def asked(hub: Hub, user: str) -> int:
    """Return how often the Hub was asked about a user's tokens."""
    return hub.said().count(f"GET /hub/api/user ({user}@")


@pytest.mark.parametrize("target", ["health", "environments", "nothing/here", "events"])
@pytest.mark.parametrize("token", [None, "made-up", "x" * 5000])
def test_root_without_a_token_is_nobody(daemon: Daemon, target: str, token: str | None) -> None:
    for method in ("GET", "POST", "DELETE"):
        said = refused(Caller(daemon.hub_socket, token)(method, target), 401, "unauthenticated")
        assert token is None or token not in said


def test_the_hub_is_asked_once(both: tuple[Hub, Daemon]) -> None:
    hub, daemon = both
    token, _ = hub.new_token("bob")
    before = asked(hub, "bob")
    bob = Caller(daemon.hub_socket, token)
    began = time.monotonic()
    calls = 0
    while time.monotonic() - began < CACHE / 2 or calls < 20:
        assert bob("GET", "quota").json["user"] == "bob"
        calls += 1
    most = 1 + int((time.monotonic() - began) / CACHE)
    assert 1 <= asked(hub, "bob") - before <= most < calls


def test_a_revoked_token_is_noticed_on_an_open_stream_too(both: tuple[Hub, Daemon]) -> None:
    hub, daemon = both
    token, name = hub.new_token("ann")
    ann = Caller(daemon.hub_socket, token)
    with ann.events() as lines:
        assert next(lines).startswith(b'{"revision"')
        hub.revoke("ann", name)
        assert [line for line in lines if not line.startswith(b"{")] == []  # until it ends
    refused(ann("GET", "environments"), 401, "unauthenticated")


def test_a_stream_lives_while_its_token_does(both: tuple[Hub, Daemon], sleeper: int) -> None:
    ann = caller(both, "ann")
    before = asked(both[0], "ann")
    with ann.events() as lines:
        next(lines)
        until(lambda: asked(both[0], "ann") >= before + 2, "the Hub is asked again")
        made = ann("POST", "environments", {"kind": "command", "pid": sleeper})
        assert any(made.json["id"].encode() in line for line in lines)


def test_a_token_that_was_made_for_less_may_only_look(
    both: tuple[Hub, Daemon], sleeper: int
) -> None:
    hub, daemon = both
    ann = caller(both, "ann")
    own = ann("POST", "environments", {"kind": "command", "pid": sleeper}).json["id"]
    token, _ = hub.new_token("ann", scopes=["read:users:name!user=ann"])
    narrow = Caller(daemon.hub_socket, token)
    assert narrow("GET", f"environments/{own}").json["user"] == "ann"
    assert narrow("POST", "placements", MINE).status == 200
    for method, target, body in (
        ("PUT", f"environments/{own}", MINE),
        ("PATCH", f"environments/{own}", {"name": "mine"}),
        ("DELETE", f"environments/{own}", None),
        ("POST", "environments", {"kind": "command", "pid": sleeper}),
        ("POST", f"environments/{own}/restart", None),
    ):
        assert "looking only" in refused(narrow(method, target, body), 403, "forbidden")
    assert ann("PUT", f"environments/{own}", MINE).status == 200
    assert ann("DELETE", f"environments/{own}").status == 200


def test_services_are_what_their_scopes_say(both: tuple[Hub, Daemon], sleeper: int) -> None:
    own = caller(both, "bob")("POST", "environments", {"kind": "command", "pid": sleeper})
    path = f"environments/{own.json['id']}"
    looker, stranger, boss = (
        Caller(both[1].hub_socket, f"a-token-of-the-{name}")
        for name in ("looker", "stranger", "boss")
    )
    assert seen(looker, own.json["id"])["user"] == "bob"
    refused(looker("PUT", path, MINE), 403, "forbidden")
    refused(looker("GET", "audit"), 403, "forbidden")
    refused(stranger("GET", path), 403, "forbidden")
    assert boss("PUT", path, MINE).status == 200
    until(
        lambda: (
            [it["actor"] for it in boss("GET", f"audit?search={path}").json][:1]
            == ["hub:service/boss"]
        ),
        "it is in the audit log",
    )
    assert boss("DELETE", path).status == 200


def test_only_owner_and_admin_may(both: tuple[Hub, Daemon], sleeper: int) -> None:
    ann, bob, adm = (caller(both, name) for name in ("ann", "bob", "adm"))
    own = ann("POST", "environments", {"kind": "command", "pid": sleeper}).json["id"]
    path = f"environments/{own}"
    assert ann("PUT", path, MINE).status == 200
    for method, body in (("PUT", MINE), ("PATCH", {"name": "x"}), ("DELETE", None)):
        refused(bob(method, path, body), 403, "not_yours")
    assert seen(ann, own)["environ"] and seen(adm, own)["environ"]
    assert seen(bob, own)["environ"] is None
    assert adm("PATCH", path, {"name": "tidied"}).json["name"] == "tidied"
    assert adm("DELETE", path).status == 200


def test_a_group_of_the_hub_takes_effect(both: tuple[Hub, Daemon]) -> None:
    hub, _ = both
    bob = caller(both, "bob")
    refused(bob("GET", "quotas"), 403, "forbidden")
    path = "groups/gpu-admins/users"
    assert hub.api("POST", path, {"users": ["bob"]}).status == 200
    until(lambda: bob("GET", "quotas").status == 200, "bob administers")
    assert bob("GET", "quota").json["groups"] == ["gpu-admins"]
    assert hub.api("DELETE", path, {"users": ["bob"]}).status == 200
    until(lambda: bob("GET", "quotas").status == 403, "bob does not")


def test_pids_of_other_users_and_of_nobody_are_refused(both: tuple[Hub, Daemon]) -> None:
    ann = caller(both, "ann")
    other = subprocess.Popen(["sleep", "600"], user=65534, group=65534)
    try:
        answer = ann("POST", "environments", {"kind": "command", "pid": other.pid})
        refused(answer, 403, "not_yours")
    finally:
        other.kill()
        other.wait()
    answer = ann("POST", "environments", {"kind": "command", "pid": 2**22 + 1})
    refused(answer, 404, "unknown_process")


def test_the_sockets_of_host_and_hub_do_not_mix(both: tuple[Hub, Daemon]) -> None:
    """A Hub's token says nothing on the socket where the kernel says who it is."""
    hub, daemon = both
    on_host = Caller(daemon.socket, hub.token_of("ann"))
    assert on_host("GET", "quota").json["user"] == "root"


def test_connections_of_nobody_are_few_and_soon_gone(both: tuple[Hub, Daemon]) -> None:
    _, daemon = both
    ann = caller(both, "ann")
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(connected(daemon.hub_socket)) for _ in range(STRANGERS_OF_ONE)]
        answer = refused(ann("GET", "health"), 429, "too_many")
        assert "send your token" in answer
        assert [sock.recv(1) for sock in idle] == [b""] * len(idle)
        until(lambda: ann("GET", "health").status == 200, "ann is served")
    assert STRANGERS_OF_ONE < MOST_STRANGERS


def test_a_user_has_so_many_connections_and_others_are_served(both: tuple[Hub, Daemon]) -> None:
    _, daemon = both
    ann, bob = caller(both, "ann"), caller(both, "bob")
    until(lambda: ann("GET", "health").status == 200, "nothing of before")
    with contextlib.ExitStack() as stack:
        for _ in range(8):
            sock = stack.enter_context(connected(daemon.hub_socket))
            sock.sendall(head("GET", "quota", ann.token))
            assert sock.recv(65536).startswith(b"HTTP/1.1 200")
        refused(ann("GET", "health"), 429, "too_many")
        assert bob("GET", "health").status == 200
        # A connection is counted for whoever has called on it last.
        sock.sendall(head("GET", "quota", bob.token))
        assert sock.recv(65536).startswith(b"HTTP/1.1 200")
        assert ann("GET", "health").status == 200
    until(lambda: ann("GET", "health").status == 200, "ann is served again")


def test_two_tokens_on_one_connection_are_two_callers(both: tuple[Hub, Daemon]) -> None:
    hub, daemon = both
    with connected(daemon.hub_socket) as sock:
        for name in ("ann", "bob", "ann"):
            sock.sendall(head("GET", "quota", hub.token_of(name)))
            assert f'"user":"{name}"'.encode() in sock.recv(65536)
        sock.sendall(head("GET", "quota", None))
        assert sock.recv(65536).startswith(b"HTTP/1.1 401")
        assert sock.recv(1) == b""


def test_the_hub_is_down_and_comes_back(both: tuple[Hub, Daemon]) -> None:
    hub, daemon = both
    ann = caller(both, "ann")
    fresh, _ = hub.new_token("bob")
    assert ann("GET", "health").status == 200
    hub.kill()
    try:
        time.sleep(CACHE)
        assert ann("GET", "health").status == 200
        said = refused(Caller(daemon.hub_socket, fresh)("GET", "health"), 503, "unavailable")
        assert "JupyterHub does not answer" in said
    finally:
        hub.start()
    bob = Caller(daemon.hub_socket, fresh)
    until(lambda: bob("GET", "health").status == 200, "the Hub is asked again")


def test_a_restart_of_the_daemon_takes_nothing_from_anybody(
    both: tuple[Hub, Daemon], sleeper: int
) -> None:
    _, daemon = both
    ann, bob = caller(both, "ann"), caller(both, "bob")
    made = ann("POST", "environments", {"kind": "command", "pid": sleeper}).json
    held = ann("PUT", f"environments/{made['id']}", MINE).json
    daemon.kill()
    daemon.start()
    assert ann("GET", f"environments/{made['id']}").json["grants"] == held["grants"]
    refused(bob("DELETE", f"environments/{made['id']}"), 403, "not_yours")
    assert ann("DELETE", f"environments/{made['id']}").status == 200


def test_no_token_is_in_the_log(both: tuple[Hub, Daemon]) -> None:
    hub, daemon = both
    for token in ("a-made-up-token", hub.token_of("ann")):
        Caller(daemon.hub_socket, token)("PUT", f"environments/x?token={token}", {"gpus": "x"})
    said = daemon.log.read_text()
    assert "audit" in said
    assert [name for name in NAMES if hub.token_of(name) in said] == []
    assert "a-made-up-token" not in said and "a-token-of-the" not in said


def test_what_a_group_of_the_hub_may_have_is_in_its_properties(both: tuple[Hub, Daemon]) -> None:
    hub, _ = both
    ann, bob = caller(both, "ann"), caller(both, "bob")

    def bound(who: Caller) -> tuple[float | None, str | None]:
        quantities = who("GET", "quota").json["quantities"]
        return next((it["limit"], it["rule"]) for it in quantities if it["quantity"] == "devices")

    assert bound(ann) == (None, None)
    for devices in (0.5, 1.5):
        said = {"genv_jupyter": {"devices": devices, "guaranteed": 1}, "other": "thing"}
        assert hub.api("PUT", "groups/lab/properties", said).status == 200
        until(lambda: bound(ann) == (devices, "group:lab"), "the property is a quota")  # noqa: B023
    assert ann("GET", "quota").json["guarantees"] == [{"group": "lab", "devices": 1, "used": 0}]
    assert bound(bob) == (None, None)
    refused = ann("POST", "placements", {"gpus": 2})
    assert (refused.status, refused.json["code"]) == (403, "quota_exceeded")
    assert hub.api("PUT", "groups/lab/properties", {}).status == 200
    until(lambda: bound(ann) == (None, None), "nothing is bounded any more")
