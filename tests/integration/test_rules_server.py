"""The rules with a real Jupyter server, which does to its kernels what the broker wants."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from genv_jupyter.events import Want
from tests.fakedriver.driver import FakeDriver
from tests.fakedriver.fixtures import driver, fake_driver
from tests.integration.servers import Server, another_process, attach, eventually
from tests.integration.test_server_cuda import INITIALIZE

__all__ = ["driver", "fake_driver"]

GREEDY = f"""{INITIALIZE}
cuda.cuCtxSetCurrent(context)
error, _ = cuda.cuMemAlloc(6 * 2**30)
assert int(error) == 0
import time
try:
    time.sleep(600)
except KeyboardInterrupt:
    print("interrupted")
"""
QUICK = {"cap_slack": 0, "patience": 0, "cap_grace": 0, "idle_after": 1, "idle_grace": 1}


@pytest.fixture
def rules(request: pytest.FixtureRequest, jp_config_dir: Path) -> None:
    """Configure the broker that the server is about to start; comes before ``server``."""
    text = json.dumps({"Rules": {**QUICK, **request.param}})
    (jp_config_dir / "jupyter_genv_config.json").write_text(text)


async def ended(server: Server) -> dict[str, Any]:
    """Wait until the owner is told of what was done."""

    async def look() -> dict[str, Any] | None:
        answer = await server.gpu("GET", "notices")
        found = [it for it in answer.json if it["kind"] == "ended"]
        return found[0] if found else None

    return dict(await eventually(look, "the owner is told"))


@pytest.mark.parametrize("rules", [{"idle": "act"}], indirect=True)
async def test_an_idle_kernel_with_cuda_is_restarted_and_its_device_is_free(
    driver: FakeDriver, rules: None, server: Server
) -> None:
    kernel = await server.start_kernel()
    before = await attach(server, kernel, {"gpus": 1})
    async with server.talk(kernel) as talk:
        assert (await talk.run(INITIALIZE))["status"] == "ok"
    after = await another_process(server, kernel, before["pid"])
    assert (await ended(server))["environment"] == kernel

    async def free() -> bool:
        return (await server.environment(kernel))["grants"] == []

    await eventually(free, "nothing is held any more")
    assert after["id"] == kernel
    assert await server.evaluate(kernel, "'cuda' in globals()") == "False"


@pytest.mark.parametrize("rules", [{"idle": "act", "idle_action": "shutdown"}], indirect=True)
async def test_an_idle_kernel_is_shut_down(driver: FakeDriver, rules: None, server: Server) -> None:
    kernel = await server.start_kernel()
    await attach(server, kernel, {"gpus": 1})

    async def gone() -> bool:
        return (await server.call("GET", "api", "kernels", kernel)).status == 404

    await eventually(gone, "the kernel is shut down")
    notice = await ended(server)
    assert "is shut down (idle)" in notice["message"] and notice["environment"] == kernel
    assert (await server.gpu("GET", f"environments/{kernel}")).status == 404


@pytest.mark.parametrize("rules", [{"cap": "act", "pause": 2}], indirect=True)
async def test_a_kernel_over_the_cap_is_interrupted_then_ended_and_comes_back_with_its_grant(
    driver: FakeDriver, rules: None, server: Server
) -> None:
    kernel = await server.start_kernel()
    before = await attach(server, kernel, {"memory": "4G", "mps": "off"})
    async with server.talk(kernel) as talk:
        # What the cell holds stays when it is interrupted: the process has to go.
        reply = await talk.run(GREEDY)
        assert reply["status"] == "ok", "the interrupt has reached the cell, and it went on"
    notice = await ended(server)
    assert f"Process {before['pid']}" in notice["message"] and "(cap)" in notice["message"]
    after = await another_process(server, kernel, before["pid"])
    assert [it["device"] for it in after["grants"]] == [it["device"] for it in before["grants"]]


@pytest.mark.parametrize("rules", [{"lease": "act", "lease_grace": 1}], indirect=True)
async def test_a_kernel_whose_lease_is_over_is_restarted_and_its_device_is_free(
    driver: FakeDriver, rules: None, server: Server
) -> None:
    kernel = await server.start_kernel()
    before = await attach(server, kernel, {"gpus": 1, "duration": 600})
    async with server.talk(kernel) as talk:
        assert (await talk.run(INITIALIZE))["status"] == "ok"
        await attach(server, kernel, {"gpus": 1, "duration": 1})
    await another_process(server, kernel, before["pid"])
    notice = await ended(server)
    assert notice["environment"] == kernel and "(lease)" in notice["message"]
    assert (await server.environment(kernel))["grants"] == []


@pytest.mark.parametrize("rules", [{"quota": "act", "quota_grace": 1}], indirect=True)
async def test_a_quota_that_is_lowered_ends_the_newest_and_spares_the_others(
    driver: FakeDriver, rules: None, server: Server
) -> None:
    first = await server.start_kernel()
    held = await attach(server, first, {"gpus": 1})
    second = await server.start_kernel()
    newest = await attach(server, second, {"gpus": 1})
    async with server.talk(second) as talk:
        assert (await talk.run(INITIALIZE))["status"] == "ok"
    lowered = await server.gpu("PUT", "quotas/default", {"devices": 1})
    assert lowered.status == 200, lowered.body
    await another_process(server, second, newest["pid"])
    notice = await ended(server)
    assert notice["environment"] == second and "(quota)" in notice["message"]
    assert (await server.environment(second))["grants"] == []
    spared = await server.environment(first)
    assert spared["pid"] == held["pid"] and spared["grants"] == held["grants"]


@pytest.mark.parametrize("rules", [{}], indirect=True)
@pytest.mark.parametrize("action", ["restart", "shutdown"])
async def test_what_is_meant_for_an_idle_kernel_does_not_reach_one_at_work(
    driver: FakeDriver, rules: None, server: Server, action: Any
) -> None:
    """A cell that begins in the last moment wins, and so does a restart by hand."""
    kernel = await server.start_kernel()
    known = server.host.reports.kernels[kernel]
    pid = server.manager(kernel).provisioner.pid
    want = Want(kernel=kernel, action=action, launch=known.launch, idle=True)

    async def state(wanted: str) -> None:
        async def look() -> bool:
            return bool(known.state == wanted)

        await eventually(look, wanted)

    async with server.talk(kernel) as talk:
        message = talk.client.execute("import time\ntry: time.sleep(600)\nexcept: print('!')")
        await state("busy")
        server.host._perform(want)
        server.host._perform(msgspec.structs.replace(want, launch=known.launch - 1, idle=False))
        await server.manager(kernel).interrupt_kernel()
        assert (await talk.reply(message))["status"] == "ok"
        await state("idle")
        assert server.manager(kernel).provisioner.pid == pid
    server.host._perform(want)

    async def gone() -> bool:
        if action == "shutdown":
            return (await server.call("GET", "api", "kernels", kernel)).status == 404
        return bool(server.manager(kernel).provisioner.pid not in (pid, None))

    await eventually(gone, f"{action}, now that it is idle")
