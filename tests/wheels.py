"""Wheels of PyPI, unpacked and not installed: what a test wants to look at, and nobody to have."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SECONDS = 240


def unpacked(
    name: str,
    requirement: str,
    prepare: Callable[[Path], object] = lambda _: None,
    *,
    whole: bool = False,
) -> Path:
    """Return the folder of a wheel; skip the test if it cannot be had.

    What was fetched once is kept in ``$XDG_CACHE_HOME/genv-jupyter-tests``.

    Parameters
    ----------
    name
        What the folder is called.
    requirement
        As pip takes it.
    prepare
        Called once, with the folder of the unpacked wheel.
    whole
        Whether what it depends on is there too.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "genv-jupyter-tests")
    folder = cache / f"{name}-cp{sys.version_info.major}{sys.version_info.minor}"
    if folder.is_dir():
        return folder
    fetching = cache / f"{folder.name}.{os.getpid()}"
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-compile"]
    command += ["--no-cache-dir", "--only-binary=:all:", "--target", str(fetching), requirement]
    command += [] if whole else ["--no-deps"]
    try:
        run(command, SECONDS)
        prepare(fetching)
        if not folder.is_dir():
            fetching.rename(folder)
    except (subprocess.SubprocessError, OSError) as error:
        said = str(getattr(error, "stderr", None) or error).strip()
        pytest.skip(f"NOT TESTED with {requirement}: it cannot be had ({said[-300:]})")
    finally:
        shutil.rmtree(fetching, ignore_errors=True)
    return folder


def run(command: list[str], seconds: float = 60) -> str:
    """Return what a command prints; raises if it fails."""
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=seconds)
    return done.stdout
