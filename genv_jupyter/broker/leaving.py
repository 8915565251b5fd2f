"""Before a process is ended it is taken off MPS: NVIDIA leaves open what a kill does to the others.

Only where the process will be ended: CUDA works no more in it afterwards (error 810).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable

from genv_jupyter.broker.core import Core
from genv_jupyter.isolation.mps_control import MpsError
from genv_jupyter.ledger.rows import EnvironmentRow

log = logging.getLogger(__name__)

SECONDS = 2.0
"""After which whoever ends the process no longer waits."""


def leave(core: Core, lock: threading.RLock, row: EnvironmentRow) -> int:
    """Take the processes of an environment off MPS; return how many were.

    Called without the lock, since it runs programs.
    """
    daemons = core.mps.daemons
    if daemons is None:
        return 0
    with lock:
        # What runs may have joined before its grant was changed: the clients tell.
        held = [grant.device for grant in core.books.grants_of(row.id)]
        posts = [post for post in daemons.running() if post.device in held]
    until, left = time.monotonic() + SECONDS, 0
    for post in posts:
        control = daemons.control(post)
        try:
            clients = control.clients()
            with lock:
                own = [pid for pid in clients if core.attribution.environment_of(pid) == row.id]
            for pid in own:
                if time.monotonic() < until:
                    left += control.terminate_client(pid, clients[pid])
        except MpsError as error:
            log.warning("MPS on %s: %s", post.device, error)
    return left


def leave_one(core: Core, devices: Iterable[str], pid: int) -> None:
    """Take one process off MPS on these devices; called without the lock."""
    daemons = core.mps.daemons
    if daemons is None:
        return
    for post in [post for device in devices for post in daemons.running(device)]:
        control = daemons.control(post)
        try:
            clients = control.clients()
            if pid in clients:
                control.terminate_client(pid, clients[pid])
        except MpsError as error:
            log.warning("MPS on %s: %s", post.device, error)
