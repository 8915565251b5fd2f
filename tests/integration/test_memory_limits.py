"""Memory limits in real kernels: set, replaced, kept over a restart, and taken back.

The frameworks are stand-ins here: folders with the names and versions of the real ones, which
``tests/frameworks`` tries.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from genv_jupyter.isolation import caps, live
from genv_jupyter.isolation.environ import environ_of, limits_of
from genv_jupyter.server import variables
from tests.integration.kernels import Kernel, Server

TORCH = """
class cuda:
    class memory:
        pass
    def is_initialized():
        return False
    def set_per_process_memory_fraction(fraction, device=None):
        pass
    queued = []
    _lazy_call = queued.append
"""
SET = """
import os
NAMES = ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "XLA_CLIENT_MEM_FRACTION"]
NAMES += ["XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_PREALLOCATE"]
NAMES += ["TF_FORCE_GPU_ALLOW_GROWTH", "CUPY_GPU_MEMORY_LIMIT", "GENV_JUPYTER_MEMORY_BEFORE"]
def now():
    return {n: os.environ[n] for n in NAMES if n in os.environ}
def child():
    import subprocess, sys
    code = "import os; print(os.environ.get('PYTORCH_ALLOC_CONF'))"
    return subprocess.check_output([sys.executable, "-c", code], text=True).strip()
"""
GIB = 2**30


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of packages as pip leaves them."""
    place = tmp_path / "env" / "lib" / "python3.12" / "site-packages"
    for name in ("torch", "torch-2.10.0.dist-info", "jaxlib", "jaxlib-0.4.31.dist-info"):
        (place / name).mkdir(parents=True)
    (place / "torch" / "__init__.py").write_text(TORCH)
    return place


@pytest.fixture
def server(tmp_path: Path, broker_home: Path) -> Iterator[Server]:
    with Server(tmp_path) as server:
        yield server


def fraction(gib: float) -> str:
    """Compute the fraction of a device of 24 GiB that an allocator may take of a grant."""
    return f"{int((gib - 0.5) / 24 * 1e4) / 1e4:.4f}"


def test_attach_change_restart_whole_and_release(server: Server, site: Path) -> None:
    theirs = {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "CUPY_GPU_MEMORY_LIMIT": "1000"}
    kernel = server.kernel("llm", PYTHONPATH=str(site), **theirs)
    assert kernel.run(SET).ok
    assert kernel.value("now()") == theirs, "nothing is attached, nothing is set"
    assert kernel.run("%gpu attach 0.5").ok
    half = kernel.value("now()")
    assert half["PYTORCH_ALLOC_CONF"] == (
        f"expandable_segments:True,per_process_memory_fraction:{fraction(12)}"
    )
    assert half["XLA_PYTHON_CLIENT_MEM_FRACTION"] == fraction(12)
    assert half["CUPY_GPU_MEMORY_LIMIT"] == "1000", "theirs is stricter"
    assert kernel.value("child()") == half["PYTORCH_ALLOC_CONF"]
    assert kernel.run("%gpu attach 0.25").ok
    assert kernel.value("now()")["XLA_PYTHON_CLIENT_MEM_FRACTION"] == fraction(6)
    kernel.restart()
    assert kernel.run(SET).ok
    assert kernel.value("now()")["PYTORCH_ALLOC_CONF"].endswith(f":{fraction(6)}")
    loaded = "sorted(n for n in __import__('sys').modules if 'genv_jupyter.' in n)"
    assert kernel.value(loaded) == ["genv_jupyter.isolation", "genv_jupyter.isolation.caps"], (
        "a start with a limit costs no more"
    )
    assert kernel.run("%gpu attach 1").ok
    assert kernel.value("now()") == theirs, "a whole device has no limit"
    assert kernel.run("%gpu attach --memory 4GiB").ok
    assert kernel.run("%gpu release").ok
    assert kernel.value("now()") == theirs


def test_import_is_hooked_once_and_looks_untouched(tmp_path: Path, site: Path, broker_home) -> None:
    with Kernel(tmp_path, {"PYTHONPATH": str(site)}) as kernel:
        assert kernel.run("%gpu attach 0.5").ok
        ran = kernel.run("import os, importlib; import torch")
        assert (ran.ok, ran.stderr) == (True, "")
        assert kernel.value("len(torch.cuda.queued)") == 1
        kinds = "[type(x).__name__ for x in (torch.__loader__, torch.__spec__.loader)]"
        assert kernel.value(kinds) == ["SourceFileLoader", "SourceFileLoader"]
        assert kernel.run("os.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'backend:native'").ok
        assert kernel.run("importlib.reload(torch)").ok
        merged = kernel.value("os.environ['PYTORCH_CUDA_ALLOC_CONF']")
        assert merged == f"backend:native,per_process_memory_fraction:{fraction(12)}", (
            "what a cell has set before the import is merged, or it would hide ours"
        )


