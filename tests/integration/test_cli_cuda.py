"""`jupyter gpu run` with CUDA in the program, and in what the program leaves behind."""

from __future__ import annotations

import os
import signal
import sys
import time

from genv_jupyter.api.client import Client
from genv_jupyter.model import Environment
from tests.fakedriver.driver import FakeDriver
from tests.fakedriver.fixtures import driver, fake_driver
from tests.integration.terminals import jupyter_gpu

__all__ = ["driver", "fake_driver"]

LEAVES_A_WORKER = """
import subprocess, sys
code = '''
from cuda.bindings import driver as cuda
cuda.cuInit(0)
context = cuda.cuCtxCreate(None, 0, cuda.cuDeviceGet(0)[1])
print(cuda.cuDeviceGetCount()[1], flush=True)
import time; time.sleep(600)
'''
worker = subprocess.Popen([sys.executable, "-c", code], stdout=-1, stderr=subprocess.DEVNULL)
print(worker.pid, worker.stdout.readline().decode(), flush=True)
"""


def states(name: str) -> set[str]:
    found: list[Environment] = Client().environments()
    return {it.state for it in found if it.name == name}


def test_what_a_program_leaves_behind_keeps_the_device(driver: FakeDriver) -> None:
    program = ["--", sys.executable, "-c", LEAVES_A_WORKER]
    ran = jupyter_gpu("run", "1", "--name", "parent", *program)
    worker, seen = map(int, ran.stdout.split())
    try:
        assert seen == 1, "of two GPUs it sees its own"
        while states("parent") != {"draining"}:
            time.sleep(0.1)  # until the broker has seen the end; the test's timeout is the limit
        refused = jupyter_gpu("run", "1", "--device", "0", "--", "true")
        assert refused.returncode == 125
        assert "parent of" in refused.stderr and "is draining and still holds" in refused.stderr
        assert jupyter_gpu("run", "1", "-q", "--", "true").returncode == 0, "the other is free"
        page = " ".join(jupyter_gpu("status", "-k", "parent").stdout.split())
        assert "processes that it started still use the device: end them to free it." in page
    finally:
        os.kill(worker, signal.SIGKILL)
    while states("parent"):
        time.sleep(0.1)
    assert jupyter_gpu("run", "1", "-q", "--device", "0", "--", "true").returncode == 0
