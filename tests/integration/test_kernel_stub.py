"""The stub in real kernels: it hides loudly, costs nothing, and leaves no trace."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.kernels import STARTUP, Kernel, Server

VISIBLE = "import os; os.environ.get('CUDA_VISIBLE_DEVICES')"
ID = "6d5d4f1e-0000-4000-8000-000000000001"
HIDDEN = {"GENV_JUPYTER_ENVIRONMENT": ID, "GENV_JUPYTER_UNATTACHED": "hide"}


@pytest.fixture
def frameworks(tmp_path: Path) -> dict[str, str]:
    """Empty modules with the names of the frameworks."""
    where = tmp_path / "frameworks"
    (where / "numba").mkdir(parents=True)
    for name in ("torch", "jax", "tensorflow", "cupy", "numba/__init__", "numba/cuda"):
        (where / f"{name}.py").write_text("ready = True\n")
    return {"PYTHONPATH": str(where)}


def test_plain_kernel_is_left_alone(tmp_path: Path, broker_home: Path) -> None:
    with Kernel(tmp_path, {"CUDA_VISIBLE_DEVICES": "3"}) as kernel:
        assert kernel.value(VISIBLE) == "3"
        assert kernel.run("os.environ['CUDA_VISIBLE_DEVICES'] = '5'").stderr == ""
        ran = kernel.run("import sys; print('genv_jupyter' in sys.modules, 'argparse' in dir())")
        assert ran.stdout == "False False\n"
    assert not list(broker_home.iterdir()), "a kernel that uses nothing starts no broker"


def test_hidden_kernel_says_so_when_a_framework_is_imported(
    tmp_path: Path, broker_home: Path, frameworks: dict[str, str]
) -> None:
    with Kernel(tmp_path, {**HIDDEN, **frameworks}) as kernel:
        assert kernel.value(VISIBLE) == ""
        assert kernel.value("sorted(n for n in globals() if 'genv' in n.lower())") == []
        assert kernel.run("import numba, json").stderr == ""
        missing = kernel.run("import tensorflow_that_is_not_there")
        assert (missing.ok, missing.stderr) == (False, "")
        first = kernel.run("from numba import cuda")
        assert first.ok
        assert first.stderr.count("\n") == 1
        assert "hidden" in first.stderr and "numba.cuda" in first.stderr
        assert "%gpu attach 0.5" in first.stderr and "on_import" in first.stderr
        assert kernel.run("import torch; assert torch.ready").stderr == "", "said once"
        children = kernel.run(
            "import subprocess, sys; print(os.environ.get('CUDA_VISIBLE_DEVICES'))"
        )
        assert children.stdout == "\n"


def test_framework_that_is_not_installed_gets_no_notice(tmp_path: Path) -> None:
    with Kernel(tmp_path, HIDDEN) as kernel:
        ran = kernel.run("import cupy")
        assert not ran.ok
        assert "hidden" not in ran.stderr


def test_notice_can_be_off(tmp_path: Path, frameworks: dict[str, str]) -> None:
    environ = {**HIDDEN, **frameworks, "GENV_JUPYTER_ON_IMPORT": "off"}
    with Kernel(tmp_path, environ) as kernel:
        assert kernel.run("import torch").stderr == ""
        assert kernel.value(VISIBLE) == ""


def test_no_notice_once_something_is_attached(
    tmp_path: Path, broker_home: Path, frameworks: dict[str, str]
) -> None:
    with Kernel(tmp_path, {**HIDDEN, **frameworks}) as kernel:
        assert kernel.run("%gpu attach 0.5").ok
        assert "hidden" not in kernel.run("import torch, jax").stderr
        assert kernel.value(VISIBLE).startswith("GPU-")


def test_on_import_attaches_the_default_request(
    tmp_path: Path, broker_home: Path, frameworks: dict[str, str]
) -> None:
    default = "GENV_JUPYTER_DEFAULT_REQUEST"
    environ = {**frameworks, "GENV_JUPYTER_ON_IMPORT": "attach", default: "0.25"}
    with Server(tmp_path) as server:
        kernel = server.kernel("viz", **environ)
        ran = kernel.run("import os; import torch; os.environ['CUDA_VISIBLE_DEVICES']")
        assert ran.ok
        assert ran.stdout.startswith("GPU: attached for torch: GPU 0: 6 GiB, 25 % of compute.")
        assert ran.stdout.rstrip().endswith("SIMULATED")
        assert ran.text.startswith("'GPU-")
        assert kernel.environment().grants[0].applied == "live"
        taken = server.kernel("second", **{**environ, default: "2"})
        refused = taken.run("import torch; print(torch.ready)")
        assert (refused.ok, refused.stdout) == (True, "True\n"), "the import itself never fails"
        assert "viz.ipynb" in refused.stderr and "CPU" in refused.stderr


def test_overwritten_variable_is_said_once(tmp_path: Path, broker_home: Path) -> None:
    with Kernel(tmp_path, HIDDEN) as kernel:
        said = kernel.run("import os; os.environ['CUDA_VISIBLE_DEVICES'] = '0'").stderr
        assert said.count("\n") == 1
        assert "CUDA_VISIBLE_DEVICES is '0' now" in said
        assert kernel.run("1").stderr == ""
        assert kernel.run("%gpu attach 2").stderr == "", "what we set ourselves is no overwriting"
        uuid = kernel.value(VISIBLE)
        narrowed = kernel.run(f"os.environ['CUDA_VISIBLE_DEVICES'] = {uuid.split(',')[0]!r}")
        assert narrowed.stderr == "", "less than what is attached is the user's own business"
        again = kernel.run("os.environ['CUDA_VISIBLE_DEVICES'] = '0,1'")
        assert "what is attached here" in again.stderr
        assert "changed by hand" in kernel.run("%gpu").text
        assert kernel.run("%gpu attach 2").ok
        assert kernel.value(VISIBLE) == uuid


def test_provisioners_sentence_is_shown_in_the_first_cell_and_in_the_status(
    tmp_path: Path, broker_home: Path
) -> None:
    sentence = "The GPU broker did not answer within 2 s, so this kernel starts without a GPU."
    with Kernel(tmp_path, {**HIDDEN, "GENV_JUPYTER_NOTICE": sentence}) as kernel:
        assert kernel.run("1 + 1").stderr == f"GPU: {sentence}\n"
        assert kernel.run("1 + 1").stderr == ""
        assert sentence in " ".join(kernel.run("%gpu").text.split())


def test_kernel_that_the_broker_does_not_know_is_hidden_loudly_and_can_attach(
    tmp_path: Path, broker_home: Path, frameworks: dict[str, str]
) -> None:
    """What the provisioner sets when something is broken on our side, and it works again."""
    environ = {"CUDA_VISIBLE_DEVICES": "", "GENV_JUPYTER_NOTICE": "The broker is down."}
    with Kernel(tmp_path, {**frameworks, **environ}) as kernel:
        assert kernel.run("1").stderr == "GPU: The broker is down.\n"
        said = kernel.run("import torch").stderr
        assert "hidden" in said and "The broker is down." in said
        assert kernel.run("%gpu attach 0.5").ok
        assert kernel.value(VISIBLE).startswith("GPU-")


def test_child_ipython_does_not_hide_what_its_parent_has_attached(
    tmp_path: Path, broker_home: Path
) -> None:
    with Kernel(tmp_path, HIDDEN) as kernel:
        assert kernel.run("%gpu attach 1").ok
        child = kernel.run(
            "import subprocess, sys\n"
            "code = \"import os; print('<' + os.environ['CUDA_VISIBLE_DEVICES'] + '>')\"\n"
            "command = [sys.executable, '-m', 'IPython', '-c', code]\n"
            "print(subprocess.check_output(command, text=True))"
        )
        assert "<GPU-" in child.stdout


def test_broken_stub_never_stops_a_kernel(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "genv_jupyter_stub.py").write_text("raise SystemError('broken')\n")
    with Kernel(tmp_path, {"PYTHONPATH": str(broken)}) as kernel:
        assert kernel.value("40 + 2") == 42


def test_gpu_without_its_dependencies_is_one_line(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    (broken / "msgspec").mkdir(parents=True)
    (broken / "msgspec" / "__init__.py").write_text("raise ImportError('No module msgspec')\n")
    with Kernel(tmp_path, {"PYTHONPATH": str(broken)}) as kernel:
        ran = kernel.run("%gpu")
        assert not ran.ok
        assert "pip install genv-jupyter" in ran.stderr
        assert "Traceback" not in ran.stderr


def test_stub_imports_nothing_heavy() -> None:
    """Structure instead of time: only what Python has loaded anyway."""
    code = (
        "import sys, IPython; before = set(sys.modules); import genv_jupyter_stub;"
        "genv_jupyter_stub.start(); print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=STARTUP.parents[3],
    )
    assert done.stdout.strip() == "['genv_jupyter_stub']"
