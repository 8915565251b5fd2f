"""The sockets that a host's broker listens on: handed over by systemd, or its own."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
from pathlib import Path

from genv_jupyter.api.rendezvous import HOST_SOCKET, HUB_SOCKET
from genv_jupyter.broker import systemd
from genv_jupyter.broker.config import BrokerConfig
from genv_jupyter.broker.hub_identity import HubAccess
from genv_jupyter.errors import Unavailable
from genv_jupyter.isolation.owners import others_may_write

HUB_NAME = "hub"
"""``FileDescriptorName=`` of the Hub's socket unit."""


def sockets(
    settings: BrokerConfig,
    path: Path,
    hub_path: str | None,
    hub_descriptor: int | None = None,
    *,
    separated: bool = False,
) -> tuple[socket.socket, socket.socket | None]:
    """Return the sockets to listen on: those of systemd, or ours; for the Hub where it is wanted.

    ``separated`` from root's rights we listen for the Hub at what root has opened, and nowhere
    else: that directory is mounted into containers, so it must not be ours to rename.

    Raises
    ------
    Unavailable
        One is there without a Hub, or the other for nobody.
    """
    handed = systemd.handed_over()
    hub = handed.pop(HUB_NAME, None)
    if hub_descriptor is not None:
        os.set_inheritable(hub_descriptor, False)
        hub = socket.socket(fileno=hub_descriptor)
        hub.setblocking(False)
    sock = next(iter(handed.values()), None) or _listen(path)
    if settings.of(HubAccess).api_url:
        if hub is None and separated:
            raise Unavailable(
                "Nobody has opened a socket for the JupyterHub of HubAccess.api_url.",
                hint="Enable genv-jupyter-hub.socket, or start the daemon with "
                f"--hub-socket {HUB_SOCKET}: root opens it, in a directory of root's.",
            )
        hub = hub or _listen(Path(hub_path) if hub_path else _beside(path))
    elif hub is not None or hub_path is not None:
        raise Unavailable(
            "There is a socket for a JupyterHub, and the broker is not told which.",
            hint="Set HubAccess.api_url, such as http://127.0.0.1:8081/hub/api.",
        )
    return sock, hub


def _beside(path: Path) -> Path:
    """Return where the Hub's socket is by default."""
    return Path(HUB_SOCKET) if str(path) == HOST_SOCKET else path.parent / "hub" / "hub.sock"


def _listen(path: Path) -> socket.socket:
    """Listen at a path for everybody, in a directory where nobody else can put another socket."""
    if not path.name:
        raise Unavailable(f"{path} is no name of a socket.", hint="Say a path below a directory.")
    directory = path.absolute().parent
    directory.mkdir(mode=0o755, exist_ok=True)
    found = directory.lstat()
    if found.st_uid not in (0, os.getuid()) or others_may_write(found):
        raise Unavailable(
            f"Others may write to {directory}: they could put another socket in the place of ours.",
            hint="Use a directory of the daemon's own, such as /run/genv-jupyter.",
        )
    os.chmod(directory, 0o755)  # noqa: PTH101 (the umask is 077, and everybody comes through)
    lock = os.open(
        path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
    )
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held until this process ends
    except BlockingIOError:
        raise Unavailable(
            f"Another GPU broker serves {path}.", hint="Stop that one first."
        ) from None
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise Unavailable(f"{path} is there, and is no socket.", hint="Remove it.")
        path.unlink()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(str(path))
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG or "too long" in str(error):
            raise Unavailable(
                f"{path} is too long for a socket.", hint="107 bytes at most."
            ) from None
        raise
    path.chmod(0o666)
    sock.listen(1024)
    sock.setblocking(False)
    return sock
