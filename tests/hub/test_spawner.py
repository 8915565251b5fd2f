"""Users of a Hub choose a GPU before their server starts, which runs as their own Unix user."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from genv_jupyter.api.client import Client
from genv_jupyter.model import Environment
from tests.hub.beside import running
from tests.hub.hubs import Answer, Hub, until
from tests.integration.daemons import Daemon, User

SPAWNER = "c.JupyterHub.spawner_class = 'tests.hub.spawners.GpuRealUserSpawner'"


@pytest.fixture(scope="module")
def local(users: dict[str, User]) -> Iterator[tuple[Hub, Daemon]]:
    """A Hub whose users choose a GPU, beside a daemon with one device."""
    names = {key: user.name for key, user in users.items()}
    with running("local", names, start=False, spec="1x24GiB") as (hub, daemon):
        hub.lines += [
            SPAWNER,
            f"c.GpuRealUserSpawner.homes = {str(hub.top / 'homes')!r}",
            f"c.GpuReservations.socket = {str(daemon.socket)!r}",
        ]
        hub.start()
        yield hub, daemon


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test ends the servers that it has started, and then nothing is reserved."""
    yield
    if "local" in request.fixturenames:
        hub, daemon = request.getfixturevalue("local")
        if daemon.process.poll() is None:
            stop_all(hub)
            until(lambda: not reserved(), "the end of all reservations")


def stop_all(hub: Hub) -> None:
    for name in hub.names.values():
        found = hub.api("GET", f"users/{name}").json["servers"]
        for server in found:
            path = f"users/{name}/" + (f"servers/{server}" if server else "server")
            hub.api("DELETE", path)
        until(
            lambda name=name: not hub.api("GET", f"users/{name}").json["servers"],
            f"the end of the servers of {name}",
        )


def reserved(**wanted: Any) -> list[Environment]:
    """What is reserved, as the daemon's administrator sees it."""
    found = [it for it in Client(start=False).environments() if it.kind == "server"]
    return [it for it in found if all(getattr(it, key) == wanted[key] for key in wanted)]


def free() -> bool:
    return not any(device.grants for device in Client(start=False).devices())


def refused(hub: Hub, user: str, options: Any, server: str = "") -> Answer:
    """Ask for a server that is refused, and return what the Hub says."""
    answer = hub.ask_for(user, server, options)
    assert answer.status >= 400, answer
    return answer


@contextlib.contextmanager
def visiting(hub: Hub, user: str) -> Iterator[httpx.Client]:
    """A browser in which somebody is logged in."""
    with httpx.Client(base_url=hub.url, follow_redirects=True, timeout=90) as client:
        client.get("/hub/login")
        form = {"username": hub.names[user], "password": "any", "_xsrf": client.cookies["_xsrf"]}
        assert client.post("/hub/login", data=form).is_success
        yield client


def test_what_is_reserved_is_drawn_on_by_kernels_and_free_when_the_server_has_stopped(
    local: tuple[Hub, Daemon], users: dict[str, User]
) -> None:
    hub, _ = local
    server = hub.spawn("ann", options={"gpu": "half"})
    (made,) = reserved()
    assert (made.user, made.name, made.state) == (users["ann"].name, "server", "granted")
    kernel = server.start_kernel()
    said = server.run(kernel, "%gpu attach 0.5")
    held = server.gpu("GET", f"environments/{kernel}").json
    assert held["state"] == "granted", said
    (now,) = reserved()
    assert (now.id, now.grants, now.state) == (made.id, (), "granted")
    # bob's half is what is left, and no more.
    assert refused(hub, "bob", {"gpu": "whole"}).status == 409
    other = hub.spawn("bob", options={"gpu": "half"})
    server.call("DELETE", f"api/kernels/{kernel}")
    until(lambda: reserved(id=made.id)[0].grants == made.grants, "what the kernel had given back")
    server.stop()
    until(lambda: not reserved(id=made.id), "the end of the reservation")
    other.stop()
    until(free, "a device that is free again")


