"""`%gpu usage` and `%gpu empty-cache` in real kernels: what the driver sees, and gets back."""

from __future__ import annotations

import re

import pytest

from tests.integration.driven import driven_server, fake_driver  # noqa: F401 (fixtures)
from tests.integration.kernels import Kernel, Server

__all__ = ["fake_driver"]

CUDA = """
from cuda.bindings import driver as cuda
assert int(cuda.cuInit(0)[0]) == 0
context = cuda.cuCtxCreate(None, 0, cuda.cuDeviceGet(0)[1])[1]
class Buffer:
    def __init__(self, gib):
        error, self.pointer = cuda.cuMemAlloc(gib * 2**30)
        assert int(error) == 0
    def __del__(self):
        cuda.cuMemFree(self.pointer)
"""
# What frameworks are asked, over real allocations; torch itself is not installed for the tests.
TORCH = """
import sys, types
class Cuda:
    cached, initialized, asked = [], True, 0
    def is_initialized(self): return self.initialized
    def device_count(self): return 1
    def memory_reserved(self, device): return len(self.cached) * 2 * 2**30
    def memory_allocated(self, device): return 0
    def empty_cache(self): self.asked += 1; self.cached.clear()
torch = sys.modules["torch"] = types.ModuleType("torch")
torch.cuda = Cuda()
"""
JAX = """
jax = sys.modules["jax"] = types.ModuleType("jax")
jax.asked = 0
def clear_caches(): jax.asked += 1
jax.clear_caches = clear_caches
"""
CUPY = """
class Pool:
    cached = []
    def total_bytes(self): return len(self.cached) * 2**30
    def free_all_blocks(self): self.cached.clear()
pool, pinned = Pool(), Pool()
cupy = sys.modules["cupy"] = types.ModuleType("cupy")
cupy.get_default_memory_pool = lambda: pool
cupy.get_default_pinned_memory_pool = lambda: pinned
"""


@pytest.fixture
def kernel(server: Server) -> Kernel:
    kernel = server.kernel("llm")
    assert kernel.run("%gpu attach 0.5").ok
    return kernel


def words(text: str) -> str:
    return " ".join(text.split())


def test_usage_is_what_the_driver_sees_and_keeps_the_peak(kernel: Kernel) -> None:
    assert "nothing of 11.8 GiB, peak nothing" in kernel.run("%gpu usage").text
    ran = kernel.run(CUDA + "buffer = Buffer(3)")
    assert ran.ok, ran
    kernel.run("%gpu empty-cache")  # comes back after a reading that saw it
    ran = kernel.run("del buffer\n%gpu empty-cache")
    assert "300 MiB in use here, 3.3 GiB before" not in ran.text, "it was gone before that began"
    usage = kernel.run("%gpu usage")
    assert "300 MiB of 11.8 GiB, peak 3.3 GiB" in usage.text
    assert "Advice comes after 5 min of use" in usage.text
    assert "300 MiB of 11.8 GiB, peak 3.3 GiB" in usage.html
    assert "SIMULATED" not in usage.text


def test_traceback_and_outputs_are_let_go_and_come_back(kernel: Kernel) -> None:
    kernel.run(CUDA)
    assert kernel.run("Buffer(2)").ok
    assert kernel.run("_2x = 'my own'; _ = 'mine too'").ok
    assert kernel.run("def use():\n    held = Buffer(4)\n    1 / 0\nuse()").status == "error"
    ran = kernel.run("%gpu empty-cache")
    assert ran.ok, ran
    said = words(ran.text)
    assert said.startswith("6 GiB came back. GPU 0 300 MiB in use here, 6.3 GiB before"), said
    assert "Let go of the last traceback" in said and re.search(r"Let go of \d outputs? ", said)
    assert kernel.value("_2x") == "my own", "not one of IPython's"
    again = words(kernel.run("%gpu empty-cache").text)
    assert again.startswith("Nothing came back. GPU 0 300 MiB in use here, as before"), again
    assert "traceback" not in again
    assert kernel.run("%debug").ok, "there is nothing to look at, and that is no error"


def test_names_of_the_user_stay(kernel: Kernel) -> None:
    kernel.run("'first'")
    kernel.run("_ = 'mine'; _1 = 'mine'; value = Out")
    assert kernel.run("%gpu empty-cache").ok
    assert kernel.value("(_, _1)") == ("mine", "mine")
    assert kernel.value("'first' in value.values()") is False


def test_caches_of_loaded_frameworks_are_emptied(kernel: Kernel) -> None:
    ran = kernel.run(
        CUDA + TORCH + JAX + CUPY + "torch.cuda.cached += [Buffer(2)]; pool.cached += [Buffer(1)]"
    )
    assert ran.ok, ran
    said = words(kernel.run("%gpu empty-cache").text)
    assert said.startswith("3 GiB came back."), said
    assert "torch: nothing reserved, 2 GiB before; nothing is in tensors" in said
    assert "cupy: nothing in its pool, 1 GiB before." in said
    assert "jax: compiled functions were dropped" in said
    assert kernel.value("(torch.cuda.asked, jax.asked)") == (1, 1)


def test_a_framework_that_fails_is_named_and_the_rest_goes_on(kernel: Kernel) -> None:
    kernel.run(CUDA + TORCH + CUPY)
    kernel.run("def fail(): raise RuntimeError('CUDA error: an illegal access\\nand more')")
    kernel.run("torch.cuda.empty_cache = fail; pool.cached += [Buffer(1)]")
    ran = kernel.run("%gpu empty-cache")
    assert ran.ok, ran
    said = words(ran.text)
    assert "torch: its cache could not be emptied (CUDA error: an illegal access)." in said
    assert said.startswith("1 GiB came back.")


def test_nothing_is_imported_and_cuda_is_not_initialised(kernel: Kernel) -> None:
    before = kernel.value("sorted(__import__('sys').modules)")
    ran = kernel.run("%gpu empty-cache")
    assert "CUDA is not initialised here" in ran.text
    after = set(kernel.value("sorted(__import__('sys').modules)")) - set(before)
    assert {name for name in after if not name.startswith("genv_jupyter.")} <= {"gc"}
    maps = kernel.value("[line for line in open('/proc/self/maps') if 'libcuda' in line]")
    assert maps == []
    kernel.run(TORCH + "torch.cuda.initialized = False")
    assert kernel.run("%gpu empty-cache").ok
    assert kernel.value("torch.cuda.asked") == 0
    kernel.run(CUDA)
    assert kernel.run("%gpu empty-cache").ok
    assert kernel.value("torch.cuda.asked") == 0, "torch has not initialised it"
