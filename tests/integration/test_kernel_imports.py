"""`%gpu` where only IPython and msgspec are installed: it loads, and says what it cannot do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.kernels import Kernel

# What the server, the broker and the driver need, and a kernel's environment may lack.
MISSING = ("jupyter_server", "tornado", "sqlalchemy", "alembic", "pynvml", "psutil", "click")


def test_kernel_and_client_import_nothing_of_a_server() -> None:
    code = (
        "import sys, IPython, msgspec; before = {m.split('.')[0] for m in sys.modules};"
        "import genv_jupyter.api.client, genv_jupyter.kernel.magics, genv_jupyter.kernel.doctor;"
        "import genv_jupyter.kernel.cache, genv_jupyter.kernel.usage, genv_jupyter.kernel.watch;"
        "import genv_jupyter.kernel.panel;"
        "after = {m.split('.')[0] for m in sys.modules} - before;"
        "print(*sorted(m for m in after if m not in sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["genv_jupyter"]


@pytest.fixture
def poor(tmp_path: Path) -> dict[str, str]:
    """An environment without what only servers need."""
    where = tmp_path / "poor"
    for name in set(MISSING) - {"tornado", "psutil"}:  # ipykernel itself has these two
        (where / name).mkdir(parents=True)
        (where / name / "__init__.py").write_text(
            f"raise ModuleNotFoundError(\"No module named '{name}'\", name='{name}')\n"
        )
    return {"PYTHONPATH": str(where)}


def test_broker_that_cannot_start_here_is_said_with_what_to_do(
    tmp_path: Path, broker_home: Path, poor: dict[str, str]
) -> None:
    with Kernel(tmp_path, poor) as kernel:
        refused = kernel.run("%gpu attach 0.5")
        assert refused.status == "error"
        assert " ".join(refused.traceback) == refused.error
        assert "cannot run in this Python environment" in refused.error
        assert "pip install genv-jupyter" in refused.error
        doctor = kernel.run("%gpu doctor")
        assert doctor.ok, "the doctor answers when everything else is broken"
        assert "pip install genv-jupyter" in " ".join(doctor.text.split())
        assert "not initialized in this process" in doctor.text


def test_kernel_without_them_uses_a_broker_that_runs(
    tmp_path: Path, broker_home: Path, poor: dict[str, str]
) -> None:
    started = subprocess.run(
        [sys.executable, "-m", "genv_jupyter.cli", "health"],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "2 GPUs" in started.stdout
    with Kernel(tmp_path, poor) as kernel:
        assert "SIMULATED" in kernel.run("%gpu attach 0.5").text
        assert "12 GiB, 50 %" in kernel.run("%gpu devices").text
