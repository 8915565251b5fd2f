"""The server extension, with real kernels and a real broker over simulated devices."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from genv_jupyter.errors import BrokerDown
from tests.conftest import end_broker
from tests.integration.servers import VISIBLE, AddKernelspec, Server, Talk, eventually

HALF = {"fraction": 0.5}
WHOLE = {"gpus": 1}


def a_cell_until(flag: Path, then: str = "") -> str:
    """Return a cell that runs until a file is there."""
    return f"import os, time\nwhile not os.path.exists({str(flag)!r}): time.sleep(0.01)\n{then}"


async def attach(server: Server, kernel: str, request: dict[str, Any] | None = None) -> Any:
    """Attach, and return the environment."""
    answer = await server.gpu("PUT", f"environments/{kernel}", request or HALF)
    assert answer.status == 200, answer.body
    return answer.json


# -- applying in living kernels -------------------------------------------------------------------


async def test_attach_reaches_an_idle_kernel(server: Server) -> None:
    kernel = await server.start_kernel()
    environment = await attach(server, kernel)
    assert environment["applied"] == "live"
    device = environment["grants"][0]["device"]
    assert await server.evaluate(kernel, VISIBLE) == repr(device)


async def test_the_same_attach_again_changes_nothing(server: Server) -> None:
    kernel = await server.start_kernel()
    first = await attach(server, kernel)
    again = await server.gpu("PUT", f"environments/{kernel}", HALF)
    assert again.status == 200
    assert again.json["grants"] == first["grants"]
    assert again.json["applied"] == "live"


async def test_detach_frees_an_idle_kernel_at_once(server: Server) -> None:
    kernel = await server.start_kernel()
    await attach(server, kernel)
    gone = await server.gpu("DELETE", f"environments/{kernel}")
    assert gone.status == 200
    assert gone.json["state"] == "released"
    assert await server.evaluate(kernel, VISIBLE) == "''"


async def test_detach_of_one_device_leaves_the_other(server: Server) -> None:
    kernel = await server.start_kernel()
    environment = await attach(server, kernel, {"gpus": 2})
    first, second = (grant["device"] for grant in environment["grants"])
    left = await server.gpu("DELETE", f"environments/{kernel}", device=first)
    assert [grant["device"] for grant in left.json["grants"]] == [second]
    assert await server.evaluate(kernel, VISIBLE) == repr(second)


async def test_a_failed_detach_leaves_the_devices_visible(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = await server.start_kernel()
    environment = await attach(server, kernel)
    call = server.host.reports.link.call

    def but_no_delete(method: str, *args: Any) -> Any:
        """The broker goes away between our question and the verb."""
        if method == "DELETE":
            raise BrokerDown("It has just gone.")
        return call(method, *args)

    monkeypatch.setattr(server.host.reports.link, "call", but_no_delete)
    failed = await server.gpu("DELETE", f"environments/{kernel}")
    assert failed.status == 503
    device = environment["grants"][0]["device"]

    async def visible() -> bool:
        return await server.evaluate(kernel, VISIBLE) == repr(device)

    await eventually(visible, "the device is seen again")


async def test_attach_reaches_a_kernel_in_a_long_cell(server: Server, tmp_path: Path) -> None:
    kernel = await server.start_kernel()
    flag = tmp_path / "flag"
    async with server.talk(kernel) as talk:
        cell = talk.client.execute(a_cell_until(flag, "seen = os.environ['CUDA_VISIBLE_DEVICES']"))
        await server.known(kernel, kernel_state="busy")
        environment = await attach(server, kernel)
        assert environment["applied"] == "live"  # beside the cell, which still runs
        assert not flag.exists()
        flag.touch()
        assert (await talk.reply(cell))["status"] == "ok"
        assert await talk.evaluate("seen") == repr(environment["grants"][0]["device"])


async def test_attach_leaves_nothing_in_the_users_names(server: Server) -> None:
    kernel = await server.start_kernel()
    before = await server.evaluate(kernel, "sorted(globals())")
    await attach(server, kernel)
    assert await server.evaluate(kernel, "sorted(globals())") == before


async def test_attach_takes_no_reply_from_another_client(server: Server) -> None:
    """Clients of the kernel manager share one identity; one more would get their replies."""
    kernel = await server.start_kernel()
    client = server.manager(kernel).client()
    client.start_channels(stdin=False, hb=False)
    try:
        await client.wait_for_ready(timeout=30)
        talk = Talk(client)
        for _ in range(3):
            cell = client.execute("import time; time.sleep(0.3)")
            await attach(server, kernel)
            await server.gpu("DELETE", f"environments/{kernel}")
            assert (await talk.reply(cell))["status"] == "ok"
    finally:
        client.stop_channels()


@pytest.fixture
def foreign(add_kernelspec: AddKernelspec, foreign_python: str) -> str:
    argv = [foreign_python, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    # pytest-jupyter gives its servers this environment's packages; a real one has no such thing.
    return add_kernelspec("foreign", argv, env={"PYTHONPATH": ""})


async def test_attach_reaches_a_kernel_without_us(foreign: str, server: Server) -> None:
    kernel = await server.start_kernel(foreign)
    environment = await attach(server, kernel)
    assert environment["applied"] == "live"
    without_us = "__import__('importlib.util').util.find_spec('genv_jupyter')"
    assert await server.evaluate(kernel, without_us) == "None"
    assert await server.evaluate(kernel, VISIBLE) == repr(environment["grants"][0]["device"])


async def test_attach_waits_for_the_queue_where_there_are_no_subshells(
    foreign: str, server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    kernel = await server.start_kernel(foreign)
    flag = tmp_path / "flag"
    async with server.talk(kernel) as talk:
        cell = talk.client.execute(a_cell_until(flag, "raise SystemError('on purpose')"))
        await server.known(kernel, kernel_state="busy")
        environment = await attach(server, kernel)
        assert environment["applied"] == "pending"
        flag.touch()
        # The failing cell aborts what waits behind it, our request included.
        assert (await talk.reply(cell))["status"] == "error"
        environment = await server.known(kernel, applied="live")
        assert "aborted" in caplog.text
        assert await talk.evaluate(VISIBLE) == repr(environment["grants"][0]["device"])


async def test_what_is_wanted_now_is_applied_and_not_what_was(
    foreign: str, server: Server, tmp_path: Path
) -> None:
    kernel = await server.start_kernel(foreign)
    flag = tmp_path / "flag"
    async with server.talk(kernel) as talk:
        cell = talk.client.execute(a_cell_until(flag))
        await server.known(kernel, kernel_state="busy")
        first = await attach(server, kernel, {"devices": ["0"], **HALF})
        second = await server.gpu("PUT", f"environments/{kernel}", {"devices": ["1"], **HALF})
        device = next(g["device"] for g in second.json["grants"] if g["state"] == "granted")
        assert device != first["grants"][0]["device"]
        flag.touch()
        await talk.reply(cell)

        async def visible() -> bool:
            return await talk.evaluate(VISIBLE) == repr(device)

        await eventually(visible, "the second device is seen")
    await server.known(kernel, applied="live")


async def test_the_servers_end_waits_for_no_kernels_queue(
    foreign: str, server: Server, tmp_path: Path
) -> None:
    kernel = await server.start_kernel(foreign)
    async with server.talk(kernel) as talk:
        talk.client.execute(a_cell_until(tmp_path / "never"))
        await server.known(kernel, kernel_state="busy")
        for device in ("0", "1"):  # two applications in the queue of one kernel
            await server.gpu("PUT", f"environments/{kernel}", {"devices": [device], **HALF})
    await server.app.cleanup_extensions()
    assert server.host.applier._tasks == set()
    await server.app.cleanup_kernels()
    await asyncio.to_thread(server.app.kernel_manager.context.destroy)  # hangs on an open socket


async def test_a_kernel_that_is_not_python_gets_it_at_its_restart(
    add_kernelspec: AddKernelspec,
    server: Server,
    tmp_path: Path,
) -> None:
    import sys

    argv = [sys.executable, "-m", "bash_kernel", "-f", "{connection_file}"]
    kernel = await server.start_kernel(add_kernelspec("bash", argv, language="bash"))
    environment = await attach(server, kernel)
    assert environment["applied"] == "at_restart"
    seen = tmp_path / "seen"
    show = f'echo "$CUDA_VISIBLE_DEVICES" > {seen}'
    async with server.talk(kernel) as talk:
        assert (await talk.run(show))["status"] == "ok"
        assert seen.read_text().strip() == ""
    answer = await server.gpu("POST", f"environments/{kernel}/restart")
    assert answer.status == 202
    await server.known(kernel, applied="live")
    async with server.talk(kernel) as talk:
        await talk.run(show)
    assert seen.read_text().strip() == environment["grants"][0]["device"]


# -- restarts, states, paths ----------------------------------------------------------------------


async def test_restart_by_rest_keeps_the_environment(server: Server) -> None:
    kernel = await server.start_kernel()
    environment = await attach(server, kernel, WHOLE)
    answer = await server.gpu("POST", f"environments/{kernel}/restart")
    assert answer.status == 202

    async def replaced() -> bool:
        found = await server.environment(kernel)
        return found["pid"] not in (None, environment["pid"]) and found["applied"] == "live"

    await eventually(replaced, "another process")
    assert await server.evaluate(kernel, VISIBLE) == repr(environment["grants"][0]["device"])


async def test_the_servers_end_breaks_no_restart_off(server: Server) -> None:
    kernel = await server.start_kernel()
    manager = server.manager(kernel)
    assert (await server.gpu("POST", f"environments/{kernel}/restart")).status == 202

    async def begun() -> bool:
        return bool(manager.shutting_down)

    await eventually(begun, "the restart begins")
    await server.app.cleanup_extensions()
    await server.app.cleanup_kernels()  # fails on a kernel that is neither up nor down
    assert kernel not in server.app.kernel_manager


async def test_the_broker_is_told_busy_and_idle(server: Server, tmp_path: Path) -> None:
    kernel = await server.start_kernel()
    flag = tmp_path / "flag"
    async with server.talk(kernel) as talk:
        cell = talk.client.execute(a_cell_until(flag))
        busy = await server.known(kernel, kernel_state="busy")
        assert busy["idle_since"] is None
        flag.touch()
        await talk.reply(cell)
        idle = await server.known(kernel, kernel_state="idle")
        assert idle["idle_since"] is not None


async def test_the_broker_is_told_the_notebook_and_its_new_name(server: Server) -> None:
    session, kernel = await server.open_notebook("work/llm.ipynb")
    await server.known(kernel, path="work/llm.ipynb", name="llm.ipynb")
    await server.call("PATCH", "api", "sessions", session, body={"path": "work/better.ipynb"})
    await server.known(kernel, path="work/better.ipynb")


# -- events ---------------------------------------------------------------------------------------


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
    await attach(server, kernel)
    seen: list[Any] = []
    while not any(row["id"] == kernel and row["grants"] for row in seen):
        event = json.loads(await socket.read_message())
        assert event["revision"] > first["revision"]
        assert event["wants"] == []  # what the broker wants of this server is no browser's matter
        seen += event["environments"]
    socket.close()


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
    environment = await attach(server, kernel)
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
    from genv_jupyter.api import rendezvous

    kernel = await server.start_kernel()
    known = await server.known(kernel, state="released")
    await asyncio.to_thread(end_broker, rendezvous.address())
    for path in broker_home.rglob("ledger.sqlite*"):
        path.unlink(missing_ok=True)
    again = await server.known(kernel, pid=known["pid"], state="released")
    assert again["created"] != known["created"]
