"""The block under an out-of-memory error, in real kernels over a driver that really is full."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from genv_jupyter.api import rendezvous
from genv_jupyter.isolation import processes
from tests.integration.driven import driven_server, fake_driver  # noqa: F401 (fixtures)
from tests.integration.kernels import Kernel, Ran, Server

__all__ = ["fake_driver"]

GIB = 2**30
CUDA = """
from cuda.bindings import driver as cuda
cuda.cuInit(0)
context = cuda.cuCtxCreate(None, 0, cuda.cuDeviceGet(0)[1])[1]
def allocate(gib):
    error, pointer = cuda.cuMemAlloc(gib * 2**30)
    if error != cuda.CUresult.CUDA_SUCCESS:
        raise RuntimeError(error)
"""
TORCH = """
import sys, types
torch = types.ModuleType("torch")
torch.OutOfMemoryError = type("OutOfMemoryError", (RuntimeError,), {"__module__": "torch"})
class cuda:
    is_initialized = staticmethod(lambda: True)
    device_count = staticmethod(lambda: 1)
    memory_allocated = staticmethod(lambda device: 9 * 2**30)
    memory_reserved = staticmethod(lambda device: 11 * 2**30)
torch.cuda = cuda
sys.modules["torch"] = torch
"""
OOM = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 24.00 GiB"


def block(ran: Ran) -> str:
    """Return the text of the one block under a traceback, its lines joined."""
    assert ran.status == "error"
    assert ran.text.count("Out of GPU memory") == 1, ran
    assert "<div" in ran.html
    assert max(map(len, ran.text.splitlines())) <= 80
    return " ".join(ran.text.split())


def test_cap_that_is_reached(server: Server) -> None:
    kernel, other = server.kernel("llm"), server.kernel("viz")
    assert other.run("%gpu attach --memory 4G --device 0").ok
    assert kernel.run("%gpu attach 0.5 --device 0").ok
    assert kernel.run(CUDA + "allocate(11)").ok
    said = block(kernel.run("allocate(40)"))
    (grant,) = kernel.environment().grants
    assert f"of a cap of {grant.memory / GIB:.1f} GiB" in said
    assert "here 11.3 GiB" in said, "the very last reading, with the context"
    assert "viz.ipynb" in said and "3.7 GiB, since" in said
    assert "smaller batch" in said and "%gpu attach --memory" in said
    assert "%gpu empty-cache" in said
    assert "--restart" in said


def test_numbers_of_torch_where_it_is_in_use(server: Server) -> None:
    kernel = server.kernel("llm")
    assert kernel.run("%gpu attach 0.5 --device 0").ok
    said = block(kernel.run(TORCH + f"raise torch.OutOfMemoryError({OOM!r})"))
    assert "2 GiB more were asked for (PyTorch)" in said
    assert "here 11 GiB" in said, "reserved: NVML has not seen any of it"
    assert "9 GiB in tensors, 2 GiB kept for re-use" in said
    assert "2 GiB in PyTorch's cache" in said


def test_others_fill_the_device(server: Server) -> None:
    kernel, other = server.kernel("llm"), server.kernel("greedy")
    assert kernel.run("%gpu attach 0.5 --device 0").ok
    assert other.run("%gpu attach --memory 4G --device 0").ok
    assert other.run(CUDA + "allocate(18)").ok, "more than it has: nothing stops it here"
    assert kernel.run(CUDA + "allocate(2)").ok
    said = block(kernel.run("allocate(6)"))
    assert "of the cap were left here, but not on the device" in said
    assert "greedy.ipynb (" in said and "uses 18.3 GiB, and has a cap of 3.7 GiB" in said
    server.driver.set_external(server.driver.uuids[0], 2 * GIB)
    said = block(kernel.run("allocate(6)"))
    assert "2 GiB that no process here explains" in said
    assert "only the host's administrator can tell" in said


def test_child_that_was_left_over(server: Server) -> None:
    kernel = server.kernel("llm")
    assert kernel.run("%gpu attach 1 --device 0").ok
    child = f"import time\n{CUDA}\nallocate(16)\nprint('ready', flush=True)\ntime.sleep(600)"
    kernel.run("import subprocess, sys")
    started = kernel.run(
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}], stdout=subprocess.PIPE, "
        "start_new_session=True); child.stdout.readline()"
    )
    assert started.ok, started
    pid = kernel.value("child.pid")
    assert kernel.run(CUDA + "allocate(2)").ok
    said = block(kernel.run("allocate(10)"))
    assert f"(pid {pid}), started from here, holds 16.3 GiB" in said
    assert f"`!kill {pid}`" in said
    assert "whole device attached" in said
    assert kernel.run("child.kill(); child.wait()").ok


def test_without_a_grant(server: Server, tmp_path: Path) -> None:
    with Kernel(tmp_path / "alone") as kernel:
        assert kernel.run(CUDA + "allocate(2)").ok
        said = block(kernel.run("allocate(40)"))
        assert "Nothing is attached here" in said
        assert "restart the kernel, and first `%gpu attach --memory" in said


def test_grant_that_is_draining(server: Server) -> None:
    kernel = server.kernel("llm")
    assert kernel.run("%gpu attach 0.5 --device 0").ok
    assert kernel.run(CUDA + "allocate(2)").ok
    assert "still in use" in kernel.run("%gpu release").text
    said = block(kernel.run("allocate(40)"))
    assert "has been given back, and is only still in use" in said


OTHER_ERRORS = (
    "raise MemoryError()",
    "raise ValueError('CUDA out of memory')",
    "assert False, 'CUDA out of memory. Tried to allocate 2.00 GiB'",
    "raise RuntimeError('CUDA error: device-side assert triggered')",
    # Of the host's memory where CUDA is not in use, and it is not.
    "raise type('XlaRuntimeError', (RuntimeError,), {'__module__': 'jaxlib.xla_extension'})("
    "'RESOURCE_EXHAUSTED: Out of memory allocating 4000000000000 bytes.')",
    "1 / 0",
    "get_ipython().run_line_magic('gpu', 'attach 99')",
    "raise SystemExit('CUDA out of memory')",
    "a syntax error",
)


def test_other_errors_get_nothing_and_cost_nothing(server: Server) -> None:
    kernel = server.kernel("llm")
    for code in OTHER_ERRORS:
        ran = kernel.run(code)
        assert ran.status == "error"
        assert ran.text == "" and "Out of GPU memory" not in ran.stderr, code
    names = ("genv_jupyter.kernel.oom", "torch", "jax", "tensorflow", "cupy")
    assert kernel.value(f"[name for name in {names} if name in __import__('sys').modules]") == []
    loaded = "any('libcuda.so' in line for line in open('/proc/self/maps'))"
    assert kernel.value(loaded) is False
    said = block(kernel.run(f"raise RuntimeError({OOM!r})"))
    assert "Nothing is attached here" in said
    assert kernel.value(loaded) is False, "the block has not loaded it either"


def broker_pid() -> int:
    with rendezvous.connect() as sock:
        return processes.peer(sock)[0]


def test_broker_that_hangs_or_is_gone_is_left_behind(server: Server) -> None:
    kernel = server.kernel("llm")
    assert kernel.run("%gpu attach 0.5").ok
    pid = broker_pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        said = block(kernel.run(TORCH + f"raise torch.OutOfMemoryError({OOM!r})"))
    finally:
        os.kill(pid, signal.SIGCONT)
    assert "did not answer within 1 s" in said
    assert "9 GiB in tensors" in said and "%gpu empty-cache" in said
    os.kill(pid, signal.SIGKILL)
    said = block(kernel.run(f"raise RuntimeError({OOM!r})"))
    assert "who else is on the device is not known" in said


def test_chained_and_async_errors_and_old_ones(server: Server) -> None:
    kernel = server.kernel("llm")
    block(kernel.run(f"try:\n    raise RuntimeError({OOM!r})\nexcept RuntimeError:\n    unknown"))
    block(kernel.run(f"import asyncio\nawait asyncio.sleep(0)\nraise RuntimeError({OOM!r})"))
    block(kernel.run(f"raise ExceptionGroup('workers', [RuntimeError({OOM!r})])"))
    assert kernel.run("1 + 1").text == "2", "said once, not after the next cell"


def test_trouble_of_our_own_is_one_line(server: Server) -> None:
    kernel = server.kernel("llm")
    kernel.run("import genv_jupyter.kernel.oom as oom; oom.gather = None")
    ran = kernel.run(f"raise RuntimeError({OOM!r})")
    assert ran.error.startswith("CUDA out of memory")
    assert ran.stderr.count("\n") == 1 and "no more can be said" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_in_an_ipython_without_the_stub(server: Server, tmp_path: Path) -> None:
    with Kernel(tmp_path / "bare") as kernel:
        kernel.run(
            "import genv_jupyter_stub as it; it.stub.shell.events.unregister("
            "'post_run_cell', it.stub.after_cell); it.stub = None"
        )
        assert kernel.run(f"raise RuntimeError({OOM!r})").text == ""
        assert kernel.run("%load_ext genv_jupyter").ok
        block(kernel.run(f"raise RuntimeError({OOM!r})"))
        assert kernel.run("%unload_ext genv_jupyter").ok
        assert kernel.run(f"raise RuntimeError({OOM!r})").text == ""