def test_a_refusal_says_who_holds_what_in_the_api_and_on_the_page(
    local: tuple[Hub, Daemon], users: dict[str, User]
) -> None:
    hub, _ = local
    hub.spawn("ann", options={"gpu": "whole"})
    answer = refused(hub, "bob", {"gpu": "half"})
    assert answer.status == 409
    who = f"a server of {users['ann'].name} holds all of it"
    assert who in answer.json["message"]
    with visiting(hub, "bob") as browser:
        page = browser.get("/hub/spawn").text
        assert "GPU 0 nothing" in page
        form = {"gpu": "half", "_xsrf": browser.cookies["_xsrf"]}
        refusal = browser.post("/hub/spawn", data=form)
        until(lambda: who in browser.get("/hub/spawn").text or who in refusal.text, "the refusal")
        assert "Half a GPU could not be reserved." in refusal.text
    assert [it.user for it in reserved()] == [users["ann"].name]


def test_the_form_offers_choices_and_remembers_the_last(local: tuple[Hub, Daemon]) -> None:
    hub, _ = local
    with visiting(hub, "cat") as browser:
        page = browser.get("/hub/spawn").text
        offered = re.findall(r'type="radio" name="gpu"[^>]*value="(\w+)"( checked)?', page)
        assert offered == [("none", " checked"), ("half", ""), ("whole", "")]
        assert "Free now: GPU 0 all of it (" in page
        form = {"gpu": "half", "_xsrf": browser.cookies["_xsrf"]}
        browser.post("/hub/spawn", data=form)
        until(lambda: reserved(state="granted"), "the server that was chosen in the form")
        (made,) = reserved()
        assert made.request is not None and made.request.fraction == 0.5
        stop_all(hub)
        page = browser.get("/hub/spawn").text
        assert 'value="half" checked' in page


@pytest.mark.parametrize("choice", ["all of them", 7, ["half"], {"gpus": 1}, "'\"<script>"])
def test_a_choice_that_is_not_offered_is_refused(local: tuple[Hub, Daemon], choice: Any) -> None:
    hub, _ = local
    answer = refused(hub, "ann", {"gpu": choice})
    assert answer.status == 400
    assert "Say none or half or whole." in answer.json["message"]
    assert not reserved()


def test_named_servers_have_reservations_of_their_own(local: tuple[Hub, Daemon]) -> None:
    hub, _ = local
    one = hub.spawn("ann", "one", {"gpu": "half"})
    hub.spawn("ann", "two", {"gpu": "half"})
    assert {it.name for it in reserved()} == {"server one", "server two"}
    one.stop()
    until(lambda: [it.name for it in reserved()] == ["server two"], "the end of one of them")


def test_a_server_that_does_not_start_leaves_nothing(local: tuple[Hub, Daemon]) -> None:
    hub, _ = local
    refused(hub, "ann", {"gpu": "whole"}, "broken")
    until(free, "what was reserved for a server that did not start")


def test_a_restart_of_the_hub_loses_nothing(local: tuple[Hub, Daemon]) -> None:
    hub, _ = local
    server = hub.spawn("ann", options={"gpu": "half"})
    kernel = server.start_kernel()
    server.run(kernel, "%gpu attach 0.25")
    before = reserved()
    hub.kill()
    hub.start()
    until(server.state, "the server as the new Hub knows it")
    assert reserved() == before
    assert server.gpu("GET", f"environments/{kernel}").json["state"] == "granted"
    server.stop()
    until(free, "what the Hub before had reserved")


def test_a_server_that_was_killed_frees_what_was_reserved(local: tuple[Hub, Daemon]) -> None:
    import os
    import signal

    hub, _ = local
    server = hub.spawn("ann", options={"gpu": "whole"})
    os.kill(server.pid, signal.SIGKILL)
    until(free, "what a killed server had reserved")


def test_while_the_daemon_is_down_servers_without_a_gpu_start(local: tuple[Hub, Daemon]) -> None:
    hub, daemon = local
    daemon.stop()
    try:
        answer = refused(hub, "ann", {"gpu": "half"})
        assert answer.status == 503
        assert "does not answer" in answer.json["message"]
        hub.spawn("ann", options={"gpu": "none"})
        with visiting(hub, "bob") as browser:
            page = browser.get("/hub/spawn").text
            assert "What is free cannot be told." in page
            assert 'name="gpu"' in page
    finally:
        daemon.start()
    hub.spawn("bob", options={"gpu": "half"})
    assert reserved(state="granted")
