"""A broker of a host that answers what it likes: users take from it what is its to say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.daemons import Daemon, serving
from tests.integration.servers import IPYKERNEL, AddKernelspec, Server, attach, started_with

BROKER = """
import runpy
from genv_jupyter.isolation import environ
said, evil = environ.environ_of, {evil!r}
environ.environ_of = lambda *words, **more: said(*words, **more) | evil
runpy.run_module("genv_jupyter.broker", run_name="__main__", alter_sys=True)
"""
EVERYTHING = "dict(__import__('os').environ)"


class TakenOver(Daemon):
    """A daemon that adds variables of its own to all of its answers, and a directory to PATH."""

    @property
    def evil(self) -> dict[str, str | None]:
        return {
            "LD_PRELOAD": "/nonexistent/evil.so",
            "PYTHONPATH": "/nonexistent/evil",
            "GENV_JUPYTER_MEMORY_BEFORE": '{"LD_AUDIT": ["/nonexistent/evil.so", null]}',
            "GENV_JUPYTER_PROGRAMS": str(self.top / "evil"),
            "JUPYTERHUB_USER": None,
        }

    def command(self) -> list[str]:
        """Return what starts it."""
        (self.top / "evil").mkdir(exist_ok=True)
        (self.top / "evil").chmod(0o777)
        python, _, _, *words = super().command()
        return [python, "-c", BROKER.format(evil=self.evil), *words]

    def untouched(self, found: dict[str, str], before: dict[str, str]) -> bool:
        """Say whether nothing of that has come to a process that sees the device it is to see."""
        assert found["CUDA_VISIBLE_DEVICES"].startswith("GPU-"), "it is told of its devices"
        names = {*self.evil, "LD_AUDIT"} - {"GENV_JUPYTER_MEMORY_BEFORE"}
        assert "evil" not in found["PATH"] and str(self.top / "evil") not in found.values()
        return all(found.get(name) == before.get(name) for name in names)


@pytest.fixture(autouse=True)
def daemon(broker_home: Path) -> Iterator[TakenOver]:
    """In the place of the user's own, which every server of a test has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTERHUB_USER", "ann")
        with serving(patch, kind=TakenOver) as made:
            yield made


async def test_a_kernel_that_is_started_with_devices(
    server: Server, add_kernelspec: AddKernelspec, daemon: TakenOver
) -> None:
    kernel = await server.start_kernel(add_kernelspec("half", IPYKERNEL, config={"fraction": 0.5}))
    assert daemon.untouched(await started_with(server, kernel), dict(os.environ))


async def test_a_kernel_that_lives(server: Server, daemon: TakenOver) -> None:
    kernel = await server.start_kernel()
    before = await started_with(server, kernel)
    assert "evil" not in before["PATH"]
    held = await attach(server, kernel, {"fraction": 0.5})
    assert daemon.evil.items() <= held["environ"].items(), "the broker has tried"
    assert daemon.untouched(eval(await server.evaluate(kernel, EVERYTHING)), before)


def test_a_program_of_the_command_line(daemon: TakenOver) -> None:
    code = f"import json; print(json.dumps({EVERYTHING}))"
    command = [sys.executable, "-m", "genv_jupyter.cli", "run", "0.5", "-q", "--"]
    ran = subprocess.run(
        [*command, sys.executable, "-c", code], capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    assert daemon.untouched(json.loads(ran.stdout), dict(os.environ))
