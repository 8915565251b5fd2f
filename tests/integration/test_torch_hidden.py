"""PyPI's PyTorch in hidden kernels, over a fake driver: a first look in the dark costs nothing.

What a fake driver cannot show: NVIDIA's CUDA runtime asks the driver for tables that only NVIDIA's
has, and never initialises on another. That CUDA then sees the device is asked of the driver itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from genv_jupyter.isolation.live import digits
from tests.fakedriver.driver import FakeDriver
from tests.fakedriver.fixtures import fake_driver
from tests.integration.kernels import ServedKernel, Server
from tests.torch_wheel import torch_environ

__all__ = ["fake_driver"]

pytestmark = pytest.mark.timeout(600)  # the first of them fetches the wheel

CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"
IMPORT = """
import os, warnings
warnings.filterwarnings("ignore", "Failed to initialize NumPy")
import torch
from genv_jupyter.isolation import live
def loaded():
    with open("/proc/self/maps") as lines:
        return any("libcuda.so" in line for line in lines)
"""
LOOK = "torch.cuda.is_available(), torch.cuda.device_count(), live.cuda_state(), loaded()"
SEES = """
from cuda.bindings import driver as cuda
assert int(cuda.cuInit(0)[0]) == 0
live.seen()
"""


@pytest.fixture
def server(
    broker_home: Path, tmp_path: Path, fake_driver, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Server]:
    driver: FakeDriver = fake_driver()
    for name, value in {**driver.environ, **torch_environ(driver.directory)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("GENV_JUPYTER_SIMULATE")
    with Server(tmp_path) as server:
        server.driver = driver
        yield server


def importing(server: Server, **variables: str) -> ServedKernel:
    kernel = server.kernel("llm", **variables)
    ran = kernel.run(IMPORT)
    assert ran.ok, ran
    assert "torch will run on the CPU" in ran.stderr
    return kernel


def test_first_look_while_hidden_leaves_every_attach_live(server: Server) -> None:
    kernel = importing(server)
    assert kernel.value(LOOK) == (False, 0, "not_initialized", False)
    attached = kernel.run("%gpu attach 0.5")
    assert attached.ok and "in force" in attached.text
    assert "restart" not in attached.text
    assert kernel.value(LOOK) == (True, 1, "not_initialized", False)
    assert kernel.run("%gpu release").ok
    assert kernel.value(LOOK) == (False, 0, "not_initialized", False)
    assert kernel.run(f"%gpu attach 1 --device {server.driver.uuids[1]}").ok
    assert kernel.value(LOOK) == (True, 1, "not_initialized", False)
    assert kernel.value(SEES) == [digits(server.driver.uuids[1])]


def test_users_own_setting_stays_and_what_it_costs_is_said(server: Server) -> None:
    kernel = importing(server, **{CHECK: "0"})
    assert kernel.value(f"os.environ[{CHECK!r}]") == "0"
    used = kernel.run("torch.ones(1, device='cuda') if torch.cuda.is_available() else 'nothing'")
    assert used.text == "'nothing'"
    attached = " ".join(kernel.run("%gpu attach 0.5").text.split())
    assert "torch was loaded while GPUs were hidden" in attached
    again = kernel.run("torch.ones(1, device='cuda')")
    assert "No CUDA GPUs are available" in again.error, "it remembers"
