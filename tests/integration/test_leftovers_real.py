"""A real kernel leaves a child with CUDA behind: seen, said and ended."""

from __future__ import annotations

import json
import os
import signal
import time

from genv_jupyter.isolation import processes
from tests.integration.driven import driven_server, fake_driver  # noqa: F401 (fixtures)
from tests.integration.kernels import Server
from tests.integration.terminals import jupyter_gpu

__all__ = ["fake_driver"]

LEAVE = """
import subprocess, sys
code = '''
from cuda.bindings import driver as cuda
cuda.cuInit(0)
context = cuda.cuCtxCreate(None, 0, cuda.cuDeviceGet(0)[1])
print(cuda.cuMemAlloc(2**30)[0], flush=True)
import time; time.sleep(600)
'''
worker = subprocess.Popen(
    [sys.executable, "-c", code], stdout=-1, stderr=subprocess.DEVNULL, start_new_session=True
)
worker.stdout.readline() and worker.pid
"""


def test_child_that_outlives_a_restart_is_shown_and_ended(server: Server) -> None:
    kernel = server.kernel("train")
    assert kernel.run("%gpu attach 0.5").ok
    worker = kernel.value(LEAVE)
    start = processes.start_of(worker)
    assert start is not None
    try:
        assert json.loads(jupyter_gpu("leftovers", "--json").stdout) == [], "its kernel lives"
        kernel.restart()
        while not (found := json.loads(jupyter_gpu("leftovers", "--json").stdout)):
            time.sleep(0.1)  # until the broker has looked; the test's timeout is the limit
        assert [(it["pid"], it["start"], it["after"]) for it in found] == [
            (worker, start, "restarted")
        ]
        assert found[0]["uses"][0]["memory"] > 2**30, "with its context"
        told = " ".join(kernel.run("%gpu").text.split())
        assert "A process of train.ipynb outlived its kernel and holds 1.3 GiB on GPU 0." in told
        page = jupyter_gpu("leftovers").stdout
        assert str(worker) in page and "(restarted)" in page
        for wrong, status in (("1", 1), ("all-of-them", 2)):
            refused = jupyter_gpu("leftovers", "--end", wrong)
            assert refused.returncode == status and "rror" in refused.stderr
        assert processes.alive(worker, start)
        ended = jupyter_gpu("leftovers", "--end", str(worker))
        assert f"Ending {worker}." in ended.stdout
        while processes.alive(worker, start):
            time.sleep(0.1)
        while json.loads(jupyter_gpu("leftovers", "--json").stdout):
            time.sleep(0.1)
        assert "outlived" not in kernel.run("%gpu").text
    finally:
        processes.send(worker, start, signal.SIGKILL)
    assert os.path.exists(f"/proc/{kernel.pid}"), "and nothing else was ended"  # noqa: PTH110
