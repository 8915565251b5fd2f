"""The GPU page of a Hub by its REST API: who may what, and what others can make of it."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest

from tests.hub.gpu_page import Visitor, holding, page_of_hub
from tests.hub.hubs import Hub, until
from tests.integration.daemons import Daemon

Site = tuple[Hub, Daemon]
DRAIN = {"maintenance": True, "reason": "a fan"}
TIGHT = {"devices": 0}


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with page_of_hub("c.HubAccess.cache_seconds = 1") as made:
        yield made


@pytest.fixture(scope="module")
def visitors(site: Site) -> Iterator[dict[str, Visitor]]:
    made = {name: Visitor(site[0], name) for name in ("ann", "bob", "adm")}
    for visitor in made.values():
        told(visitor, "health")  # the daemon has seen them: it knows nobody else of a Hub
    yield made
    for visitor in made.values():
        visitor.client.close()


@pytest.fixture
def ann(visitors: dict[str, Visitor]) -> Visitor:
    return visitors["ann"]


@pytest.fixture
def adm(visitors: dict[str, Visitor]) -> Visitor:
    return visitors["adm"]


def maintained(visitor: Visitor) -> list[Any]:
    return [it["maintenance"] for it in visitor.call("GET", "devices").json()]


def told(visitor: Visitor, path: str) -> Any:
    answer = visitor.call("GET", path)
    assert answer.status_code == 200, answer.text
    return answer.json()


def said(answer: httpx.Response) -> tuple[int, str]:
    body = answer.json()
    assert {*body} == {"code", "message", "hint", "details"} and body["message"]
    return answer.status_code, body["code"]


# -- who may what -------------------------------------------------------------------------------


def test_everybody_is_who_the_hub_says(visitors: dict[str, Visitor]) -> None:
    found = {name: one.call("GET", "me").json() for name, one in visitors.items()}
    assert {name: it["name"] for name, it in found.items()} == {name: name for name in visitors}
    assert {name for name, it in found.items() if it["admin"]} == {"adm"}
    assert visitors["ann"].call("GET", "quota").json()["user"] == "ann"


def test_an_administrator_sets_quotas_releases_and_drains(site: Site, adm: Visitor) -> None:
    hub, daemon = site
    assert adm.call("PUT", "quotas/user:bob", {"memory": "4G"}).status_code == 200
    bound = adm.call("GET", "quota?user=bob").json()["quantities"]
    assert next(it for it in bound if it["quantity"] == "memory")["limit"] == 4 * 10**9
    assert adm.call("DELETE", "quotas/user:bob").status_code == 200
    with holding(hub, daemon, "bob", "b.ipynb", fraction=0.5) as holder:
        answer = adm.call("DELETE", f"environments/{holder.id}")
        assert answer.status_code == 200
        assert holder.now["state"] in ("released", "draining")
    assert adm.call("PATCH", "devices/1", DRAIN).json()["maintenance"]["by"] == "adm"
    assert adm.call("PATCH", "devices/1", {"maintenance": False}).status_code == 200
    entries = until(lambda: told(adm, "audit?search=devices"), "the audit log")
    assert (entries[0]["name"], entries[0]["actor"]) == ("adm", "hub:adm")


def test_others_see_their_own_and_change_nothing_else(site: Site, ann: Visitor) -> None:
    hub, daemon = site
    with (
        holding(hub, daemon, "bob", "secret.ipynb", fraction=0.5) as theirs,
        holding(hub, daemon, "ann", "mine.ipynb", memory="1G") as mine,
    ):
        theirs_id = f"environments/{theirs.id}"
        refused: list[tuple[str, str, Any, str]] = [
            ("PATCH", "devices/0", DRAIN, "forbidden"),
            ("PATCH", "devices/0", {"maintenance": False}, "forbidden"),
            ("GET", "quotas", None, "forbidden"),
            ("PUT", "quotas/default", TIGHT, "forbidden"),
            ("PUT", "quotas/user:ann", {"devices": None}, "forbidden"),
            ("DELETE", "quotas/default", None, "forbidden"),
            ("GET", "quota?user=bob", None, "forbidden"),
            ("GET", "audit", None, "forbidden"),
            ("GET", theirs_id, None, "not_yours"),
            ("PUT", theirs_id, {"memory": "1G"}, "not_yours"),
            ("PATCH", theirs_id, {"name": "mine now"}, "not_yours"),
            ("DELETE", theirs_id, None, "not_yours"),
            ("POST", f"{theirs_id}/restart", None, "not_yours"),
        ]
        for method, path, body, code in refused:
            assert said(ann.call(method, path, body)) == (403, code), (method, path)
        assert maintained(ann) == [None, None]
        seen = {it["id"]: it for it in ann.call("GET", "environments").json()}
        assert seen[mine.id]["name"] == "mine.ipynb"
        assert (seen[theirs.id]["name"], seen[theirs.id]["environ"]) == (None, None)
        assert theirs.now["grants"]
        assert ann.call("DELETE", f"environments/{mine.id}").status_code == 200


def test_what_only_servers_and_processes_say_has_no_way_through(adm: Visitor) -> None:
    for method, path in (
        ("POST", "environments/x/turn"),
        ("POST", "environments/x/leave"),
        ("POST", "environments/x/nvidia-smi"),
        ("PUT", "servers/x"),
        ("PUT", "servers/x/kernels/y"),
        ("DELETE", "servers/x"),
        ("GET", "metrics"),
        ("POST", "replace"),
        ("GET", "environments/a/b/c"),
        ("GET", ""),
    ):
        assert said(adm.call(method, path, {})) == (404, "unknown_route"), (method, path)
    answer = adm.call("POST", "environments", {"kind": "command", "pid": 1})
    assert said(answer) == (405, "method_not_allowed")
    assert said(adm.call("PUT", "health")) == (405, "method_not_allowed")


# -- what others can make of it -----------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"X_XSRFToken": ""},
        {"X_XSRFToken": "", "Sec_Fetch_Site": ""},
        {"X_XSRFToken": "of nobody"},
        {"X_XSRFToken": "bob's"},
        {"X_XSRFToken": "the Hub's"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Sec_Fetch_Site": "", "Origin": "https://elsewhere.example"},
        {"Sec_Fetch_Site": "", "Origin": "null"},
    ],
    ids=str,
)
def test_a_forged_request_changes_and_tells_nothing(
    visitors: dict[str, Visitor], headers: dict[str, str]
) -> None:
    adm = visitors["adm"]
    stands_for = {"bob's": visitors["bob"].xsrf, "the Hub's": adm._xsrf("/hub/")}
    sent = {name: stands_for.get(value, value) for name, value in headers.items()}
    for method, path, body in (
        ("PATCH", "devices/0", DRAIN),
        ("PUT", "quotas/default", TIGHT),
        ("DELETE", "quotas/default", None),
        ("POST", "placements", {"memory": "1G"}),
        ("GET", "environments", None),
        ("GET", "me", None),
        ("GET", "events", None),
    ):
        assert said(adm.call(method, path, body, **sent)) == (403, "forbidden"), (method, path)
    assert maintained(adm) == [None, None]
    assert adm.call("GET", "quotas").json() == []


def test_nobody_is_sent_to_the_hub(site: Site) -> None:
    url = f"{site[0].url}/services/gpu"
    page = httpx.get(f"{url}/")
    assert page.status_code == 302 and "/hub/api/oauth2/authorize" in page.headers["location"]
    for path in ("me", "events", "devices", "quotas"):
        assert said(httpx.get(f"{url}/genv-jupyter/v1/{path}")) == (401, "unauthenticated")


def test_a_token_is_taken_from_a_header_and_never_from_an_address(site: Site) -> None:
    hub, _ = site
    url = f"{hub.url}/services/gpu/"
    token = hub.token_of("adm")
    header = {"Authorization": f"token {token}"}
    found = httpx.get(f"{url}genv-jupyter/v1/me", headers=header)
    assert found.json()["name"] == "adm"
    for more in ({}, {"Sec-Fetch-Mode": "websocket"}, {"Sec-Fetch-Mode": "navigate"}):
        asked = httpx.get(f"{url}genv-jupyter/v1/me?token={token}", headers=more)
        assert said(asked) == (401, "unauthenticated")
    assert httpx.get(f"{url}?token={token}").status_code == 302


def test_the_page_says_nothing_of_anybody_and_runs_nothing_of_others(ann: Visitor) -> None:
    page = ann.page
    assert ann.token not in page.text and "ann" not in page.text and ann.xsrf not in page.text
    assert not re.search(r"<script(?![^>]*src=)|\son\w+=|<style|style=|javascript:", page.text)
    answers = [
        page,
        ann.call("GET", "me"),
        ann.call("GET", "nothing"),
        ann.call("GET", "quotas"),
        ann.client.get(f"{ann.url}static/page.js"),
        ann.client.get(f"{ann.url}static/../service.py"),
        ann.client.get(f"{ann.url}oauth_callback"),
    ]
    for answer in answers:
        policy = dict(
            part.strip().split(" ", 1)
            for part in answer.headers["content-security-policy"].split(";")
        )
        assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == f"{ann.url}static/"
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in answer.headers
    assert [answer.status_code for answer in answers] == [200, 200, 404, 403, 200, 404, 400]
    assert ann.token not in "".join(answer.text for answer in answers)


def test_cookies_are_the_services_own(ann: Visitor) -> None:
    own = [it for it in ann.client.cookies.jar if it.name in ("service-gpu", "_xsrf")]
    paths = {(it.name, it.path) for it in own}
    assert paths == {
        ("service-gpu", "/services/gpu/"),
        ("_xsrf", "/services/gpu/"),
        ("_xsrf", "/hub/"),
    }
    (login,) = (it for it in own if it.name == "service-gpu")
    assert login.has_nonstandard_attr("HttpOnly")
    assert login.get_nonstandard_attr("SameSite") == "Lax"


# -- streams, and what is down ------------------------------------------------------------------


class Reader(threading.Thread):
    """Reads a visitor's stream until it ends."""

    def __init__(self, visitor: Visitor) -> None:
        super().__init__(daemon=True)
        self.lines: list[str] = []
        self.status = 0
        self._visitor = visitor
        self._socket: Any = None
        self.start()
        until(lambda: self.lines or not self.is_alive(), "the first line")

    def leave(self) -> None:
        """Hang up, as a browser does whose page is closed."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self.join(10)

    def run(self) -> None:
        visitor = self._visitor
        with (
            httpx.Client(cookies=visitor.client.cookies, timeout=None) as client,
            contextlib.suppress(httpx.HTTPError),
            client.stream(
                "GET",
                f"{visitor.url}genv-jupyter/v1/events",
                headers={"X-XSRFToken": visitor.xsrf},
            ) as answer,
        ):
            self._socket = answer.extensions["network_stream"].get_extra_info("socket")
            self.status = answer.status_code
            for line in answer.iter_lines():
                self.lines.append(line)


def service_of(hub: Hub) -> psutil.Process:
    assert hub.process is not None
    for child in psutil.Process(hub.process.pid).children(recursive=True):
        if "genv_jupyter.hub" in child.cmdline():
            return child
    raise AssertionError(hub.said())


def test_a_stream_tells_what_its_visitor_may_see(site: Site, ann: Visitor) -> None:
    hub, daemon = site
    reader = Reader(ann)
    assert reader.status == 200 and '"snapshot":true' in reader.lines[0]
    with holding(hub, daemon, "bob", "secret.ipynb", memory="1G") as holder:
        until(lambda: holder.id in "".join(reader.lines), "a change")
        assert "secret.ipynb" not in "".join(reader.lines)
    reader.leave()


def test_who_leaves_takes_the_daemons_end_along(site: Site, ann: Visitor) -> None:
    service = service_of(site[0])
    before = service.num_fds()
    readers = [Reader(ann) for _ in range(5)]
    assert service.num_fds() > before + len(readers), "each has one to the daemon too"
    for reader in readers:
        reader.leave()
    until(lambda: service.num_fds() <= before, "the ends of the streams")


def test_logging_out_ends_the_stream(site: Site) -> None:
    visitor = Visitor(site[0], "cat")
    reader = Reader(visitor)
    assert reader.status == 200
    visitor.client.get(f"{site[0].url}/hub/logout")
    until(lambda: not reader.is_alive(), "the end of the stream")
    assert said(visitor.call("GET", "me", X_XSRFToken="any")) == (401, "unauthenticated")
    assert said(visitor.call("GET", "devices", X_XSRFToken="any")) == (401, "unauthenticated")
    visitor.client.close()


def test_the_log_has_no_tokens(site: Site, visitors: dict[str, Visitor]) -> None:
    log = site[0].said()
    assert "PATCH /services/gpu/genv-jupyter/v1/devices/0" in log
    for secret in [it.token for it in visitors.values()] + [site[0].token_of("adm")]:
        assert secret not in log
    ours = [line for line in log.splitlines() if re.match(r"(INFO|WARNING|ERROR) ", line)]
    assert ours and not any("code=" in line or "xsrf" in line for line in ours)


def test_a_daemon_that_is_down_is_said(site: Site, adm: Visitor) -> None:
    daemon = site[1]
    reader = Reader(adm)
    daemon.stop()
    try:
        until(lambda: not reader.is_alive(), "the end of the stream")
        for path in ("devices", "events", "quotas"):
            assert said(adm.call("GET", path)) == (503, "broker_down")
        assert adm.call("GET", "me").json()["admin"] is None
        assert adm.client.get(adm.url).status_code == 200
    finally:
        daemon.start()
    until(lambda: adm.call("GET", "devices").status_code == 200, "the daemon again")
    assert adm.call("GET", "me").json()["admin"] is True


def test_a_hub_that_is_down_is_said(site: Site) -> None:
    hub, _ = site
    newcomer = {"Authorization": "token of-somebody-new"}
    url = f"{hub.url}/services/gpu/"
    hub.kill()
    assert said(httpx.get(f"{url}genv-jupyter/v1/me", headers=newcomer)) == (503, "unavailable")
    page = httpx.get(url, headers=newcomer)
    assert page.status_code == 503 and "JupyterHub does not answer" in page.text
    assert hub.api_url not in page.text
