"""Writing the program ``nvidia-smi`` of the environments, as a file that can be run."""

from __future__ import annotations

import contextlib
import os
import py_compile
import shutil
import sys
from pathlib import Path

from genv_jupyter.isolation.smi import program

NAME = "nvidia-smi"
MODULE = "genv_jupyter_nvidia_smi"
_LONGEST_LINE = 120
"""Bytes of a first line that every Linux reads whole."""


def install(
    directory: Path, address: str, python: str | None = None, *, everybody: bool = False
) -> str | None:
    """Write the program into a directory that nobody else may write to.

    A package's files lose the right to be run in some installers, and the address is the broker's:
    so it is written anew by each broker, whole or not at all. What it does is a module beside it,
    which the interpreter keeps compiled.

    Parameters
    ----------
    address
        Of the broker: a path, or an abstract name with its NUL.
    python
        The interpreter; this one by default, without the virtual environment around it.
    everybody
        Whether all users of the host run it; otherwise it is this user's alone.

    Returns
    -------
    str or None
        The directory, for PATH; ``None`` where programs cannot be run from it (``noexec``).

    Raises
    ------
    OSError
        It cannot be written, or not be named in PATH.
    """
    if os.pathsep in str(directory):
        raise OSError(f"{directory} has a colon, so PATH cannot name it")
    python = python or _interpreter(everybody=everybody)
    mode = 0o755 if everybody else 0o700
    if everybody:
        directory.chmod(mode)
    source = Path(program.__file__).read_text(encoding="utf-8")
    module = directory / f"{MODULE}.py"
    _write(module, source.replace('ADDRESS = b""', f"ADDRESS = {os.fsencode(address)!r}", 1), mode)
    with contextlib.suppress(py_compile.PyCompileError):  # it says what is wrong when it is run
        compiled = Path(py_compile.compile(str(module), doraise=True) or module)
        compiled.parent.chmod(mode)
        compiled.chmod(mode & 0o666)
    _write(directory / NAME, script(directory, python), mode)
    return str(directory) if os.access(directory / NAME, os.X_OK) else None


def script(directory: Path, python: str) -> str:
    """Return the program for an interpreter: no packages, no variables of the user."""
    return (
        f"{_first_lines(python)}"
        "import posix, sys\n"
        f"sys.path.insert(0, {str(directory)!r})\n"
        f"from {MODULE} import main\n"
        "posix._exit(main())  # all is written, and nothing is to be cleared away\n"
    )


def _write(path: Path, text: str, mode: int) -> None:
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(fresh, flags, 0o700)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(descriptor, mode)
            file.write(text)
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def _interpreter(*, everybody: bool) -> str:
    """Return the interpreter: this one, or where not everybody gets to it, that of the system.

    Raises
    ------
    OSError
        There is none for everybody.
    """
    python = os.path.realpath(sys.executable)
    if not everybody or _reached_by_all(python):
        return python
    found = shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin")
    if found is None or not _reached_by_all(os.path.realpath(found)):
        raise OSError(f"{python} is closed to users, and there is no python3 of the system")
    return os.path.realpath(found)


def _reached_by_all(path: str) -> bool:
    return all(it.stat().st_mode & 0o001 for it in (Path(path), *Path(path).parents))


def _first_lines(python: str) -> str:
    """Return what starts the interpreter, and near the top what says that this is ours.

    A long path, or one with blanks, is too much for the kernel: there a shell starts it, which
    sees a command where Python sees a string.
    """
    line = f"#!{python} -IS\n"
    ours = f"# {program.MARK.decode()}: {NAME}\n"
    if len(os.fsencode(line)) <= _LONGEST_LINE and not any(one.isspace() for one in python):
        return line + ours
    word = python.replace("'", "'\"'\"'")
    return f"#!/bin/sh\n{ours}'''exec' '{word}' -IS \"$0\" \"$@\"\n' '''\n"
