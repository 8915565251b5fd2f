"""The real wheels of frameworks, in one folder beside the tests' own environment.

They are wanted whole, with what they depend on (1 GB to fetch, 2.5 GB unpacked, about two minutes,
once): nothing of them is installed, and other tests do not see them. PyTorch comes from
``tests.torch_wheel``; vLLM (several GB, and it starts by looking for a GPU) from nowhere: a
stand-in module has its name.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.wheels import run

REQUIREMENTS = (
    "jax==0.10.2",
    "jaxlib==0.10.2",
    "tensorflow-cpu==2.21.0",
    "cupy-cuda12x==14.2.0",
    "rmm-cu12==26.10.0",
)
SECONDS = 400


def frameworks() -> Path:
    """Return the folder to put on ``PYTHONPATH``; skip the test if the wheels cannot be had."""
    named = hashlib.sha256("\n".join(REQUIREMENTS).encode()).hexdigest()[:8]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "genv-jupyter-tests")
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    folder = cache / f"frameworks-{python}-{named}"
    if folder.is_dir():
        return folder
    fetching = cache / f"{folder.name}.{os.getpid()}"
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--no-cache-dir"]
    command += ["--only-binary=:all:", "--target", str(fetching), *REQUIREMENTS]
    try:
        run(command, SECONDS)
        fetching.rename(folder)
    except (subprocess.SubprocessError, OSError) as error:
        said = str(getattr(error, "stderr", None) or error).strip()
        pytest.skip(f"NOT TESTED with JAX, TensorFlow, CuPy, RMM: not to be had ({said[-300:]})")
    finally:
        shutil.rmtree(fetching, ignore_errors=True)
    return folder
