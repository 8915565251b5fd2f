"""Clients of MPS that the driver's lists leave out: in a container it may list nobody.

Our daemons name their clients by pids that mean something here. How much each holds they do not
say, so that stays unknown; that a process is there is known.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from genv_jupyter.broker.posts import post_of
from genv_jupyter.isolation import processes
from genv_jupyter.isolation.mps import Daemons, Post
from genv_jupyter.isolation.mps_control import MpsError

if TYPE_CHECKING:
    from genv_jupyter.broker.core import Core

log = logging.getLogger(__name__)

APART = 10.0
"""Seconds between two questions: each is a program or two."""


class Unlisted:
    """Asks for clients where the driver lists no process of an MPS grant.

    Attributes
    ----------
    found
        Start ticks of each client, by device and pid.
    """

    def __init__(self, daemons: Daemons) -> None:
        self.daemons = daemons
        self.found: dict[str, dict[int, int]] = {}
        self._next: dict[Post, float] = {}

    def look(self, core: Core, lock: threading.RLock) -> None:
        """Ask where it is due; called without the lock, since it runs programs."""
        with lock:
            posts = _silent(core)
        now, running = self.daemons.steady(), set(self.daemons.running())
        self._next = {post: due for post, due in self._next.items() if post in posts}
        kept = {post.device for post in posts}
        found = {device: them for device, them in self.found.items() if device in kept}
        for post in posts & running:
            if now < self._next.get(post, 0.0):
                continue
            self._next[post] = now + APART
            try:
                clients = self.daemons.control(post).clients()
            except MpsError as error:
                log.info("clients of MPS on %s are not known: %s", post.device, error)
                continue
            starts = {pid: processes.start_of(pid) for pid in clients}
            found[post.device] = {pid: it for pid, it in starts.items() if it is not None}
        with lock:
            self.found = found


def _silent(core: Core) -> set[Post]:
    """Return the posts on whose devices the driver lists none of an environment's processes."""
    found: set[Post] = set()
    for uuid, grants in core.books.on_device.items():
        usage = core.usage.get(uuid)
        if usage is None or usage.listed:
            continue
        posts = (post_of(grant) for grant in grants.values() if grant.state == "granted")
        found |= {post for post in posts if post is not None}
    return found
