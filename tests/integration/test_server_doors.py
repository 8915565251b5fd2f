"""The browser's door: who may do what, and the one shape of every error."""

from __future__ import annotations

import json
import os
import signal
import uuid
from typing import Any

import pytest
from jupyter_server.auth.authorizer import Authorizer
from traitlets.config import Config

from tests.integration.servers import CONFIG, Server

KERNEL = str(uuid.uuid4())

VERBS = [
    ("GET", "health", "read"),
    ("GET", "devices", "read"),
    ("GET", "environments", "read"),
    ("POST", "environments", "write"),
    ("GET", f"environments/{KERNEL}", "read"),
    ("PUT", f"environments/{KERNEL}", "write"),
    ("PATCH", f"environments/{KERNEL}", "write"),
    ("DELETE", f"environments/{KERNEL}", "write"),
    ("POST", f"environments/{KERNEL}/restart", "write"),
    ("POST", "placements", "read"),
    ("GET", "leftovers", "read"),
    ("DELETE", "processes/1-1", "write"),
    ("GET", "audit", "read"),
    ("GET", "quota", "read"),
    ("GET", "quotas", "read"),
    ("PUT", "quotas/user:nobody", "write"),
    ("DELETE", "quotas/user:nobody", "write"),
    ("GET", "notices", "read"),
    ("DELETE", f"notices/{KERNEL}", "write"),
    ("GET", "usage", "read"),
    ("GET", "usage/report", "read"),
    ("GET", "events", "read"),
    ("GET", "openapi.json", "read"),
]


class Doorman(Authorizer):
    """Lets in whom the test says, and keeps what it was asked."""

    allowed = True
    asked: list[tuple[str, str]] = []  # noqa: RUF012

    def is_authorized(self, handler: Any, user: Any, action: str, resource: str) -> bool:
        self.asked.append((action, resource))
        return self.allowed


