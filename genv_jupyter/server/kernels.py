"""The kernels of a Jupyter server: their states, their notebooks, and what the broker wants."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import weakref
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, get_args

from jupyter_core.utils import ensure_async
from jupyter_server import CallContext
from jupyter_server.services.sessions.handlers import SessionHandler
from tornado import web

from genv_jupyter.errors import GpuError
from genv_jupyter.events import Event, Want
from genv_jupyter.isolation.environ import revision_of
from genv_jupyter.model import KernelState
from genv_jupyter.server import restarts
from genv_jupyter.server.applier import Applier, Environ, Outcome
from genv_jupyter.server.events import Hub
from genv_jupyter.server.host import Host, Policy
from genv_jupyter.server.metrics import Metrics
from genv_jupyter.server.reports import Kernel
from genv_jupyter.server.variables import granted
from genv_jupyter.server.workers import heard

COALESCE = 0.1
"""Seconds for which changes of kernels are gathered before they are told."""

RESTART_SECONDS = 10.0
"""For which the server's end waits for restarts under way."""

FAREWELL_SECONDS = 1.0

PATHS_EVERY = 2.0
"""Seconds between looks at the notebooks' paths: a rename has no event."""


class ServerHost(Host):
    """A Jupyter server with the extension."""

    def __init__(self, serverapp: Any, policy: Policy, log: logging.Logger) -> None:
        super().__init__(policy, log)
        self.serverapp = serverapp
        self.hub = Hub(self.reports.link.watch)
        self.metrics = Metrics(self.hub)
        self.applier = Applier(self.manager_of, self._tell, log)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._watching: asyncio.Task[Any] | None = None
        # Not the kernel manager's own list: a kernel joins that when its start is over.
        self._managers: dict[str, Any] = {}
        self._observed: weakref.WeakSet[Any] = weakref.WeakSet()
        self._dirty: set[Kernel] = set()
        self._restarting: set[str] = set()

    # -- life -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Connect, in the background; again is nothing. Needs a running event loop."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self.reports.link.start()
            self.metrics.start()
            self._watching = self._spawn(self._watch_paths())

    async def close(self) -> None:
        """Stop following; ends of kernels are still told, and the last one's is our farewell."""
        if self._watching is not None:
            self._watching.cancel()
        if self._tasks:
            # A restart that is broken off would leave a kernel that Jupyter cannot shut down.
            await asyncio.wait(self._tasks, timeout=RESTART_SECONDS)
        await self.applier.close()
        self.hub.close()
        self.metrics.close()
        self._loop = None
        await heard(self.reports.close(), FAREWELL_SECONDS)

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.log.warning("GPU management: %s", error, exc_info=error)

    # -- what the provisioner tells -------------------------------------------------------------

    def watch(self, kernel: Kernel, manager: Any, *, restarted: bool) -> None:
        self.start()
        self._managers[kernel.id] = manager
        if not manager.has_trait("execution_state"):
            return
        if manager not in self._observed:
            manager.observe(self._state_changed, "execution_state")
            self._observed.add(manager)
        if restarted:
            # The server's own record would stay "busy" where the process died in a cell.
            manager.execution_state = "starting"

    def forget(self, kernel: str) -> None:
        self._managers.pop(kernel, None)
        self.applier.forget(kernel)

    def path_of(self, session: str | None) -> str | None:
        if not session:
            return None
        try:
            return str(Path(session).relative_to(self.serverapp.root_dir))
        except ValueError:
            return Path(session).name

    async def predecessor(self) -> str | None:
        """Return the kernel that a notebook has, while it is being given another.

        Only the request that changes the kernel of a session knows which session that is: its
        name alone may be a console's too.
        """
        handler = CallContext.get(CallContext.JUPYTER_HANDLER)
        if not isinstance(handler, SessionHandler) or handler.request.method != "PATCH":
            return None
        session = handler.path_kwargs.get("session_id", "")
        sessions: Any = handler.session_manager
        try:
            row = await ensure_async(sessions.get_session(session_id=session))
        except web.HTTPError:  # the session ended meanwhile
            return None
        kernel = str(row["kernel"]["id"])
        if row["type"] != "notebook" or self.manager_of(kernel) is None:
            return None
        return kernel

    # -- states and paths -----------------------------------------------------------------------

    def _state_changed(self, change: Any) -> None:
        kernel = self.reports.kernels.get(change.owner.kernel_id)
        if kernel is None:
            return
        state: KernelState = change.new if change.new in get_args(KernelState) else "unknown"
        if state != kernel.state:
            kernel.become(state)
            self._soon(kernel)

    def _soon(self, kernel: Kernel) -> None:
        if not self._dirty and self._loop is not None:
            self._loop.call_later(COALESCE, lambda: self._spawn(self._flush()))
        self._dirty.add(kernel)

    async def _flush(self) -> None:
        dirty, self._dirty = self._dirty, set()
        dirty |= await self._look_at_paths()
        for kernel in dirty:
            self.reports.changed(kernel)

    async def _watch_paths(self) -> None:
        while True:
            await asyncio.sleep(PATHS_EVERY)
            if self.reports.kernels:
                for kernel in await self._look_at_paths():
                    self.reports.changed(kernel)

    async def _look_at_paths(self) -> set[Kernel]:
        """Take in the sessions' paths; return the kernels whose path has changed."""
        changed = set()
        for session in await ensure_async(self.serverapp.session_manager.list_sessions()):
            kernel = self.reports.kernels.get(session["kernel"]["id"])
            path = session["path"] if session["type"] == "notebook" else session["name"]
            if kernel is not None and path and path != kernel.path:
                kernel.path = path
                changed.add(kernel)
        return changed

    # -- what the broker wants ------------------------------------------------------------------

    def on_event(self, event: Event) -> None:
        self._in_loop(lambda: self._dispatch(event))

    def on_lost(self) -> None:
        self._in_loop(self.hub.lose)

    def on_stale(self, kernel: str, environ: Environ) -> None:
        self._in_loop(lambda: self.applier.apply(kernel, environ))

    def _in_loop(self, call: Callable[[], object]) -> None:
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # it was closed this moment
                loop.call_soon_threadsafe(call)

    def _dispatch(self, event: Event) -> None:
        self.hub.publish(event)
        for want in event.wants:
            self._perform(want)

    def _perform(self, want: Want) -> None:
        kernels = self.serverapp.kernel_manager
        kernel = self.reports.kernels.get(want.kernel)
        if want.action == "apply":
            self.applier.apply(want.kernel, want.environ or {})
        elif kernel is None or want.kernel not in kernels:
            self.log.info("Kernel %s is not here any more.", want.kernel)
        elif want.launch not in (None, kernel.launch) or kernel.id in self._restarting:
            return  # it was restarted since, or is just being
        elif want.idle and kernel.state != "idle":
            self.log.info("Kernel %s is at work again: it is left alone.", kernel.id)
        elif want.action == "restart":
            self._restarting.add(kernel.id)
            task = self._spawn(restarts.restart(kernels, kernel, self.reports, self.log))
            task.add_done_callback(lambda _: self._restarting.discard(kernel.id))
        elif want.action == "interrupt":
            self._spawn(restarts.interrupt(kernels, kernel))
        else:
            self._spawn(restarts.shut_down(kernels, kernel, idle=want.idle))

    # -- living kernels -------------------------------------------------------------------------

    def manager_of(self, kernel: str) -> Any:
        """Return the manager of a running kernel of this server that the broker knows."""
        known = self.reports.kernels.get(kernel)
        return self._managers.get(kernel) if known is not None and known.pid is not None else None

    async def _tell(self, kernel: str, environ: Environ, outcome: Outcome) -> Environ | None:
        known = self.reports.kernels.get(kernel)
        if known is None:
            return None
        if outcome.applied == "live" and outcome.revision == revision_of(environ):
            known.variables = granted(environ)
        telling = self.reports.applied(
            known,
            known.launch,
            outcome.applied,
            None if outcome.cuda == "unknown" else outcome.cuda,
            revision=outcome.revision,
            visible=outcome.visible,
        )
        try:
            environment = await asyncio.wrap_future(telling)
        except GpuError as error:
            self.log.info("Kernel %s and the GPU broker: %s", kernel, error)
            return None
        return environment.environ
