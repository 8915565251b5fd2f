"""What the daemon of a host may do to users' processes: itself, by its root helper, or not at all.

Whatever is missing is said in words where everybody looks (`jupyter gpu doctor`).
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

from genv_jupyter.broker.core import Core
from genv_jupyter.errors import Unavailable
from genv_jupyter.isolation.powers import Powers
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
