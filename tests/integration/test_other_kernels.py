"""Kernels that cannot import us: another implementation of Python, and another language."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.servers import (
    AddKernelspec,
    Server,
    another_process,
    attach,
    environ_of,
    eventually,
)

HALF = {"fraction": 0.5}
BASH = (sys.executable, "-m", "bash_kernel", "-f", "{connection_file}")


@pytest.fixture(scope="session")
def xeus_python(pytestconfig: pytest.Config) -> str:
    """A Python environment with xeus-python, a kernel in C++. Made once, in pytest's cache."""
    cache = pytestconfig.cache
    assert cache is not None
    directory = cache.mkdir("xeus-environment")
    python = directory / "bin" / "python"
    done = directory / "done"
    if not done.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", directory], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "xeus-python"], check=True)
        done.touch()
    return str(python)


@pytest.fixture
def xeus(add_kernelspec: AddKernelspec, xeus_python: str) -> str:
    argv = [xeus_python, "-m", "xpython_launcher", "-f", "{connection_file}"]
    return add_kernelspec("xeus", argv, env={"PYTHONPATH": ""})


@pytest.fixture
def bash(add_kernelspec: AddKernelspec) -> str:
    return add_kernelspec("bash", BASH, language="bash")


async def test_a_python_that_is_no_ipykernel_is_told_live(
    xeus: str, server: Server, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    look = f"import os; open({str(seen)!r}, 'w').write(os.environ.get('CUDA_VISIBLE_DEVICES', '-'))"
    kernel = await server.start_kernel(xeus)
    environment = await attach(server, kernel, HALF)
    [grant] = environment["grants"]
    await server.known(kernel, applied="live")
    async with server.talk(kernel) as talk:
        assert (await talk.run(look))["status"] == "ok"
        assert seen.read_text() == grant["device"]
        await server.gpu("DELETE", f"environments/{kernel}")
        await server.known(kernel, state="released")
        assert (await talk.run(look))["status"] == "ok"
        assert seen.read_text() == ""


async def test_another_language_is_given_it_by_its_kernelspec(
    add_kernelspec: AddKernelspec, server: Server
) -> None:
    name = add_kernelspec("bash-gpu", BASH, language="bash", config={"memory": "4G"})
    kernel = await server.start_kernel(name)
    environment = await server.known(kernel, applied="live")
    [grant] = environment["grants"]
    assert grant["memory"] == 4 * 10**9
    assert environ_of(environment["pid"])["CUDA_VISIBLE_DEVICES"] == grant["device"]


async def test_another_language_lets_go_at_its_restart_or_when_it_is_seen_to(
    bash: str, server: Server
) -> None:
    kernel, other = await server.start_kernel(bash), await server.start_kernel()
    await attach(server, kernel, {"gpus": 2})
    await server.gpu("POST", f"environments/{kernel}/restart")
    running = await server.known(kernel, applied="live", kernel_state="idle")
    gone = await server.gpu("DELETE", f"environments/{kernel}")
    assert gone.json["state"] == "draining", "a process that cannot be asked may still use it"
    assert "watched" in gone.json["reason"]
    assert (await server.gpu("PUT", f"environments/{other}", {"gpus": 2})).status == 409

    async def free() -> bool:
        return (await server.gpu("PUT", f"environments/{other}", {"gpus": 2})).status == 200

    await eventually(free, "nothing has used it for some seconds")
    await server.gpu("POST", f"environments/{kernel}/restart")
    after = await another_process(server, kernel, running["pid"])
    assert "CUDA_VISIBLE_DEVICES" not in environ_of(after["pid"]), "it sees what it saw before"
