"""The server extension, with real kernels and a real broker over simulated devices."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from genv_jupyter.api import rendezvous
from genv_jupyter.errors import BrokerDown
from tests.integration.servers import VISIBLE, AddKernelspec, Server, Talk, attach, eventually

HALF = {"fraction": 0.5}
WHOLE = {"gpus": 1}


def a_cell_until(flag: Path, then: str = "") -> str:
    """Return a cell that runs until a file is there."""
    return f"import os, time\nwhile not os.path.exists({str(flag)!r}): time.sleep(0.01)\n{then}"


# -- applying in living kernels -------------------------------------------------------------------


async def test_attach_reaches_an_idle_kernel(server: Server) -> None:
    kernel = await server.start_kernel()
    environment = await attach(server, kernel, HALF)
    assert environment["applied"] == "live"
    device = environment["grants"][0]["device"]
    assert await server.evaluate(kernel, VISIBLE) == repr(device)


async def test_the_same_attach_again_changes_nothing(server: Server) -> None:
    kernel = await server.start_kernel()
    first = await attach(server, kernel, HALF)
    again = await server.gpu("PUT", f"environments/{kernel}", HALF)
    assert again.status == 200
    assert again.json["grants"] == first["grants"]
    assert again.json["applied"] == "live"


async def test_detach_frees_an_idle_kernel_at_once(server: Server) -> None:
    kernel = await server.start_kernel()
    await attach(server, kernel, HALF)
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


async def test_detach_of_one_device_keeps_the_limit_on_the_other(server: Server) -> None:
    kernel = await server.start_kernel()
    limits = "__import__('os').environ.get('GENV_JUPYTER_MEMORY_LIMIT')"
    environment = await attach(server, kernel, {"gpus": 2, "memory": 4_000_000_000})
    assert await server.evaluate(kernel, limits) == "'4000000000,4000000000'"
    device = environment["grants"][0]["device"]
    await server.gpu("DELETE", f"environments/{kernel}", device=device)
    assert await server.evaluate(kernel, limits) == "'4000000000'"


async def test_a_failed_detach_leaves_the_devices_visible(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = await server.start_kernel()
    environment = await attach(server, kernel, HALF)
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
        environment = await attach(server, kernel, HALF)
        assert environment["applied"] == "live"  # beside the cell, which still runs
        assert not flag.exists()
        flag.touch()
        assert (await talk.reply(cell))["status"] == "ok"
        assert await talk.evaluate("seen") == repr(environment["grants"][0]["device"])


async def test_attach_leaves_nothing_in_the_users_names(server: Server) -> None:
    kernel = await server.start_kernel()
    before = await server.evaluate(kernel, "sorted(globals())")
    await attach(server, kernel, HALF)
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
            await attach(server, kernel, HALF)
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
    environment = await attach(server, kernel, HALF)
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
        environment = await attach(server, kernel, HALF)
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


ITSELF = """
import http.client, json, os, socket, time
def until(path):
    while not os.path.exists(path): time.sleep(0.01)
until({begin!r})
broker = http.client.HTTPConnection("broker")
broker.sock = socket.socket(socket.AF_UNIX)
broker.sock.connect({address!r})
broker.request("PUT", "/v1/environments/{kernel}", {body!r})
given = json.loads(broker.getresponse().read())["environ"]
os.environ.update({{name: value for name, value in given.items() if value is not None}})
until({end!r})
"""


async def test_what_the_kernel_took_itself_is_not_undone(
    foreign: str, server: Server, tmp_path: Path
) -> None:
    """A cell attaches, as the magic does, while a request of the sidebar waits in its queue."""
    kernel = await server.start_kernel(foreign)
    begin, end = tmp_path / "begin", tmp_path / "end"
    body = json.dumps({"devices": ["1"], **HALF})
    cell = ITSELF.format(
        begin=str(begin), end=str(end), kernel=kernel, body=body, address=rendezvous.address()
    )
    async with server.talk(kernel) as talk:
        running = talk.client.execute(cell)
        await server.known(kernel, kernel_state="busy")
        await attach(server, kernel, {"devices": ["0"], **HALF})
        begin.touch()

        async def second() -> str | None:
            grants = (await server.environment(kernel))["grants"]
            granted = [grant["device"] for grant in grants if grant["state"] == "granted"]
            return granted[0] if granted[0].endswith("1") else None

        device = await eventually(second, "the cell has attached")
        end.touch()
        assert (await talk.reply(running))["status"] == "ok"

        async def visible() -> bool:
            return await talk.evaluate(VISIBLE) == repr(device)

        await server.known(kernel, applied="live")
        await eventually(visible, "the second device is seen")


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
    environment = await attach(server, kernel, HALF)
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
