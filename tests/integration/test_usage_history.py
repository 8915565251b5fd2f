"""The past over REST: of a broker's socket, of a Jupyter server, and what is refused."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import pytest

from genv_jupyter.api.client import Client
from genv_jupyter.errors import BadRequest, GpuError, OutOfRange, UnknownDevice, UnknownEnvironment
from genv_jupyter.model import NewEnvironment, Request
from tests.integration.servers import Server, attach, eventually

T = TypeVar("T")


def until(look: Callable[[], T | None]) -> T:
    """Look again until there is something."""
    while (found := look()) is None:
        time.sleep(0.1)
    return found


@pytest.fixture
def client(broker_home: Path) -> Iterator[Client]:
    made = Client()
    yield made
    made.close()


def hour_ago() -> datetime:
    return datetime.now(UTC) - timedelta(hours=1)


def test_the_past_of_a_broker_that_was_ended_and_of_its_heir(client: Client) -> None:
    mine = client.create(NewEnvironment(kind="command", pid=os.getpid(), name="train"))
    device = client.attach(mine.id, Request(fraction=0.5)).grants[0].device

    def seen(least: int) -> Callable[[], int | None]:
        def look() -> int | None:
            try:
                rows = client.usage_report(hour_ago()).rows
            except GpuError:
                return None
            return next((row.held_seconds for row in rows if row.held_seconds >= least), None)

        return look

    first = until(seen(1))
    os.kill(client.health().pid, signal.SIGTERM)
    assert until(seen(first + 1)) > first, "the heir goes on where the other was ended"
    (row,) = client.usage_report(hour_ago()).rows
    assert (row.key, row.name) == (mine.id, "train")
    assert row.gpu_seconds == pytest.approx(row.held_seconds / 2, abs=1)
    assert row.idle_seconds == row.known_seconds, "nothing runs on a simulated device"
    past = client.device_history(device, hour_ago(), "10s")
    assert past.step == 10
    assert 0 < max(point.memory_granted or 0 for point in past.points) <= 12 * 2**30
    own = client.environment_history(mine.id, hour_ago())
    assert own.name == "train" and own.devices[0].device == device
    assert own.devices[0].points[-1].memory == 12 * 2**30
    assert client.usage_report(hour_ago(), "user").rows[0].user == own.user


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ({"device": "GPU-none", "since": "2026-01-01T00:00:00Z"}, UnknownDevice),
        ({"environment": "none", "since": "2026-01-01T00:00:00Z"}, UnknownEnvironment),
        ({"device": "GPU-none"}, BadRequest),
        ({"environment": "e", "device": "GPU-none"}, BadRequest),
        ({"environment": "e", "step": "10"}, BadRequest),
        ({"device": "GPU-none", "since": "yesterday"}, BadRequest),
        ({"device": "GPU-none", "since": "2999-01-01T00:00:00Z"}, BadRequest),
        ({"device": "GPU-none", "since": "0001-01-01T00:00:00Z"}, UnknownDevice),
        ({"device": "GPU-none", "since": "2026-01-01T00:00:00Z", "step": "x"}, BadRequest),
        ({"device": "GPU-none", "since": "2026-01-01T00:00:00Z", "step": "0"}, OutOfRange),
        ({"since": "2026-01-01T00:00:00Z"}, BadRequest),
        ({}, BadRequest),
    ],
)
def test_bad_questions_are_refused(
    client: Client, query: dict[str, str], error: type[GpuError]
) -> None:
    with pytest.raises(error) as refusal:
        client._get("usage", dict, query)
    assert type(refusal.value) is error and refusal.value.hint


def test_a_report_says_what_is_missing(client: Client) -> None:
    for query in ({}, {"since": "2026-01-01T00:00:00Z", "by": "cat"}):
        with pytest.raises(BadRequest):
            client._get("usage/report", dict, query)


async def test_the_past_is_relayed(server: Server) -> None:
    kernel = await server.start_kernel()
    environment = await attach(server, kernel, {"fraction": 0.5})
    device = environment["grants"][0]["device"]
    since = hour_ago().isoformat()

    async def held() -> bool:
        rows = (await server.gpu("GET", "usage/report", since=since)).json["rows"]
        return any(row["key"] == kernel and row["held_seconds"] for row in rows)

    await eventually(held, "a held second")
    answer = await server.gpu("GET", "usage", device=device, since=since, step="60")
    assert answer.json["step"] == 60 and answer.json["points"][-1]["share"] > 0
    answer = await server.gpu("GET", "usage", environment=kernel, since=since)
    assert answer.json["devices"][0]["device"] == device
    by = (await server.gpu("GET", "usage/report", since=since, by="device")).json
    assert by["by"] == "device" and device in {row["key"] for row in by["rows"]}
