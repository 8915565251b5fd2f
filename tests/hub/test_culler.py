"""The real jupyterhub-idle-culler leaves a server alone that computes, and no other."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakedriver import FakeDriver, device, uuid
from tests.hub.beside import running
from tests.hub.hubs import Hub, Server, until

GIB = 2**30
IDLE_SECONDS = 30


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    with FakeDriver(tmp_path, {"devices": [device(0), device(1)]}) as driver:
        for name, value in driver.environ.items():
            monkeypatch.setenv(name, value)
        yield driver


def cull(hub: Hub) -> None:
    """Have idle servers culled, as the culler's own documentation sets it up."""
    command = [sys.executable, "-m", "jupyterhub_idle_culler"]
    command += [f"--timeout={IDLE_SECONDS}", "--cull-every=2"]
    hub.services.append({"name": "culler", "command": command})
    scopes = ["list:users", "read:users:activity", "read:servers", "delete:servers"]
    hub.roles.append({"name": "culler", "services": ["culler"], "scopes": scopes})
    hub.environ["JUPYTERHUB_ACTIVITY_INTERVAL"] = "1"
    hub.lines += [
        "c.JupyterHub.activity_resolution = 1",
        "c.Spawner.args = ['--allow-root', '--GenvJupyterApp.gpu_activity=1']",
    ]


def holding(server: Server, driver: FakeDriver, number: int, utilization: int) -> None:
    """Have a kernel hold a device, with memory on it, and compute or not."""
    kernel = server.start_kernel()
    server.run(kernel, f"%gpu attach --device {number}")
    found = server.gpu("GET", f"environments/{kernel}").json
    assert [grant["device"] for grant in found["grants"]] == [uuid(number)], found
    use = {"pid": found["pid"], "memory": 4 * GIB, "kind": "compute"}
    driver.set_processes(uuid(number), [use])  # type: ignore[list-item]
    driver.update_device(uuid(number), utilization={"gpu": utilization, "memory": 10})


def test_work_keeps_a_server_and_possession_does_not(driver: FakeDriver) -> None:
    names = {name: name for name in ("ann", "bob", "adm")}
    with running("simple", names, start=False, spec="") as (hub, _):
        cull(hub)
        hub.start()
        works = hub.spawn("ann")
        holding(works, driver, 0, 80)
        rests = hub.spawn("bob")
        holding(rests, driver, 1, 0)
        until(lambda: rests.state() is None, "the end of a server that only holds something")
        assert works.state() is not None, "it was idle for longer, but for its GPU"
