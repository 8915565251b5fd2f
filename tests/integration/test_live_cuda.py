"""The probe against a CUDA driver: it tells the truth, and never initialises anything.

The driver is a fake one, or NVIDIA's own on a machine where it finds no device.
"""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from genv_jupyter.isolation import live
from tests import debian, wheels
from tests.fakedriver.fixtures import MakeDriver, fake_driver
from tests.fakedriver.remote import Remote, bare

__all__ = ["fake_driver"]

IMPORT = "from genv_jupyter.isolation import live"
LOADED = "any('libcuda.so' in line for line in open('/proc/self/maps'))"
LOAD = "ctypes.CDLL('libcuda.so.1')"
NO_DEVICE, NOT_INITIALIZED = 100, 3
SHOW_ALL = "done = live.apply_environ({'CUDA_VISIBLE_DEVICES': None})"


@pytest.fixture(params=["fake", "NVIDIA's"])
def driver(request: pytest.FixtureRequest, fake_driver: MakeDriver) -> Any:
    """A driver, of which only ``environ`` is used; NVIDIA's finds no device."""
    if request.param == "fake":
        return fake_driver()
    if Path("/proc/driver/nvidia/version").exists():
        pytest.skip("NOT TESTED against NVIDIA's driver without a GPU: there is one here")
    (library,) = debian.unpacked("libcuda1").glob("usr/lib/*/nvidia/current/libcuda.so.1")
    return SimpleNamespace(environ={"LD_LIBRARY_PATH": str(library.parent)})


def test_probe_neither_loads_nor_initialises(driver: Any) -> None:
    with Remote(driver) as process:
        process(IMPORT)
        assert process("live.cuda_state()") == "not_initialized"
        process(SHOW_ALL)
        assert process("live.seen()") is None
        assert process(LOADED) is False
        assert process("cuda.cuDeviceGetCount()")[0] == NOT_INITIALIZED, "loaded by this"
        assert process(LOADED) is True
        assert process("live.cuda_state()") == "not_initialized"
        assert process("live.seen()") is None
        assert process("cuda.cuDeviceGetCount()")[0] == NOT_INITIALIZED


def test_initialisation_that_failed_while_hidden_is_named(driver: Any) -> None:
    with Remote(driver, CUDA_VISIBLE_DEVICES="") as process:
        process(IMPORT)
        assert process("cuda.cuInit(0)")[0] == NO_DEVICE
        assert process("live.cuda_state()") == "not_initialized"
        assert process("in_fork(live.cuda_state)") == "not_initialized"
        process("done = live.apply_environ({'CUDA_VISIBLE_DEVICES': 'GPU-5555'})")
        assert process("done['applied']") == "live"
        assert process("done['stubborn']") == ["CUDA"]


def test_probe_sees_an_initialised_driver_without_any_context(fake_driver: MakeDriver) -> None:
    driver = fake_driver()
    with Remote(driver, CUDA_VISIBLE_DEVICES=driver.uuids[1]) as process:
        process(IMPORT)
        process("cuda.cuInit(0)")
        assert process("live.cuda_state()") == "initialized"
        assert process("live.seen()") == bare(driver.uuids[1])
        assert driver.contexts() == []
        process("done = live.apply_environ({'CUDA_VISIBLE_DEVICES': ''})")
        assert process("done['applied']") == "at_restart"
        process("os.environ['CUDA_VISIBLE_DEVICES'] = '0'")
        assert process("live.seen()") == bare(driver.uuids[1]), "whatever the variable is by now"


def test_fork_of_an_initialised_process_is_too_late_for_cuda(fake_driver: MakeDriver) -> None:
    with Remote(fake_driver()) as process:
        process("import genv_jupyter.kernel.session")
        process(IMPORT)
        process("cuda.cuInit(0)")
        assert process("in_fork(lambda: cuda.cuDeviceGetCount()[0])") == NOT_INITIALIZED
        assert process("in_fork(live.cuda_state)") == "initialized", "nobody had asked before"
        assert process("in_fork(live.seen)") is None


