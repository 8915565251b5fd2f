"""Building the archives, and installing them into environments of their own."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path
from typing import NamedTuple

from genv_jupyter import __version__

ROOT = Path(__file__).parents[2]
NAME = f"genv_jupyter-{__version__}"


class Archives(NamedTuple):
    sdist: Path
    wheel: Path


def run(*command: str, cwd: Path | None = None) -> str:
    """Run a command to its end and return what it said; a failure shows all of it."""
    done = subprocess.run(
        command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=-1, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}"
    return done.stdout


def environment(where: Path, *install: str) -> Path:
    """Make a virtual environment with these packages; return its Python."""
    venv.create(where, with_pip=False, symlinks=True)
    python = where / "bin" / "python"
    pip(python, *install)
    return python


def pip(python: Path, *install: str) -> None:
    """Install into an environment that has no pip of its own."""
    command = [sys.executable, "-m", "pip", "--python", str(python)]
    run(*command, "install", "--quiet", "--no-compile", *install)