@pytest.fixture
def jp_server_config(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Config:
    """A server that forbids access without a login by itself, or leaves that to handlers."""
    monkeypatch.setattr(Doorman, "asked", [])
    monkeypatch.setattr(Doorman, "allowed", True)
    config = Config(json.loads(json.dumps(CONFIG)))
    config.ServerApp.allow_unauthenticated_access = getattr(request, "param", False)
    config.ServerApp.authorizer_class = Doorman
    return config


def assert_shape(body: bytes, code: str) -> dict[str, Any]:
    error = json.loads(body)
    assert error.keys() == {"code", "message", "hint", "details"}, error
    assert error["code"] == code
    assert error["message"]
    return dict(error)


async def test_every_verb_asks_the_authorizer_for_its_action(server: Server) -> None:
    for method, path, action in VERBS:
        Doorman.asked.clear()
        await server.gpu(method, path, {} if method in ("POST", "PUT", "PATCH") else None)
        assert Doorman.asked == [(action, "gpu")], (method, path)


async def test_who_is_not_authorised_gets_403_and_changes_nothing(server: Server) -> None:
    Doorman.allowed = False
    for method, path, _ in VERBS:
        answer = await server.gpu(method, path, {} if method in ("POST", "PUT") else None)
        assert answer.status == 403, (method, path)
        assert_shape(answer.body, "forbidden")


@pytest.mark.parametrize("jp_server_config", [False, True], indirect=True)
async def test_who_is_not_logged_in_gets_401(server: Server) -> None:
    nobody = {"Authorization": "token wrong"}
    Doorman.asked.clear()
    for method, path, _ in [*VERBS, ("GET", "nowhere", "")]:
        body = "{}" if method in ("POST", "PUT", "PATCH") else None
        answer = await server.call(
            method, "genv-jupyter", "v1", *path.split("/"), body=body, headers=dict(nobody)
        )
        assert answer.status == 401, (method, path, answer.body)
        assert_shape(answer.body, "unauthenticated")
    assert Doorman.asked == []


async def test_a_cookie_without_its_xsrf_token_gets_403(
    server: Server, http_server_client: Any, jp_base_url: str
) -> None:
    app = server.app
    page = await http_server_client.fetch(
        f"{jp_base_url}api/status?token={app.identity_provider.token}"
    )
    cookies = "; ".join(value.split(";")[0] for value in page.headers.get_list("Set-Cookie"))
    answer = await server.call(
        "PUT",
        "genv-jupyter",
        "v1",
        "environments",
        KERNEL,
        body={"gpus": 1},
        headers={"Cookie": cookies, "Authorization": ""},
    )
    assert answer.status == 403
    error = assert_shape(answer.body, "forbidden")
    assert "_xsrf" in error["message"]


BAD: list[tuple[str, str, Any, int, str]] = [
    ("GET", "nowhere", None, 404, "unknown_route"),
    ("GET", "", None, 404, "unknown_route"),
    ("PUT", f"servers/{KERNEL}", {"pid": 1, "version": "1"}, 404, "unknown_route"),
    ("PUT", "devices", {}, 405, "method_not_allowed"),
    ("DELETE", "health", None, 405, "method_not_allowed"),
    ("PUT", f"environments/{KERNEL}", b"{", 400, "bad_request"),
    ("PUT", f"environments/{KERNEL}", b"\xff\xfe", 400, "bad_request"),
    ("PUT", f"environments/{KERNEL}", b"[]", 400, "bad_request"),
    ("PUT", f"environments/{KERNEL}", {"fractions": 1}, 400, "bad_request"),
    ("PUT", f"environments/{KERNEL}", {"gpus": 1}, 404, "unknown_environment"),
    ("PUT", "environments/..%2Fhealth", {"gpus": 1}, 404, "unknown_environment"),
    ("PUT", f"environments/{KERNEL}", b" " * 300_000, 413, "too_large"),
    ("POST", "placements", {"fraction": 1.5}, 422, "out_of_range"),
    ("POST", "placements", {"devices": ["GPU-nowhere"]}, 404, "unknown_device"),
    ("GET", "events", None, 400, "bad_request"),
    ("GET", "usage", None, 400, "bad_request"),
    ("GET", "usage/report", None, 400, "bad_request"),
]


async def test_bad_input_is_refused_in_our_shape(server: Server) -> None:
    for method, path, body, status, code in BAD:
        answer = await server.gpu(method, path, body)
        assert answer.status == status, (method, path, body, answer.body)
        assert_shape(answer.body, code)


async def test_a_hung_broker_is_said_and_jupyter_goes_on(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = (await server.gpu("GET", "health")).json["pid"]
    monkeypatch.setattr(server.host.reports.link._calls, "timeout", 0.5)
    server.host.reports.link._calls.close()
    os.kill(pid, signal.SIGSTOP)
    try:
        answer = await server.gpu("GET", "devices")
        assert answer.status == 503
        assert_shape(answer.body, "broker_down")
        assert (await server.call("GET", "api", "kernels")).status == 200
    finally:
        os.kill(pid, signal.SIGCONT)


async def test_reading_keeps_no_idle_server_alive(server: Server) -> None:
    settings = server.app.web_app.settings
    settings.pop("api_last_activity", None)
    for method, path, action in VERBS:
        if action == "read" and path != "placements":
            await server.gpu(method, path)
    assert "api_last_activity" not in settings


async def test_usage_is_relayed(server: Server) -> None:
    kernel = await server.start_kernel()
    await server.gpu("PUT", f"environments/{kernel}", {"fraction": 0.5})
    answer = await server.gpu("GET", "usage", environment=kernel)
    assert answer.status == 200, answer.body
    [grant] = answer.json["grants"]
    assert (grant["memory"], grant["memory_used"], answer.json["simulated"]) == (
        12 * 2**30,
        0,
        True,
    )
    answer = await server.gpu("GET", "usage", environment="nothing")
    assert answer.status == 404
    assert_shape(answer.body, "unknown_environment")
