"""What the provisioner needs of the process it runs in: a Jupyter server, or any other.

Kernels are also started where no server extension runs (nbclient, ``jupyter run``): then the
process itself is what the broker knows as their server.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import Any

from msgspec import Struct

from genv_jupyter.events import Event, Want
from genv_jupyter.server.reports import Environ, Kernel, Reports

HOST_SETTING = "genv_jupyter_host"
"""Where a Jupyter server's web application keeps its host."""


class Policy(Struct, frozen=True, kw_only=True):
    """What kernels without a grant see, and what they are given (see the provisioner's traits)."""

    unattached: str = "hide"
    on_import: str = "notice"
    auto_attach: str = ""
    default_request: str = "1"
    notebook_requests: bool = False


class Host:
    """A process that starts kernels, without a server around it."""

    def __init__(self, policy: Policy, log: logging.Logger) -> None:
        self.policy = policy
        self.log = log
        self.reports = Reports(
            log, on_event=self.on_event, on_lost=self.on_lost, on_stale=self.on_stale
        )

    def watch(self, kernel: Kernel, manager: Any, *, restarted: bool) -> None:
        """A kernel's process has started."""

    def forget(self, kernel: str) -> None:
        """A kernel's process is gone."""

    def path_of(self, session: str | None) -> str | None:
        """Return what to call a kernel, from Jupyter's name for its session."""
        return session or None

    async def predecessor(self) -> str | None:
        """Return the kernel whose notebook the one that is being started takes over."""
        return None

    def on_event(self, event: Event) -> None:
        """Take an event of the broker (in the link's thread)."""
        for want in event.wants:
            self.refuse(want)

    def on_lost(self) -> None:
        """The broker is gone (in the link's thread)."""

    def on_stale(self, kernel: str, environ: Environ) -> None:
        """A kernel runs with variables that are not its environment's (in a worker's thread)."""

    def refuse(self, want: Want) -> None:
        """Say that nothing can be done inside a running kernel from here."""
        kernel = self.reports.kernels.get(want.kernel)
        if kernel is not None and want.action == "apply":
            self.reports.applied(kernel, kernel.launch, "unknown", None)
        elif kernel is not None:
            self.log.info("Kernel %s: cannot %s it from here.", want.kernel, want.action)


_lock = threading.Lock()
_own: tuple[int, Host] | None = None


def host_of(manager: Any) -> Host:
    """Return the host of a kernel manager: its Jupyter server's, or else this process's."""
    owner = manager
    while owner is not None:
        web_app = getattr(owner, "web_app", None)
        found = web_app.settings.get(HOST_SETTING) if web_app is not None else None
        if isinstance(found, Host):
            return found
        owner = getattr(owner, "parent", None)
    return own_host()


def own_host() -> Host:
    """Return the host of this process where no server is; a forked child has one of its own."""
    global _own
    with _lock:
        if _own is None or _own[0] != os.getpid():
            _own = (os.getpid(), Host(Policy(), logging.getLogger("genv_jupyter.provisioner")))
        return _own[1]
