"""Restarts that the broker asks for: what the cell and the queue say, and a start that fails."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from genv_jupyter.events import Want
from tests.integration.servers import (
    IPYKERNEL,
    VISIBLE,
    AddKernelspec,
    Server,
    another_process,
    attach,
    eventually,
)

WHOLE = {"gpus": 1}
LOADED = "import sys, types; sys.modules['jax'] = types.ModuleType('jax')"
"""What makes a restart necessary: JAX, loaded while the GPUs were hidden, has seen none."""

STARTUP = Path(__file__).parents[2] / "jupyter-config/ipython/startup/50-genv-jupyter.py"


@pytest.fixture(autouse=True)
def magic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels load `%gpu` as where a wheel is installed."""
    startup = tmp_path / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / STARTUP.name).write_bytes(STARTUP.read_bytes())
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))


async def test_the_cell_ends_with_one_line_and_the_queue_is_aborted(server: Server) -> None:
    kernel = await server.start_kernel()
    async with server.talk(kernel) as talk:
        before = (await server.environment(kernel))["pid"]
        sent = [
            talk.client.execute(code)
            for code in (LOADED, "%gpu attach 1 --restart", "'behind'", "'far behind'")
        ]
        replies = [await talk.reply(message) for message in sent]
    assert [reply["status"] for reply in replies] == ["ok", "error", "aborted", "aborted"]
    said = replies[1]["evalue"]
    assert said.startswith("Restarting: the cells behind this one are not run")
    assert "\n" not in said
    after = await another_process(server, kernel, before)
    assert after["applied"] == "live"
    assert await server.evaluate(kernel, VISIBLE) == repr(after["grants"][0]["device"])


async def test_run_again_after_the_restart_it_restarts_nothing(server: Server) -> None:
    """Run All, twice: there is no loop, also where the reason for the restart comes again."""
    kernel = await server.start_kernel()
    cells = (LOADED, "%gpu attach 1 --restart", "'behind'")

    async def run_all() -> list[str]:
        async with server.talk(kernel) as talk:
            sent = [talk.client.execute(code) for code in cells]
            return [(await talk.reply(message))["status"] for message in sent]

    first = (await server.environment(kernel))["pid"]
    assert await run_all() == ["ok", "error", "aborted"]
    second = (await another_process(server, kernel, first))["pid"]
    for _ in range(3):
        assert await run_all() == ["ok", "ok", "ok"]
    assert (await server.environment(kernel))["pid"] == second


@pytest.fixture
def fragile(add_kernelspec: AddKernelspec, tmp_path: Path) -> tuple[str, Path]:
    """A kernelspec whose program can be taken away; its name, and the program."""
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    program.chmod(0o755)
    return add_kernelspec("fragile", (str(program), *IPYKERNEL[1:])), program


@pytest.mark.parametrize("by_hand", [False, True], ids=["ours", "by-hand"])
async def test_a_restart_that_fails_keeps_the_grant_and_says_why(
    server: Server, fragile: tuple[str, Path], by_hand: bool
) -> None:
    name, program = fragile
    kernel = await server.start_kernel(name)
    held = (await attach(server, kernel, WHOLE))["grants"]
    away = program.rename(program.with_name("away"))
    if by_hand:
        answer = await server.call("POST", "api", "kernels", kernel, "restart")
        assert answer.status == 500
    else:
        assert (await server.gpu("POST", f"environments/{kernel}/restart")).status == 202
    failed = await server.known(kernel, kernel_state="dead")
    assert failed["grants"] == held, "kept until the deadline"
    assert failed["state"] == "held"
    assert str(program) in failed["reason"], "the cause"
    assert "kept for 60 s" in failed["reason"]
    other = await server.start_kernel()
    assert (await server.gpu("PUT", f"environments/{other}", {"gpus": 2})).status == 409
    away.rename(program)
    assert (await server.gpu("POST", f"environments/{kernel}/restart")).status == 202
    back = await server.known(kernel, state="granted", applied="live", kernel_state="idle")
    assert back["reason"] is None
    assert [grant["device"] for grant in back["grants"]] == [grant["device"] for grant in held]