def test_framework_that_is_not_what_we_expect_is_imported_and_one_line_says_so(
    tmp_path: Path, site: Path, broker_home
) -> None:
    (site / "torch" / "__init__.py").write_text("ready = True\n")
    (site / "tensorflow.py").write_text("raise RuntimeError('broken itself')\n")
    with Kernel(tmp_path, {"PYTHONPATH": str(site)}) as kernel:
        assert kernel.run("%gpu attach 0.5").ok
        ran = kernel.run("import torch; print(torch.ready)")
        assert (ran.ok, ran.stdout) == (True, "True\n")
        assert ran.stderr.count("\n") == 1
        assert "PyTorch could not be told of the memory" in ran.stderr
        broken = kernel.run("import tensorflow")
        assert (broken.error, broken.stderr) == ("broken itself", "")


def test_whole_device_says_nothing_to_frameworks(tmp_path: Path, site: Path, broker_home) -> None:
    (site / "torch" / "__init__.py").write_text("ready = True\n")
    with Kernel(tmp_path, {"PYTHONPATH": str(site)}) as kernel:
        assert kernel.run("import torch").stderr == ""
        assert kernel.run("%gpu attach 1").stderr == ""
        assert "could not be told" in kernel.run("%gpu attach 0.5").stderr


def test_attached_by_its_import_is_limited_by_that_import(server: Server, site: Path) -> None:
    kernel = server.kernel(
        "viz",
        PYTHONPATH=str(site),
        GENV_JUPYTER_ON_IMPORT="attach",
        GENV_JUPYTER_DEFAULT_REQUEST="0.25",
    )
    ran = kernel.run("import torch; len(torch.cuda.queued)")
    assert (ran.text, ran.stderr) == ("1", ""), ran


def test_kernel_of_another_environment_is_told_by_variables(site: Path) -> None:
    environ = environ_of("e", ["GPU-1"], hide=True, pool=None, revision=1) | {
        caps.LIMIT: str(12 * GIB),
        caps.TOTAL: str(24 * GIB),
    }
    gone = environ | {caps.LIMIT: None, caps.TOTAL: None}
    code = (
        f"import os, sys; sys.path.insert(0, {str(site)!r})\n"
        f"os.environ['CUPY_GPU_MEMORY_LIMIT'] = '90%'\n"
        f"{live.expression(environ)}\n"
        "print(os.environ['PYTORCH_ALLOC_CONF'], os.environ['CUPY_GPU_MEMORY_LIMIT'])\n"
        f"{live.expression(gone)}\n"
        "print(os.environ.get('PYTORCH_ALLOC_CONF'), os.environ['CUPY_GPU_MEMORY_LIMIT'])\n"
        "assert 'torch' not in sys.modules and 'genv_jupyter' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True, cwd="/"
    )
    assert done.stdout.splitlines() == [
        f"per_process_memory_fraction:{fraction(12)} {int(11.5 * GIB)}",
        "None 90%",
    ]


def test_kernel_starts_with_what_the_frameworks_beside_its_interpreter_understand(
    site: Path,
) -> None:
    python = site.parents[2] / "bin" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    granted = {caps.LIMIT: str(12 * GIB), caps.TOTAL: str(24 * GIB)}
    env = {"CUPY_GPU_MEMORY_LIMIT": "90%"}
    variables.put(env, granted, {}, str(python))
    assert env["PYTORCH_ALLOC_CONF"] == f"per_process_memory_fraction:{fraction(12)}"
    assert env["XLA_PYTHON_CLIENT_MEM_FRACTION"] == fraction(12)
    variables.put(env, {}, {}, str(python))
    assert env == {"CUPY_GPU_MEMORY_LIMIT": "90%"}, "a server that was started in a kernel"


def test_command_is_told_by_the_frameworks_beside_its_program(
    tmp_path: Path, site: Path, broker_home: Path
) -> None:
    program = site.parents[2] / "bin" / "train"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho $PYTORCH_ALLOC_CONF $XLA_PYTHON_CLIENT_MEM_FRACTION\n")
    program.chmod(0o755)
    command = [sys.executable, "-m", "genv_jupyter.cli", "run", "-q", "0.5", "--", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
    expected = f"per_process_memory_fraction:{fraction(12)} {fraction(12)}\n"
    assert done.stdout == expected, done.stderr


def test_living_cuda_takes_another_limit_and_no_other_devices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(live, "_seen_initialized", False)
    environ = environ_of("e", ["GPU-1"], hide=True, pool=None, revision=1)
    environ |= {caps.LIMIT: str(12 * GIB), caps.TOTAL: str(24 * GIB)}
    assert live.apply_environ(environ)["applied"] == "live"
    monkeypatch.setattr(live, "_seen_initialized", True)
    less = environ | {caps.LIMIT: str(6 * GIB)}
    assert live.apply_environ(less)["applied"] == "live"
    assert os.environ["CUPY_GPU_MEMORY_LIMIT"] == str(int(5.5 * GIB))
    other = less | {"CUDA_VISIBLE_DEVICES": "GPU-2", caps.LIMIT: str(8 * GIB)}
    assert live.apply_environ(other)["applied"] == "at_restart"
    assert os.environ["CUPY_GPU_MEMORY_LIMIT"] == str(int(5.5 * GIB)), "nothing is half done"


def test_strength_says_who_keeps_to_it() -> None:
    part = limits_of(compute=None, exclusive=False, simulated=False).memory
    assert (part.strength, part.verified) == ("cooperative", None)
    assert "PyTorch" in part.reason and "not stopped" in part.reason
    assert limits_of(compute=None, exclusive=True, simulated=False).memory.strength == "none"
