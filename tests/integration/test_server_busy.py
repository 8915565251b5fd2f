"""What is asked of a kernel beside its cell does not make it look idle: idle kernels are culled."""

from __future__ import annotations

from pathlib import Path

from tests.integration.servers import Server, attach, eventually

HALF = {"fraction": 0.5}


def a_cell_until(flag: Path) -> str:
    return f"import os, time\nwhile not os.path.exists({str(flag)!r}): time.sleep(0.01)"


async def test_a_kernel_that_was_asked_beside_its_cell_is_busy_still(
    server: Server, tmp_path: Path
) -> None:
    kernel, flag = await server.start_kernel(), tmp_path / "flag"
    manager = server.manager(kernel)
    async with server.talk(kernel) as talk:
        cell = talk.client.execute(a_cell_until(flag))
        await server.known(kernel, kernel_state="busy")
        assert (await attach(server, kernel, HALF))["applied"] == "live", "beside the cell"

        async def believed() -> bool:
            states = {manager.execution_state, (await server.environment(kernel))["kernel_state"]}
            return states == {"busy"}

        async def idle() -> bool:
            return bool(manager.execution_state == "idle")

        await eventually(idle, "a word of ours is taken for the kernel's")
        await eventually(believed, "it is known to be busy")
        flag.touch()
        await talk.reply(cell)
        await server.known(kernel, kernel_state="idle")


async def test_a_kernel_that_runs_nothing_is_idle_still(server: Server) -> None:
    kernel = await server.start_kernel()
    await attach(server, kernel, HALF)
    await server.known(kernel, kernel_state="idle", applied="live")
    assert server.manager(kernel).execution_state == "idle"
