"""What the daemon of a host may do to users' processes: itself, by its root helper, or not at all.

Whatever is missing is said in words where everybody looks (`jupyter gpu doctor`).
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

from genv_jupyter.broker import directories
from genv_jupyter.broker.core import Core
from genv_jupyter.errors import GpuError, Unavailable
from genv_jupyter.isolation.powers import Powers
from genv_jupyter.isolation.smi.install import install
from genv_jupyter.rootd.client import HelperGone
from genv_jupyter.rootd.powers import HelperPowers, connect

log = logging.getLogger("genv_jupyter.broker")

ALONE = (
    "This broker runs as a user of its own, without its root helper: shared grants are without "
    "MPS, rules end only what Jupyter servers end for it, and processes are known by their parents "
    "alone. Start it as root, with --as and the name of that user."
)
AS_ROOT = (
    "This broker runs as root: whoever finds a fault in it has all of this host. Start it with "
    "--as and the name of a user of its own; then only its small helper is root's."
)
GONE = (
    "The broker's root helper has ended, and is started again: until then no MPS daemon is started "
    "or ended, no process is signalled, and no compute mode is changed."
)


def programs(sock: Path, top: Path, notices: list[str], laid: str | None = None) -> str | None:
    """Return where ``nvidia-smi`` for environments of all users is; without it we say so.

    It is first in the PATH of users, who believe root's alone: ``laid`` by our parent, or, where we
    are root ourselves, written here. Where no program may be run below ``/run`` it is with the
    ledger, which stays closed.
    """
    if laid:
        return laid
    room = sock.parent
    why = f"no program can be run from {room} and {top}"
    if laid is not None:
        why = "root has found no place for it, and the log says why"
    elif os.getuid() != 0:
        why = "this broker is not root's, and has no parent that is: users would not believe it"
    else:
        for place in (room, top):
            try:
                directory = directories.private(place / "bin")
                if (found := install(directory, str(sock), everybody=True)) is not None:
                    place.chmod(0o711 if place == top else 0o755)
                    return found
            except (GpuError, OSError) as error:
                why = str(error)
    notices.append(f"nvidia-smi shows whole devices also inside environments: {why}.")
    return None


def acquire(descriptor: int | None) -> Powers:
    """Return what this daemon may do; ``descriptor`` is the line that its parent has left.

    Raises
    ------
    Unavailable
        There is a line, and no helper comes.
    """
    if descriptor is None:
        return Powers()
    try:
        return connect(descriptor)
    except HelperGone as error:
        raise Unavailable(
            f"The GPU broker of this host cannot start: {error}.",
            hint="Its log says why the root helper has ended.",
        ) from error


def watch(core: Core, lock: threading.RLock, leave: Callable[[], object]) -> None:
    """Say what is missing, now and whenever that changes; leave when the parent has."""
    if not isinstance(core.powers, HelperPowers):
        core.notices.append(AS_ROOT if os.getuid() == 0 else ALONE)
        return

    def change(there: bool) -> None:
        log.log(logging.INFO if there else logging.ERROR, "root helper: %s", there or "gone")
        with lock:
            if GONE in core.notices:
                core.notices.remove(GONE)
            if not there:
                core.notices.append(GONE)

    def orphaned() -> None:
        log.error("the parent process has ended, and with it goes this broker")
        leave()

    client = core.powers.client
    client.on_change, client.on_orphaned = change, orphaned
    if client.orphaned:  # in the meantime
        orphaned()
