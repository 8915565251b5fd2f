"""A real kernel of a real server dies of its GPU: said in its first cell, and by %gpu."""

from __future__ import annotations

import os
import signal

from genv_jupyter.api.client import Client
from tests.fakedriver.driver import FakeDriver
from tests.fakedriver.fixtures import driver, fake_driver
from tests.integration.servers import Server, Talk, another_process, attach

__all__ = ["driver", "fake_driver"]


async def outputs(talk: Talk, code: str) -> str:
    """Run a cell and return all that it shows."""
    sent = talk.client.execute(code)
    shown = []
    while True:
        message = await talk.client.get_iopub_msg(timeout=60)
        if message["parent_header"].get("msg_id") != sent:
            continue
        content = message["content"]
        if message["msg_type"] == "status" and content["execution_state"] == "idle":
            return " ".join("".join(shown).split())
        shown.append(content.get("text") or content.get("data", {}).get("text/plain", ""))


async def test_kernel_that_died_of_its_gpu_is_told_so(driver: FakeDriver, server: Server) -> None:
    kernel = await server.start_kernel()
    await attach(server, kernel, {"fraction": 0.5, "devices": [driver.uuids[0]]})
    pid = (await server.environment(kernel))["pid"]
    driver.xid(driver.uuids[0], 31)
    os.kill(pid, signal.SIGKILL)
    again = await another_process(server, kernel, pid)
    assert "Xid 31 (memory page fault" in (again["ended"] or "")
    async with server.talk(kernel) as talk:
        said = await outputs(talk, "1 + 1")
        assert "GPU: The kernel before this one died (it was ended by SIGKILL). GPU 0" in said
        assert "died" not in await outputs(talk, "1 + 1"), "once"
        assert "Xid 31" in await outputs(talk, "%gpu")
    (notice,) = [it for it in Client().notices() if it.kind == "ended"]
    assert notice.environment == kernel
    restarted = await server.call("POST", "api", "kernels", kernel, "restart")
    assert restarted.status == 200
    fresh = await another_process(server, kernel, again["pid"])
    assert fresh["ended"] is None, "somebody asked for it"