def test_variable_that_a_cell_changed_is_set_again_where_cuda_sees_the_grant(
    fake_driver: MakeDriver,
) -> None:
    driver = fake_driver()
    both = ",".join(driver.uuids)
    with Remote(driver, CUDA_VISIBLE_DEVICES=both) as process:
        process(IMPORT)
        process("cuda.cuInit(0)")
        process("os.environ['CUDA_VISIBLE_DEVICES'] = '7'")
        process(f"done = live.apply_environ({{'CUDA_VISIBLE_DEVICES': {driver.uuids[0]!r}}})")
        assert process("done['applied'], done['visible']") == ["at_restart", "7"]
        process(f"done = live.apply_environ({{'CUDA_VISIBLE_DEVICES': {both!r}}})")
        assert process("done['applied'], done['visible']") == ["live", both]


def test_expression_of_the_server_sees_it_too(fake_driver: MakeDriver) -> None:
    with Remote(fake_driver()) as process:
        assert process(live.expression(None)) == '{"cuda": "not_initialized"}'
        process("cuda.cuInit(0)")
        assert process(live.expression(None)) == '{"cuda": "initialized"}'


# -- through CUDA's runtime, as PyTorch and CuPy go ------------------------------------------------

COUNT = """
import ctypes
runtime = ctypes.CDLL({library!r})
def count():
    found = ctypes.c_int(-1)
    return runtime.{function}(ctypes.byref(found)), found.value
"""


def look_in_vain(driver: Any, library: Path, function: str, modules: str = "") -> list[str]:
    """Let a runtime count hidden devices; return what is said to be stubborn at the attaching."""
    with Remote(driver, CUDA_VISIBLE_DEVICES="") as process:
        process(
            f"{IMPORT}\nimport types\nfor name in {modules!r}.split():\n  sys.modules[name] = types"
        )
        process(COUNT.format(library=str(library), function=function))
        assert process("live.stubborn()") == [], "loading it is not looking"
        assert process("count()")[0] == NO_DEVICE
        assert process(LOADED) is False, "unloaded again"
        assert process("live.cuda_state()") == "not_initialized"
        process(SHOW_ALL)
        assert process("count()")[0] == NO_DEVICE, "it remembers"
        return process("done['stubborn']")


def test_runtime_that_has_looked_in_vain_is_named(driver: Any) -> None:
    # One that the driver of any supported Debian is new enough for.
    folder = wheels.unpacked("cuda-runtime-12.0", "nvidia-cuda-runtime-cu12==12.0.*")
    (library,) = folder.glob("nvidia/cuda_runtime/lib/libcudart.so.12")
    assert look_in_vain(driver, library, "cudaGetDeviceCount") == ["CUDA"]
    assert look_in_vain(driver, library, "cudaGetDeviceCount", "torch") == ["torch"]


def test_runtime_within_a_library_is_noticed_where_the_library_is_known(
    fake_driver: MakeDriver, tmp_path: Path
) -> None:
    """CuPy is linked that way: no file of the runtime's shows that it is there."""
    library = linked_statically(tmp_path)
    assert look_in_vain(fake_driver(), library, "looked", "cupy") == ["cupy"]
    assert look_in_vain(fake_driver(), library, "looked") == [], "this one nobody can know"


def linked_statically(directory: Path) -> Path:
    spec = importlib.util.find_spec("nvidia")
    roots = [Path(root) for root in (spec and spec.submodule_search_locations) or ()]
    archive = next(path for root in roots for path in root.glob("*/lib/libcudart_static.a"))
    source, library = directory / "looked.c", directory / "liblooked.so"
    source.write_text(
        "int cudaGetDeviceCount(int *);\n"
        "int looked(int *count) { return cudaGetDeviceCount(count); }\n"
    )
    command = ["gcc", "-shared", "-fPIC", "-o", str(library), str(source), str(archive)]
    subprocess.run([*command, "-ldl", "-lrt", "-lpthread"], check=True)
    return library
