"""Kernels that find the real wheels of frameworks, over a fake driver: two devices of 24 GiB."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fakedriver.fixtures import driver, fake_driver
from tests.frameworks.wheels import frameworks
from tests.integration.kernels import ServedKernel, Server
from tests.torch_wheel import torch_environ

__all__ = ["driver", "fake_driver"]

Start = Callable[..., ServedKernel]

HELPERS = """
import os, sys
from genv_jupyter.isolation import caps, live
def untouched():
    with open("/proc/self/maps") as lines:
        loaded = any("libcuda.so" in line for line in lines)
    return live.cuda_state() == "not_initialized" and not loaded
def child(code):
    import subprocess
    return subprocess.check_output([sys.executable, "-c", code], text=True).strip()
"""


@pytest.fixture
def start(tmp_path: Path, driver) -> Iterator[Start]:
    """Start kernels with JAX, TensorFlow, CuPy and RMM: ``start(VARIABLE="value")``."""
    path = str(frameworks())
    with Server(tmp_path) as server:

        def make(**variables: str) -> ServedKernel:
            kernel = server.kernel("llm", **{"PYTHONPATH": path, **variables})
            assert kernel.run(HELPERS).ok
            return kernel

        yield make


@pytest.fixture
def start_torch(tmp_path: Path, driver) -> Iterator[Start]:
    """Start kernels with PyTorch for CUDA."""
    environ = torch_environ(driver.directory)
    with Server(tmp_path) as server:

        def make(**variables: str) -> ServedKernel:
            kernel = server.kernel("llm", **{**environ, **variables})
            assert kernel.run(HELPERS).ok
            return kernel

        yield make
