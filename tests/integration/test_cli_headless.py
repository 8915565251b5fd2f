"""Notebooks without a browser: in `jupyter gpu run` their kernels have what the command has."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest

from tests.fakedriver.driver import FakeDriver
from tests.fakedriver.fixtures import driver, fake_driver
from tests.integration.kernels import STARTUP
from tests.integration.terminals import jupyter_gpu

__all__ = ["driver", "fake_driver"]

CELLS = (
    "%gpu attach 0.5",
    "from cuda.bindings import driver as cuda\n"
    "cuda.cuInit(0)\n"
    "print([cuda.cuDeviceGetUuid(cuda.cuDeviceGet(i)[1])[1].bytes.hex()"
    " for i in range(cuda.cuDeviceGetCount()[1])])",
    "%gpu",
    "try:\n    get_ipython().run_line_magic('gpu', 'attach 2')\n"
    "except Exception as error:\n    print(error)",
    "%gpu release",
)
RUNNERS = {
    "papermill": ("papermill", "-k", "python3", "in.ipynb", "out.ipynb"),
    "execute": ("jupyter", "execute", "--inplace", "in.ipynb"),
    "nbconvert": ("nbconvert", "--execute", "--to", "notebook", "--output", "out", "in.ipynb"),
}


@pytest.fixture
def execute(tmp_path: Path) -> Callable[..., list[str]]:
    """Execute the notebook inside a command, and return what each cell said."""
    startup = tmp_path / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    shutil.copy(STARTUP, startup)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(it) for it in CELLS])
    nbformat.write(notebook, tmp_path / "in.ipynb")
    environ = {**os.environ, "IPYTHONDIR": str(tmp_path / "ipython")}

    def run(runner: str, **more: str) -> list[str]:
        program = [sys.executable, "-m", *RUNNERS[runner]]
        ran = jupyter_gpu(
            "run", "0.5", "-n", "report", "--", *program, cwd=tmp_path, env={**environ, **more}
        )
        assert ran.returncode == 0, ran.stderr
        name = "out.ipynb" if (tmp_path / "out.ipynb").exists() else "in.ipynb"
        return [said(cell) for cell in nbformat.read(tmp_path / name, as_version=4).cells]

    return run


def said(cell: nbformat.NotebookNode) -> str:
    parts = [it.get("text") or it.get("data", {}).get("text/plain", "") for it in cell.outputs]
    return " ".join("".join(parts).split())


@pytest.mark.parametrize(
    ("runner", "more"),
    [
        ("papermill", {}),
        ("nbconvert", {}),
        ("execute", {"JUPYTER_DEFAULT_PROVISIONER_NAME": "genv-provisioner"}),
    ],
)
def test_notebook_sees_what_the_command_has(
    driver: FakeDriver, execute: Callable[..., list[str]], runner: str, more: dict[str, str]
) -> None:
    attached, seen, status, refused, released = execute(runner, **more)
    assert "Attached already, from outside." in attached
    assert json.loads(seen.replace("'", '"')) == [driver.uuids[0][4:].replace("-", "")]
    assert "The command report has a GPU." in status
    assert "This runs inside the command 'report'" in status
    assert "2 GPUs is more or other than that. Start it with what is needed" in refused
    assert "The command report has a GPU." in released
