"""The server's event stream, and what it does while the broker is gone."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from genv_jupyter.api import rendezvous
from tests.conftest import end_broker
from tests.integration.servers import Server, attach, eventually

HALF = {"fraction": 0.5}


async def test_events_begin_with_a_snapshot_and_follow_changes(
    server: Server, jp_ws_fetch: Any
) -> None:
    kernel = await server.start_kernel()
    await server.known(kernel, state="released")
    socket = await jp_ws_fetch("genv-jupyter", "v1", "events")
    first = json.loads(await socket.read_message())
    assert first["snapshot"] is True
    assert len(first["devices"]) == 2
    assert first["health"]["simulated"] is True
    await attach(server, kernel, HALF)
    seen: list[Any] = []
    while not any(row["id"] == kernel and row["grants"] for row in seen):
        event = json.loads(await socket.read_message())
        assert event["revision"] > first["revision"]
        assert event["wants"] == []  # what the broker wants of this server is no browser's matter
        seen += event["environments"]
    late = await jp_ws_fetch("genv-jupyter", "v1", "events")
    [usage] = json.loads(await late.read_message())["usage"]
    assert (usage["environment"], usage["grants"][0]["memory_used"]) == (kernel, 0)
    assert "simulated" in usage["advice"]
    assert server.host.reports.link.watched
    socket.close()
    late.close()

    async def unwatched() -> bool:
        return not server.host.reports.link.watched

    await eventually(unwatched, "the broker is told that nobody looks")


async def test_events_since_the_last_revision_bring_no_snapshot(
    server: Server, jp_ws_fetch: Any
) -> None:
    health = (await server.gpu("GET", "health")).json
    first = await jp_ws_fetch("genv-jupyter", "v1", "events")
    snapshot = json.loads(await first.read_message())
    assert snapshot["revision"] >= health["revision"]
    params = {"since": str(snapshot["revision"])}
    second = await jp_ws_fetch("genv-jupyter", "v1", "events", params=params)
    kernel = await server.start_kernel()
    event = json.loads(await second.read_message())
    assert event["snapshot"] is False
    assert kernel in [row["id"] for row in event["environments"]]
    first.close()
    second.close()


@pytest.fixture
def restricted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server was started with a part of the devices. Comes before ``server``."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")


async def test_devices_and_events_are_those_of_the_servers_pool(
    restricted: None, server: Server
) -> None:
    devices = await server.gpu("GET", "devices")
    assert [device["index"] for device in devices.json] == [1]
    kernel = await server.start_kernel()
    await server.known(kernel, state="released")
    refused = await server.gpu("PUT", f"environments/{kernel}", {"devices": ["0"]})
    assert refused.json["code"] == "unknown_device"


# -- when the broker is gone ----------------------------------------------------------------------


async def test_a_killed_broker_is_replaced_and_knows_everything_again(
    server: Server, jp_ws_fetch: Any
) -> None:
    kernel = await server.start_kernel()
    environment = await attach(server, kernel, HALF)
    socket = await jp_ws_fetch("genv-jupyter", "v1", "events")
    before = json.loads(await socket.read_message())
    pid = before["health"]["pid"]
    os.kill(pid, signal.SIGKILL)
    while await socket.read_message() is not None:  # ended, so that the page asks why
        pass
    socket.close()

    async def another() -> bool:
        health = await server.gpu("GET", "health")
        return health.status == 200 and health.json["pid"] != pid

    await eventually(another, "another broker")
    after = await server.known(kernel, state="granted")
    assert after["grants"] == environment["grants"]
    socket = await jp_ws_fetch("genv-jupyter", "v1", "events")
    event = json.loads(await socket.read_message())
    assert event["snapshot"] is True
    assert event["health"]["pid"] != pid
    socket.close()


async def test_a_broker_that_forgot_everything_is_told_again(
    server: Server, broker_home: Path
) -> None:
    kernel = await server.start_kernel()
    known = await server.known(kernel, state="released")
    await asyncio.to_thread(end_broker, rendezvous.address())
    for path in broker_home.rglob("ledger.sqlite*"):
        path.unlink(missing_ok=True)
    again = await server.known(kernel, pid=known["pid"], state="released")
    assert again["created"] != known["created"]
