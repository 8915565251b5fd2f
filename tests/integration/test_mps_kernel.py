"""A notebook's share under MPS, from the request to the variables in its kernel.

NVIDIA's real control daemon, and a fake driver: this proves what we set up and tell, not what
NVIDIA's driver does with it.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from genv_jupyter.api import rendezvous
from genv_jupyter.isolation import processes
from genv_jupyter.isolation.mps_control import ControlDaemon
from genv_jupyter.model import Environment
from genv_jupyter.server.reports import Kernel, Reports
from tests.conftest import end_broker
from tests.debian import unpacked
from tests.fakedriver.driver import FakeDriver
from tests.fakedriver.fixtures import MakeDriver, fake_driver
from tests.integration.servers import Server

__all__ = ["fake_driver"]

READ = """[__import__("os").environ.get("CUDA_MPS_" + name) for name in (
    "PIPE_DIRECTORY", "PINNED_DEVICE_MEM_LIMIT", "ACTIVE_THREAD_PERCENTAGE")]"""


@pytest.fixture
def driver(
    broker_home: Path, fake_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FakeDriver]:
    """Two devices, and NVIDIA's program in PATH; comes before ``server``."""
    made: FakeDriver = fake_driver()
    for name, value in made.environ.items():
        monkeypatch.setenv(name, value)
    programs = unpacked("nvidia-cuda-mps") / "usr/bin"
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.delenv("GENV_JUPYTER_SIMULATE")
    with tempfile.TemporaryDirectory(prefix="gj") as home:  # sockets have short paths
        monkeypatch.setenv("GENV_JUPYTER_HOME", home)
        yield made
        end_broker(rendezvous.address())
        for path in Path(home).glob("*/mps/*"):
            pid = ControlDaemon(path, "").pid()
            if pid is not None:
                os.kill(pid, signal.SIGKILL)


async def test_a_share_is_set_up_in_its_kernel(driver: FakeDriver, server: Server) -> None:
    kernel = await server.start_kernel()
    async with server.talk(kernel) as talk:
        assert (await talk.run("%gpu attach 0.25"))["status"] == "ok"
        environment = await server.environment(kernel)
        (grant,) = environment["grants"]
        assert grant["limits"]["memory"]["strength"] == "driver"
        pipe = environment["environ"]["CUDA_MPS_PIPE_DIRECTORY"]
        assert ControlDaemon(Path(pipe), grant["device"]).pid() is not None
        wanted = [pipe, f"0={grant['memory'] // 2**20}M", "25"]
        assert await talk.evaluate(READ) == repr(wanted)
        assert (await talk.run("%gpu attach --processes 2"))["status"] == "ok"
        assert await talk.evaluate(READ) == repr([pipe, f"0={grant['memory'] // 2**21}M", "12"])
        assert (await talk.run("%gpu attach --no-mps"))["status"] == "ok"
        assert await talk.evaluate(READ) == repr(["/nonexistent/genv-jupyter", None, None])
        await talk.run("%gpu release")
        assert await talk.evaluate(READ) == repr([None, None, None])


async def test_what_ends_a_process_takes_it_off_mps_first(
    driver: FakeDriver, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, without = await server.start_kernel(), await server.start_kernel()
    told: list[str] = []

    def leaving(_: Reports, kernel: Kernel) -> Future[Environment]:
        told.append(kernel.id)
        return Future()

    monkeypatch.setattr(Reports, "leaving", leaving)
    monkeypatch.setattr("genv_jupyter.server.provisioner.LEAVE_SECONDS", 0.1)
    await server.gpu("PUT", f"environments/{kernel}", {"fraction": 0.25})
    await server.known(kernel, applied="live")
    for one in (kernel, without):
        await server.manager(one).interrupt_kernel()
    assert told == [], "CUDA would work no more in it"
    pids = {one: server.manager(one).provisioner.pid for one in (kernel, without)}
    for one in (kernel, without):
        await server.manager(one).shutdown_kernel(now=True)
    assert told == [kernel], "nobody answers, and it is ended all the same"
    assert not any(processes.alive(pid, None) for pid in pids.values())
