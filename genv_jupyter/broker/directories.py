"""Where the user broker keeps its files: of this user alone, on this host, for this boot."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
from pathlib import Path

from genv_jupyter.errors import Unavailable
from genv_jupyter.isolation.processes import boot_id, pid_namespace

BASE = Path("/var/tmp")
"""Local to the host and outliving a log-out: ``/run/user/UID`` ends with the last session while
kernels live on, and ``/tmp`` may be private to a service."""


def private(directory: Path) -> Path:
    """Make a directory that is ours alone (mode 0700), or say why it is not.

    Raises
    ------
    Unavailable
        It is a link, belongs to somebody else, or others may write to it.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise Unavailable(
            f"{directory} is not a directory of yours: somebody may have put it there.",
            hint="Have it removed, or set GENV_JUPYTER_HOME to a directory of your own.",
        )
    if found.st_mode & 0o077:
        directory.chmod(0o700)
    return directory


def live_directory(simulate: str) -> Path:
    """Return the directory of the live ledger: for this boot and this pid namespace only."""
    home = os.environ.get("GENV_JUPYTER_HOME")
    top = private(Path(home) if home else BASE / f"genv-jupyter-{os.getuid()}")
    kind = "simulated" if simulate else "live"
    return private(top / f"{kind}-{boot_id()[:8]}-{pid_namespace()}")


def records_path() -> Path:
    """Return the file of the records: one for each host, with the user's Jupyter data."""
    home = os.environ.get("GENV_JUPYTER_HOME")
    if home:
        return Path(home) / "records.sqlite"
    from jupyter_core.paths import jupyter_data_dir

    top = Path(jupyter_data_dir()) / "genv-jupyter"
    return private(top) / f"records-{socket.gethostname()}.sqlite"


def lock(directory: Path) -> int:
    """Hold a directory for the life of this process; return the descriptor.

    The abstract socket is the first lock; this one holds where network namespaces differ.

    Raises
    ------
    Unavailable
        Another broker holds it.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise Unavailable(
            f"Another GPU broker of yours uses {directory} from another network namespace.",
            hint="Set GENV_JUPYTER_HOME to another directory here.",
        ) from None
    return descriptor
