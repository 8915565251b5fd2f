"""Where the user broker keeps its files: of this user alone, on this host, for this boot."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import socket
import stat
import time
from pathlib import Path

from genv_jupyter.errors import Unavailable
from genv_jupyter.isolation.owners import others_may_write
from genv_jupyter.isolation.processes import boot_id, pid_namespace

BASE = Path("/var/tmp")
"""Local to the host and outliving a log-out: ``/run/user/UID`` ends with the last session while
kernels live on, and ``/tmp`` may be private to a service."""

LEAVING_SECONDS = 5.0
"""For which a broker that has given up its name may still be writing."""


def private(directory: Path) -> Path:
    """Make a directory of mode 0700, or take one that is ours and that nobody else may write to.

    The mode of a directory that is there already is never changed: it may be somebody's home.

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
    if found.st_mode & 0o022:
        raise Unavailable(
            f"Others may write to {directory}, so the GPU broker cannot keep its files there.",
            hint=f"chmod go-w {directory}, or set GENV_JUPYTER_HOME to another directory.",
        )
    return directory


def stays(directory: Path) -> Path:
    """Return a directory's own path, if nobody else can put another in its place.

    Programs and MPS pipes in it are named to every kernel, for as long as those live.

    Raises
    ------
    Unavailable
        Others may rename it, or a directory above it.
    """
    directory = directory.resolve()
    trusted = {0, os.getuid(), Path("/").stat().st_uid}  # in a container root may have another uid
    for above in directory.parents:
        found = above.stat()
        shared = others_may_write(found) and not found.st_mode & stat.S_ISVTX
        if shared or found.st_uid not in trusted:
            who = "Others" if shared else f"The owner of {above}, uid {found.st_uid},"
            raise Unavailable(
                f"{who} may put another directory in the place of {directory}, so the GPU broker "
                "cannot keep its files there.",
                hint="Set GENV_JUPYTER_HOME to a directory in your home"
                + (f", or chmod +t {above}." if shared else "."),
            )
    return directory


def live_directory(simulate: str) -> Path:
    """Return the directory of the live ledger: for this boot and this pid namespace only."""
    home = os.environ.get("GENV_JUPYTER_HOME")
    top = stays(private(Path(home) if home else BASE / f"genv-jupyter-{os.getuid()}"))
    return live_within(top, simulate)


def live_within(top: Path, simulate: str) -> Path:
    """Return the directory of the live ledger in another one: that of this boot and namespace."""
    # Each set of simulated devices has a broker, and so a ledger, of its own.
    kind = f"simulated-{hashlib.sha256(simulate.encode()).hexdigest()[:8]}" if simulate else "live"
    return private(top / f"{kind}-{boot_id()[:8]}-{pid_namespace()}")


def records_path(simulate: str) -> Path:
    """Return the file of the records: one for each host, with the user's Jupyter data."""
    kind = "simulated" if simulate else "records"
    home = os.environ.get("GENV_JUPYTER_HOME")
    if home:
        return Path(home) / f"{kind}.sqlite"
    from jupyter_core.paths import jupyter_data_dir

    top = Path(jupyter_data_dir()) / "genv-jupyter"
    return private(top) / f"{kind}-{socket.gethostname()}.sqlite"


def lock(directory: Path, seconds: float = LEAVING_SECONDS) -> int:
    """Hold a directory for the life of this process; return the descriptor.

    The abstract socket is the first lock; this one holds where network namespaces differ, and
    until a broker that has given up its name has written its last word.

    Raises
    ------
    Unavailable
        Another broker holds it, and still does after so many seconds.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            if time.monotonic() < deadline:
                time.sleep(0.02)
                continue
            os.close(descriptor)
            raise Unavailable(
                f"Another GPU broker of yours uses {directory}: it does not leave, or runs in "
                "another network namespace.",
                hint="End it, or set GENV_JUPYTER_HOME to another directory here.",
            ) from None


def claim_socket(path: Path) -> None:
    """Take the path of a socket for the life of this process, and remove what a dead broker left.

    A file beside it is the lock: two that looked whether somebody listens, and then removed the
    socket, could each remove the other's.

    Raises
    ------
    BlockingIOError
        Another broker has it.
    Unavailable
        What is there is no socket, or not ours.
    """
    stays(private(path.parent))
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path.with_name(f"{path.name}.lock"), flags, 0o600)  # never closed
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise Unavailable(
                f"{path} is there already, and is no socket.",
                hint="Set GENV_JUPYTER_SOCKET to a path that nothing else uses.",
            )
        path.unlink()
