"""The ledger's files: ours alone, and never overwritten."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

from genv_jupyter.errors import Unavailable

SIDECARS = ("-wal", "-shm", "-journal")
"""What SQLite keeps beside a database."""


def claim(path: Path) -> None:
    """Make sure that a ledger can live at ``path``: the directory 0700, the file 0600, both ours.

    Raises
    ------
    Unavailable
        The directory or the file belongs to somebody else, is not what it should be, or others
        may write to the directory.
    """
    try:
        _claim_directory(path.parent)
        _claim_file(path)
    except OSError as error:
        raise Unavailable(
            f"The ledger {path} cannot be used: {error.strerror or error}.",
            hint="Make room or give yourself access there, or set GENV_JUPYTER_HOME to another "
            "directory.",
        ) from error


def _claim_directory(directory: Path) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise Unavailable(
            f"The ledger cannot live in {directory}: that is not a directory of yours.",
            hint="Set GENV_JUPYTER_HOME to a directory of your own.",
        )
    if found.st_mode & 0o022:
        raise Unavailable(
            f"The ledger cannot live in {directory}: others may write to that directory.",
            hint=f"chmod 700 {directory}",
        )


def _claim_file(path: Path) -> None:
    # No descriptor of an existing file is opened and closed here: that would drop the locks that
    # SQLite may hold on it in this process.
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise Unavailable(
                f"The ledger {path} is not a file of yours.",
                hint="Move it away, or set GENV_JUPYTER_HOME to another directory.",
            ) from None
        if stat.S_IMODE(found.st_mode) != 0o600:
            path.chmod(0o600)


def set_aside(path: Path) -> Path:
    """Rename a damaged ledger to ``<name>.damaged-<time>``, with what lies beside it.

    Returns
    -------
    Path
        The new name, which nothing had before.
    """
    aside = _reserve(path, time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()))
    # The log goes first: left alone, it would be played into the ledger that is made next.
    for suffix in SIDECARS:
        sidecar = _beside(path, suffix)
        if sidecar.exists():
            sidecar.rename(_beside(aside, suffix))
    return path.rename(aside)


def unsettled(path: Path) -> list[Path]:
    """Return the logs that belong to a database and have not been played into it."""
    logs = [_beside(path, suffix) for suffix in ("-wal", "-journal")]
    return [log for log in logs if log.exists() and log.stat().st_size]


def _reserve(path: Path, when: str) -> Path:
    """Make an empty file under a name that is free, so that a rename to it loses nothing."""
    number = 1
    while True:
        name = f"{path.name}.damaged-{when}" + (f"-{number}" if number > 1 else "")
        aside = path.with_name(name)
        number += 1
        if any(_beside(aside, suffix).exists() for suffix in SIDECARS):
            continue
        try:
            aside.touch(mode=0o600, exist_ok=False)
        except FileExistsError:
            continue
        return aside


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)
