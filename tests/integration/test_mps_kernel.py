"""A notebook's share under MPS, from the request to the variables in its kernel.

NVIDIA's real control daemon, and a fake driver: this proves what we set up and tell, not what
NVIDIA's driver does with it.
"""

from __future__ import annotations

import ast
import asyncio
import os
import signal
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from genv_jupyter.api import rendezvous
from genv_jupyter.isolation import processes
from genv_jupyter.isolation.caps import CONTEXT
from genv_jupyter.isolation.mps_control import ControlDaemon
from genv_jupyter.model import Environment
from genv_jupyter.server.reports import Kernel, Reports
from tests.conftest import end_broker
from tests.debian import unpacked
from tests.fakedriver.driver import FakeDriver
from tests.fakedriver.fixtures import MakeDriver, fake_driver
from tests.integration.kernels import Server as Notebooks
from tests.integration.servers import Server, eventually

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
        devices = (await server.gpu("GET", "devices")).json
        device = next(it for it in devices if it["uuid"] == grant["device"])
        assert grant["limits"]["memory"]["strength"] == "driver"
        pipe = environment["environ"]["CUDA_MPS_PIPE_DIRECTORY"]
        assert ControlDaemon(Path(pipe), grant["device"]).pid() is not None
        wanted = [pipe, f"0={grant['memory'] // 2**20}M", "25"]
        assert await talk.evaluate(READ) == repr(wanted)
        assert (await talk.run("%gpu attach --processes 2"))["status"] == "ok"
        assert await talk.evaluate(READ) == repr([pipe, f"0={grant['memory'] // 2**21}M", "12"])
        # What frameworks are told: of all the device as a process sees it, each process its part.
        grows, part = ast.literal_eval(await talk.evaluate(FRAMEWORKS))
        assert grows == "true"
        wanted_part = (grant["memory"] // 2 - CONTEXT) / device["memory_total"]
        assert wanted_part - 0.0001 < float(part) <= wanted_part
        assert (await talk.run("%gpu attach --no-mps"))["status"] == "ok"
        assert await talk.evaluate(READ) == repr(["/nonexistent/genv-jupyter", None, None])
        await talk.run("%gpu release")
        assert await talk.evaluate(READ) == repr([None, None, None])


FRAMEWORKS = """[__import__("os").environ.get("TF_FORCE_GPU_ALLOW_GROWTH"),
    __import__("genv_jupyter.isolation.caps", fromlist=["fraction"]).fraction(
        __import__("os").environ)]"""

USE = """
from cuda.bindings import driver as cuda
cuda.cuInit(0)
device = cuda.cuDeviceGet(0)[1]
context = cuda.cuCtxCreate(None, 0, device)[1]
free, total = cuda.cuMemGetInfo()[1:]
unit = cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
units = cuda.cuDeviceGetAttribute(unit, device)[1]
def allocate(gib):
    error, pointer = cuda.cuMemAlloc(gib * 2**30)
    if error != cuda.CUresult.CUDA_SUCCESS:
        raise RuntimeError(error)
"""


async def test_a_cap_is_met_in_a_cell_and_explained(driver: FakeDriver, server: Server) -> None:
    """The fake driver keeps the cap: this shows that our variables reach it, and what is told."""
    kernel = await server.start_kernel()
    async with server.talk(kernel) as talk:
        assert (await talk.run("%gpu attach 0.25"))["status"] == "ok"
        (grant,) = (await server.environment(kernel))["grants"]
        assert (await talk.run(USE))["status"] == "ok"
        free, total, units = ast.literal_eval(await talk.evaluate("[free, total, units]"))
        assert grant["memory"] - 301 * 2**20 < free <= grant["memory"] - 300 * 2**20
        assert total > 3 * grant["memory"], "of all the device, as MPS leaves it"
        assert units == 32, "a quarter of 128"
        assert (await talk.run("allocate(5)"))["status"] == "ok"
        failed = await talk.run("allocate(2)")
        assert failed["status"] == "error" and "OUT_OF_MEMORY" in failed["evalue"]

        async def told() -> dict[str, Any] | None:
            environment = await server.environment(kernel)
            return environment if environment["reason"] else None

        # The daemon has no such client, and that is told too: here nobody but the fake keeps to it.
        environment = await eventually(told, "it is no client of the real daemon")
        assert "works without MPS" in environment["reason"]
        assert environment["grants"][0]["limits"]["memory"]["verified"] is False


def test_the_block_under_the_traceback_names_the_cap(driver: FakeDriver, tmp_path: Path) -> None:
    with Notebooks(tmp_path) as notebooks:
        kernel = notebooks.kernel("llm")
        assert kernel.run("%gpu attach 0.25").ok
        assert kernel.run(USE + "allocate(5)").ok
        ran = kernel.run("allocate(2)")
        said = " ".join(ran.text.split())
        assert "Out of GPU memory" in said and "of a cap of 5.9 GiB" in said, ran
        assert "smaller batch" in said
        said = " ".join(kernel.run("%gpu doctor").text.split())
        assert "memory driver" in said and "Under MPS the driver refuses" in said


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
    for one in (kernel, without):
        await server.manager(one).restart_kernel(now=True)
    assert told == [kernel], "its old process has ended, and the new one has joined nothing yet"
    told.clear()
    await server.known(kernel, applied="live")
    pids = {one: server.manager(one).provisioner.pid for one in (kernel, without)}
    for one in (kernel, without):
        await server.manager(one).shutdown_kernel(now=True)
    assert told == [kernel], "nobody answers, and it is ended all the same"
    assert not any(processes.alive(pid, None) for pid in pids.values())


MPS_FAILS = """
from cuda.bindings import driver as cuda
raise RuntimeError(cuda.CUresult.{name})
"""


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("CUDA_ERROR_MPS_CONNECTION_FAILED", 805),
        ("CUDA_ERROR_MPS_SERVER_NOT_READY", 807),
        ("CUDA_ERROR_MPS_CLIENT_TERMINATED", 810),
    ],
)
def test_an_error_of_mps_is_explained_once_under_its_traceback(
    broker_home: Path, tmp_path: Path, name: str, code: int
) -> None:
    with Notebooks(tmp_path) as notebooks:
        kernel = notebooks.kernel("llm")
        assert kernel.run("%gpu attach 0.25").ok
        ran = kernel.run(MPS_FAILS.format(name=name))
        said = " ".join(ran.text.split())
        assert not ran.ok and said.count(f"CUDA's error {code}") == 1, ran
        assert "Restart the kernel" in said or "restart every kernel" in said


@pytest.fixture
def hanging(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A program in PATH that never comes to an end; comes before ``server``."""
    program = tmp_path / "programs" / "nvidia-cuda-mps-control"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


async def test_a_daemon_that_hangs_keeps_nobody_waiting_but_who_needs_it(
    hanging: None, server: Server
) -> None:
    needs, other = await server.start_kernel(), await server.start_kernel()
    waiting = asyncio.ensure_future(server.gpu("PUT", f"environments/{needs}", {"fraction": 0.25}))

    async def reserved() -> bool | None:
        assert not waiting.done(), waiting.result()
        return True if (await server.environment(needs))["grants"] else None

    await eventually(reserved, "its device is reserved, and its daemon is being started")
    answer = await server.gpu("PUT", f"environments/{other}", {"memory": "1GiB", "mps": "off"})
    assert answer.status == 200 and answer.json["grants"]
    assert (await server.gpu("GET", "devices")).status == 200
    assert not waiting.done(), "all that was answered while it hangs"
    answer = await waiting
    assert answer.status == 200
    (grant,) = answer.json["grants"]
    assert "did not answer within 5 s" in grant["limits"]["memory"]["reason"]