SLOW_TO_END = """
import time
print("begun", flush=True)
try:
    time.sleep(600)
finally:
    time.sleep(1)
"""


async def test_a_cell_may_end_before_its_process_does(server: Server) -> None:
    """It would be shown as running for ever, with those behind it."""
    kernel = await server.start_kernel()
    before = (await attach(server, kernel, WHOLE))["pid"]
    async with server.talk(kernel) as talk:
        sent = [talk.client.execute(code) for code in (SLOW_TO_END, "'behind'")]
        await server.known(kernel, kernel_state="busy")
        while (await talk.client.get_iopub_msg(timeout=30))["msg_type"] != "stream":
            pass
        assert (await server.gpu("POST", f"environments/{kernel}/restart")).status == 202
        replies = [await talk.reply(message) for message in sent]
        assert [reply["status"] for reply in replies] == ["error", "aborted"]
        await another_process(server, kernel, before)


async def test_a_cell_that_does_not_listen_is_not_waited_for_long(server: Server) -> None:
    kernel = await server.start_kernel()
    before = (await attach(server, kernel, WHOLE))["pid"]
    deaf = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(600)"
    async with server.talk(kernel) as talk:
        talk.client.execute(deaf)
        await server.known(kernel, kernel_state="busy")
        assert (await server.gpu("POST", f"environments/{kernel}/restart")).status == 202
        await another_process(server, kernel, before)


async def test_two_restarts_at_once_end_in_one_living_kernel(server: Server) -> None:
    kernel = await server.start_kernel()
    held = (await attach(server, kernel, WHOLE))["grants"]
    answers: list[Any] = await asyncio.gather(
        *(server.gpu("POST", f"environments/{kernel}/restart") for _ in range(2))
    )
    assert [answer.status for answer in answers] == [202, 202]

    async def lives() -> bool:
        found = await server.environment(kernel)
        return found["kernel_state"] == "idle" and found["applied"] == "live"

    await eventually(lives, "a living kernel")
    assert (await server.environment(kernel))["grants"] == held
    assert await server.evaluate(kernel, VISIBLE) == repr(held[0]["device"])


async def test_a_restart_by_hand_under_way_is_the_one_that_was_wanted(server: Server) -> None:
    kernel = await server.start_kernel()
    held = (await attach(server, kernel, WHOLE))["grants"]
    before, manager = (await server.environment(kernel))["pid"], server.manager(kernel)
    by_hand = asyncio.create_task(server.call("POST", "api", "kernels", kernel, "restart"))
    while manager.ready.done():
        await asyncio.sleep(0)
    assert (await server.gpu("POST", f"environments/{kernel}/restart")).status == 202
    assert (await by_hand).status == 200
    back = await another_process(server, kernel, before)
    assert back["grants"] == held
    await asyncio.sleep(0.2)
    assert not server.host._restarting
    assert (await server.environment(kernel))["pid"] == back["pid"], "no second one behind it"


@pytest.mark.parametrize("action", ["shutdown", "interrupt"])
async def test_a_restart_by_hand_is_not_crossed_by_what_a_rule_wants(
    server: Server, action: str
) -> None:
    """It was judged of a kernel that is just being replaced."""
    kernel = await server.start_kernel()
    held = (await attach(server, kernel, WHOLE))["grants"]
    before = await server.environment(kernel)
    launch = server.host.reports.kernels[kernel].launch
    restarting = asyncio.ensure_future(server.app.kernel_manager.restart_kernel(kernel))
    manager = server.app.kernel_manager.get_kernel(kernel)
    while manager.ready.done():
        await asyncio.sleep(0)
    server.host._perform(Want(kernel=kernel, action=action, launch=launch))
    await restarting
    after = await another_process(server, kernel, before["pid"])
    back = await server.known(kernel, state="granted", kernel_state="idle")
    assert [it["device"] for it in back["grants"]] == [it["device"] for it in held], after
    assert kernel in server.app.kernel_manager
    async with server.talk(kernel) as talk:
        assert (await talk.run("1 + 1"))["status"] == "ok"
