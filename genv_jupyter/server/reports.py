"""What this process tells the broker of its kernels, and tells again when the broker was gone."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar

from msgspec import UNSET, UnsetType

from genv_jupyter.api.client import Client
from genv_jupyter.errors import BrokerDown, GpuError, UnknownEnvironment, UnknownServer
from genv_jupyter.events import Event
from genv_jupyter.isolation.environ import VISIBLE, revision_of
from genv_jupyter.model import Applied, Cuda, Environment, KernelReport, KernelState, Request
from genv_jupyter.server.relay import REPORT_SECONDS, Link
from genv_jupyter.server.variables import attached, granted
from genv_jupyter.server.workers import Lanes, Workers

LEAVE_SECONDS = 2.0
"""For which the end of a process waits until it is taken off MPS."""

T = TypeVar("T")
Environ = Mapping[str, str | None]


@dataclasses.dataclass(eq=False)
class Kernel:
    """A kernel of this process, as the broker is to know it.

    ``launch`` is the number of the present start: it only ever grows for one id, also over
    processes that know nothing of each other. ``pid`` is ``None`` while a start is under way.
    ``variables`` is what the process has, as far as is known here; ``environ`` what its
    environment says it should have, when the broker was last heard of it; ``started`` what it said
    of that when the process began with it.
    """

    id: str
    launch: int = 0
    pid: int | None = None
    path: str | None = None
    state: KernelState = "starting"
    idle_since: datetime | None = None
    since: datetime | None = None
    pool: str | None = None
    unattached: Literal["hide", "all"] = "hide"
    previous: str | None = None
    variables: Environ | None = None
    environ: Environ | None = None
    started: Environ | None = None

    def next_launch(self) -> None:
        """Begin another start."""
        self.launch = max(self.launch + 1, int(time.time() * 1000))
        self.pid = None
        self.become("starting")

    def become(self, state: KernelState) -> None:
        """Note that its state is another one now."""
        if state != self.state or self.since is None:
            self.state, self.since = state, datetime.now(UTC)
            self.idle_since = self.since if state == "idle" else None

    def born(self, pid: int) -> KernelReport:
        """Return what is to be told of the process, once it is there."""
        return self.report(
            phase="running",
            pid=pid,
            revision=revision_of(self.started),
            visible=UNSET if self.started is None else self.started.get(VISIBLE),
        )

    def report(self, **more: Any) -> KernelReport:
        """Return what is to be told of this kernel now."""
        return KernelReport(
            launch=self.launch,
            path=self.path,
            kernel_state=self.state,
            idle_since=self.idle_since,
            kernel_state_since=self.since,
            pool=self.pool,
            unattached=self.unattached,
            **more,
        )


@dataclasses.dataclass(frozen=True)
class Started:
    """Answer of a kernel's start: its environment, and why it did not get what it asks for."""

    environment: Environment
    refusal: GpuError | None = None


