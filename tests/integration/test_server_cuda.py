"""The server with kernels in which CUDA lives: NVIDIA's own bindings over a fake driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakedriver.driver import FakeDriver
from tests.fakedriver.fixtures import fake_driver
from tests.integration.servers import Server, eventually

__all__ = ["fake_driver"]

INITIALIZE = """
from cuda.bindings import driver as cuda
assert cuda.cuInit(0)[0] == 0
_, device = cuda.cuDeviceGet(0)
_, context = cuda.cuDevicePrimaryCtxRetain(device)
"""


@pytest.fixture
def driver(broker_home: Path, fake_driver, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """Two devices; comes before ``server``."""
    made: FakeDriver = fake_driver()
    for name, value in made.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("GENV_JUPYTER_SIMULATE")
    return made


async def test_too_late_is_refused_and_a_restart_makes_it_good(
    driver: FakeDriver, server: Server
) -> None:
    kernel = await server.start_kernel()
    first = (await server.gpu("PUT", f"environments/{kernel}", {"memory": "4G"})).json
    async with server.talk(kernel) as talk:
        assert (await talk.run(INITIALIZE))["status"] == "ok"
    other = next(uuid for uuid in driver.uuids if uuid != first["grants"][0]["device"])
    refused = await server.gpu("PUT", f"environments/{kernel}", {"devices": [other]})
    assert refused.status == 409
    assert refused.json["code"] == "cuda_initialized"
    assert (await server.environment(kernel))["grants"] == first["grants"]
    more = await server.gpu("PUT", f"environments/{kernel}", {"memory": "8G"})
    assert more.status == 200  # the same device: only the cap grows
    answer = await server.gpu("PUT", f"environments/{kernel}", {"devices": [other]}, restart="true")
    assert answer.status == 200, answer.body
    assert answer.json["applied"] == "at_restart"
    assert (await server.gpu("POST", f"environments/{kernel}/restart")).status == 202

    async def moved() -> bool:
        found = await server.environment(kernel)
        return found["applied"] == "live" and [g["device"] for g in found["grants"]] == [other]

    await eventually(moved, "the kernel has moved to the other device")


async def test_a_release_drains_where_cuda_lives(driver: FakeDriver, server: Server) -> None:
    kernel, waiting = await server.start_kernel(), await server.start_kernel()
    await server.gpu("PUT", f"environments/{kernel}", {"gpus": 2})
    async with server.talk(kernel) as talk:
        assert (await talk.run(INITIALIZE))["status"] == "ok"
    gone = await server.gpu("DELETE", f"environments/{kernel}")
    assert gone.status == 200
    # Only the device with the context is still in use.
    assert gone.json["state"] == "draining"
    assert "restart" in gone.json["reason"]
    assert {grant["state"] for grant in gone.json["grants"]} == {"draining"}
    refused = await server.gpu("PUT", f"environments/{waiting}", {"gpus": 2})
    assert refused.status == 409
    assert refused.json["code"] == "no_capacity"
    assert (await server.gpu("POST", f"environments/{kernel}/restart")).status == 202

    async def free() -> bool:
        answer = await server.gpu("PUT", f"environments/{waiting}", {"gpus": 2})
        return answer.status == 200

    await eventually(free, "the devices are free")
