"""The configuration that docs/hub.md gives as an example: loaded as it is, and run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from genv_jupyter.api.client import Client
from tests.hub.beside import running
from tests.hub.hubs import ROOT, Hub, free_port, until
from tests.integration.daemons import Daemon, User

EXAMPLE = ROOT / "examples" / "hub" / "jupyterhub_config.py"
_AROUND = f"""
services, roles = list(c.JupyterHub.services), list(c.JupyterHub.load_roles)
exec(compile(open({str(EXAMPLE)!r}).read(), 'example', 'exec'))
c.JupyterHub.services = list(c.JupyterHub.services) + services
c.JupyterHub.load_roles = list(c.JupyterHub.load_roles) + roles
"""
"""The tests have a service and a role of their own. What else is set afterwards is about places."""


def page_user(users: dict[str, User]) -> str:
    """Return who the page runs as: a user of ours, who may not get at the interpreter here."""
    cat = users["cat"]
    tried = [sys.executable, "-c", "import genv_jupyter.hub.service"]
    try:
        subprocess.run(tried, user=cat.uid, group=cat.gid, extra_groups=[], check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return cat.name


def uids_of_page(daemon: Daemon) -> set[int]:
    """Return the users that the page's processes run as."""
    wanted = [b"genv_jupyter.hub", b"--socket", os.fsencode(daemon.hub_socket)]
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            if all(word in words for word in wanted):
                found.add(process.stat().st_uid)
        except OSError:  # it has ended
            continue
    return found


@pytest.fixture(scope="module")
def example(users: dict[str, User]) -> Iterator[tuple[Hub, Daemon]]:
    names = {key: user.name for key, user in users.items()}
    with running("local", names, start=False) as (hub, daemon):
        places = ["--socket", str(daemon.hub_socket)]
        hub.lines += [
            _AROUND,
            "c.JupyterHub.spawner_class = 'tests.hub.spawners.GpuRealUserSpawner'",
            f"c.GpuRealUserSpawner.homes = {str(hub.top / 'homes')!r}",
            f"c.GpuReservations.socket = {str(daemon.socket)!r}",
            "page = next(it for it in c.JupyterHub.services if it['name'] == 'gpu')",
            f"page['url'] = 'http://127.0.0.1:{free_port()}'",
            f"page['command'] = [*page['command'], *{places!r}]",
            f"assert page['user'] != 'root'; page['user'] = {page_user(users)!r}",
            f"c.JupyterHub.load_groups = {{'gpu-admins': {{'users': [{names['adm']!r}]}}}}",
        ]
        hub.start()
        yield hub, daemon


def test_the_example_reserves_serves_its_page_and_culls(
    example: tuple[Hub, Daemon], users: dict[str, User]
) -> None:
    hub, daemon = example
    server = hub.spawn("ann", options={"gpu": "half"})
    found = Client(start=False).environments()
    assert [(it.kind, it.user) for it in found] == [("server", hub.names["ann"])]
    kernel = server.start_kernel()
    server.run(kernel, "%gpu attach 0.5")
    assert server.gpu("GET", f"environments/{kernel}").json["state"] == "granted"
    with httpx.Client(base_url=hub.url, follow_redirects=True, timeout=90) as browser:
        browser.get("/hub/login")
        form = {"username": hub.names["adm"], "password": "any"}
        browser.post("/hub/login", data={**form, "_xsrf": browser.cookies["_xsrf"]})

        def shown() -> bool:
            answer = browser.get("/services/gpu/")
            return answer.status_code == 200 and "GPU" in answer.text

        until(shown, "the GPU page")
    if page_user(users):
        assert uids_of_page(daemon) == {users["cat"].uid}
    services = hub.api("GET", "services").json
    assert {"gpu", "culler", "tests"} <= services.keys()
    assert "culler" in hub.said()


def test_the_example_sets_up_what_it_says() -> None:
    said = EXAMPLE.read_text()
    assert "GpuLocalProcessSpawner" in said
    from genv_jupyter.hub.spawner import GpuLocalProcessSpawner, GpuSimpleLocalProcessSpawner

    for kind in (GpuLocalProcessSpawner, GpuSimpleLocalProcessSpawner):
        assert kind.__mro__[1].__name__ == "GpuSpawnerMixin"