class Reports:
    """The kernels of this process, reported in order and off every event loop.

    Parameters
    ----------
    on_event, on_lost
        Called with every event of the broker, and when it is gone, in the link's thread.
    on_stale
        Called (in a worker's thread) with a kernel and the variables it should have, when it was
        started with others.
    """

    def __init__(
        self,
        log: logging.Logger,
        *,
        on_event: Callable[[Event], None],
        on_lost: Callable[[], None],
        on_stale: Callable[[str, Environ], None],
    ) -> None:
        self.link = Link(resync=self._resync, on_event=self._take, on_lost=on_lost, log=log)
        self.log = log
        self.kernels: dict[str, Kernel] = {}
        self._on_event = on_event
        self._on_stale = on_stale
        self._ended: dict[str, int] = {}
        self._workers = Workers(2, "genv-jupyter-report")
        self._lanes = Lanes(self._workers)
        self._closing = False

    # -- a kernel's life ------------------------------------------------------------------------

    def starting(
        self, kernel: Kernel, request: Request | None, abandoned: threading.Event
    ) -> Future[Started]:
        """Tell of a start before the process exists; attach what its kernelspec asks for.

        Once ``abandoned`` is set nobody waits for the answer, and nothing is attached any more.
        """
        self.kernels[kernel.id] = kernel
        self._ended.pop(kernel.id, None)
        report = kernel.report(phase="starting", previous=kernel.previous)

        def job() -> Started:
            self.link.wait(REPORT_SECONDS)
            environment = self._tell(kernel.id, report)
            if request is None or attached(environment.environ) or abandoned.is_set():
                return Started(environment)
            try:
                return Started(self.link.reports.attach(kernel.id, request, cuda="not_initialized"))
            except GpuError as refusal:
                return Started(environment, refusal)

        return self._lanes.submit(kernel.id, job)

    def running(self, kernel: Kernel, pid: int) -> Future[None]:
        """Tell that the process exists now."""
        self.kernels[kernel.id] = kernel
        kernel.pid = pid
        report = kernel.born(pid)
        return self._lanes.submit(
            kernel.id, lambda: self._compare(kernel, self._tell(kernel.id, report))
        )

    def restarting(self, kernel: Kernel, died: int | None = None) -> Future[Environment]:
        """Tell that the process is about to be replaced; ``died``: with which status by itself."""
        kernel.pid = None
        kernel.become("restarting")
        report = kernel.report(phase="restarting", died=died)
        return self._lanes.submit(kernel.id, lambda: self._tell(kernel.id, report))

    def not_started(self, kernel: Kernel, error: Exception) -> Future[Environment]:
        """Tell that a restart has failed; the grants wait for another. Again is the same."""
        kernel.become("dead")
        report = kernel.report(failure=str(error) or type(error).__name__)
        return self._lanes.submit(kernel.id, lambda: self._tell(kernel.id, report))

    def leaving(self, kernel: Kernel) -> Future[Environment]:
        """Have a process taken off MPS that is about to be ended."""

        def job() -> Environment:
            # One of its own: the link must not be doubted where MPS takes its time.
            client = Client(start=False, timeout=LEAVE_SECONDS)
            try:
                return client.leave(kernel.id)
            finally:
                client.close()

        return self._lanes.submit(f"leave {kernel.id}", job)

    def ended(self, kernel: Kernel) -> Future[None]:
        """Tell that a kernel is gone for good; again is nothing."""
        self.kernels.pop(kernel.id, None)
        self._ended[kernel.id] = kernel.launch
        return self._lanes.submit(kernel.id, lambda: self._end(self.link.reports, kernel.id))

    def changed(self, kernel: Kernel) -> None:
        """Tell a kernel's state and path, unless a start or its end tells for itself."""

        def job() -> None:
            if kernel.pid is not None and self.kernels.get(kernel.id) is kernel:
                self._tell(kernel.id, kernel.report())

        self._lanes.submit(kernel.id, job)

    def applied(
        self,
        kernel: Kernel,
        launch: int,
        applied: Applied | None,
        cuda: Cuda | None,
        *,
        revision: int | None = None,
        visible: str | UnsetType | None = UNSET,
    ) -> Future[Environment]:
        """Tell what was applied in the process of one launch, and what was read back there."""
        report = KernelReport(
            launch=launch, applied=applied, cuda=cuda, revision=revision, visible=visible
        )
        return self._lanes.submit(kernel.id, lambda: self._tell(kernel.id, report))

    def learn(self, environment: Environment) -> None:
        """Keep what a kernel should have: it is what a restart falls back on."""
        kernel = self.kernels.get(environment.id)
        if kernel is not None and environment.environ is not None:
            kernel.environ = environment.environ

    def close(self) -> Future[None]:
        """Leave now, or, where kernels are still to be ended, with the end of the last one."""
        self._closing = True
        self.link.close()
        return self._lanes.submit("", self._leave_if_last)

    # -- telling --------------------------------------------------------------------------------

    def _tell(self, kernel: str, report: KernelReport, client: Client | None = None) -> Environment:
        teller = client or self.link.reports
        told = self._reach(teller, lambda: teller.report_kernel(self.link.id, kernel, report))
        self.learn(told)
        return told

    def _take(self, event: Event) -> None:
        for environment in event.environments:
            self.learn(environment)
        self._on_event(event)

    def _reach(self, client: Client, verb: Callable[[], T]) -> T:
        """Call the broker; register again where it has forgotten this process."""
        try:
            try:
                return verb()
            except UnknownServer:
                self.link.register(client)
                return verb()
        except BrokerDown:
            self.link.suspect()
            raise

    def _end(self, client: Client, kernel: str) -> None:
        launch = self._ended.get(kernel)
        if launch is not None:
            # Told outside the kernel's lane too: one that was started again since must live on.
            self._reach(client, lambda: client.end_kernel(self.link.id, kernel, launch))
            if self._ended.get(kernel) == launch:
                del self._ended[kernel]
        self._leave_if_last()

    def _leave_if_last(self) -> None:
        if self._closing and not self.kernels:
            self.link.leave()
            self._workers.close()

    def _compare(self, kernel: Kernel, environment: Environment) -> None:
        """Have a kernel put right that was started with other devices than it holds now.

        It was started while the broker did not answer, or its grants changed between our question
        and the birth of the process.
        """
        environ, has = environment.environ, kernel.variables
        if environ is None or has is None or not (attached(environ) or attached(has)):
            return
        if any(has.get(name) != value for name, value in granted(environ).items()):
            self._on_stale(kernel.id, environ)

    # -- telling again --------------------------------------------------------------------------

    def _resync(self, client: Client) -> None:
        for ended in list(self._ended):
            self._end(client, ended)
        for kernel in list(self.kernels.values()):
            if kernel.pid is not None:  # a start under way tells for itself
                self._tell_again(client, kernel)

    def _tell_again(self, client: Client, kernel: Kernel) -> None:
        try:
            known = client.environment(kernel.id)
        except UnknownEnvironment:
            known = None
        pid = kernel.pid
        same = known is not None and known.pid == pid and known.state not in ("held", "reserved")
        report = kernel.report() if same or pid is None else kernel.born(pid)
        try:
            self._compare(kernel, self._tell(kernel.id, report, client))
        except BrokerDown:
            raise
        except GpuError as error:
            # Such as a process that died this moment: its restart or its end tells for itself.
            self.log.info("Kernel %s and the GPU broker: %s", kernel.id, error)
