"""What is believed about CUDA's state, asked of a real GPU; skipped where there is none."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest

from genv_jupyter.isolation.live import digits

HIDDEN = {"CUDA_VISIBLE_DEVICES": "", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}


@pytest.fixture
def uuid() -> str:
    """The UUID of the first device."""
    if not Path("/proc/driver/nvidia/version").exists():
        pytest.skip("NOT TESTED on a GPU: there is no NVIDIA driver here")
    pynvml.nvmlInit()
    try:
        return str(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(0)))
    finally:
        pynvml.nvmlShutdown()


def ask(code: str, uuid: str, **variables: str) -> Any:
    """Run code in a process of its own and return what it leaves in ``answer``."""
    start = f"import json, os; from genv_jupyter.isolation import live; uuid = {uuid!r}\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{start}{code}\nprint(json.dumps(answer))"],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_cuda_says_what_it_sees_and_takes_nothing(uuid: str) -> None:
    code = """
import ctypes, pynvml
before = live.cuda_state()
assert ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
os.environ["CUDA_VISIBLE_DEVICES"] = "7"
seen = live.seen()
pynvml.nvmlInit()
device = pynvml.nvmlDeviceGetHandleByUUID(uuid)
holders = [p.pid for p in pynvml.nvmlDeviceGetComputeRunningProcesses(device)]
answer = before, live.cuda_state(), seen, os.getpid() in holders
"""
    before, after, seen, holds = ask(code, uuid, CUDA_VISIBLE_DEVICES=uuid)
    assert (before, after) == ("not_initialized", "initialized")
    assert seen == [digits(uuid)]
    assert holds is False


def test_driver_that_found_nothing_is_asked_again(
    uuid: str, record_property: Callable[[str, object], None]
) -> None:
    """Either answer is good: what matters is that the user is told before it is known."""
    code = """
import ctypes
driver = ctypes.CDLL("libcuda.so.1")
first = driver.cuInit(0)
stubborn = live.apply_environ({"CUDA_VISIBLE_DEVICES": uuid})["stubborn"]
answer = first, stubborn, driver.cuInit(0), live.cuda_state(), live.seen()
"""
    first, stubborn, second, state, seen = ask(code, uuid, **HIDDEN)
    record_property("second cuInit", second)
    assert first == 100
    assert stubborn == ["CUDA"]
    assert state == ("not_initialized" if second else "initialized")
    assert seen == (None if second else [digits(uuid)])


@pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="NOT TESTED with PyTorch: not installed"
)
def test_pytorch_computes_on_what_was_attached_after_a_look_in_the_dark(uuid: str) -> None:
    code = """
import torch
looked = torch.cuda.is_available(), live.cuda_state()
stubborn = live.apply_environ({"CUDA_VISIBLE_DEVICES": uuid})["stubborn"]
answer = *looked, stubborn, torch.ones(2, device="cuda").sum().item(), live.seen()
"""
    assert ask(code, uuid, **HIDDEN) == [False, "not_initialized", [], 2.0, [digits(uuid)]]
