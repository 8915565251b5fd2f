"""The link of one process to the broker: registered, listening, and never in the way.

Everything that talks to the broker runs in threads of its own with time limits, so a broker that
hangs or is gone costs its callers a few seconds and an error that says so, and Jupyter nothing.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TypeVar

import msgspec

from genv_jupyter import __version__
from genv_jupyter.api.client import Client
from genv_jupyter.api.connection import Clicks, EventStream
from genv_jupyter.errors import BrokerDown, GpuError
from genv_jupyter.events import Event
from genv_jupyter.model import ServerReport
from genv_jupyter.reserving import RESERVATION
from genv_jupyter.server.workers import Workers

T = TypeVar("T")

CALL_SECONDS = 10.0
"""For one verb that a user waits for."""

REPORT_SECONDS = 1.5
"""For one report, and for the broker to appear before it: a kernel start waits for no longer."""

VERB_WAIT = 5.0
"""Seconds that a user's verb waits for a broker that is being started."""

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 30.0


class Link:
    """Keeps this process registered with the broker, and its event stream open.

    Parameters
    ----------
    resync
        Called with a client after every registration, in the link's thread: tells all there is.
    on_event
        Called with every event, in the link's thread.
    on_lost
        Called when the broker is gone, in the link's thread.
    """

    def __init__(
        self,
        *,
        resync: Callable[[Client], None],
        on_event: Callable[[Event], None],
        on_lost: Callable[[], None],
        log: logging.Logger,
    ) -> None:
        self.id = str(uuid.uuid4())
        self.pool = os.environ.get("CUDA_VISIBLE_DEVICES")
        self.log = log
        self.trouble: GpuError | None = None
        self.watched = False
        self._resync = resync
        self._on_event = on_event
        self._on_lost = on_lost
        self._registered = threading.Event()
        self._closing = threading.Event()
        self._stream: EventStream | None = None
        self._thread: threading.Thread | None = None
        self._said = ""
        self._driver: str | None = None
        self._workers = Workers(4, "genv-jupyter-call")
        self._calls = Client(start=False, timeout=CALL_SECONDS)
        self.reports = Client(start=False, timeout=REPORT_SECONDS)

    # -- life -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to connect, in the background; again is nothing."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._keep, name="genv-jupyter-link", daemon=True
            )
            self._thread.start()

    def close(self) -> None:
        """Stop listening; calls still work."""
        self._closing.set()
        self._hang_up()

    def leave(self) -> None:
        """Tell the broker that this process starts no more kernels. Blocks, for a short while."""
        self.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            # A registration under way would come after the farewell, or start a broker for it.
            self._thread.join(REPORT_SECONDS)
        with contextlib.suppress(GpuError):  # it will see that the process has ended
            self.reports.end_server(self.id)
        self._workers.close()

    def wait(self, seconds: float) -> None:
        """Wait in a thread until this process is registered.

        Raises
        ------
        GpuError
            The broker is not there; the last attempt's error says why.
        """
        self.start()
        if not self._registered.wait(seconds):
            raise self.trouble or BrokerDown(
                "The GPU broker is not there yet.",
                hint="Try again; `jupyter gpu doctor` says more.",
            )

    def suspect(self) -> None:
        """The broker did not answer: register again as soon as it does."""
        self._registered.clear()
        self._hang_up()

    # -- calls ----------------------------------------------------------------------------------

    def submit(self, job: Callable[[], T]) -> Future[T]:
        """Run a job off the event loop."""
        return self._workers.submit(job)

    def call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        query: Mapping[str, str | None] | None = None,
        actor: Clicks | None = None,
    ) -> Future[tuple[int, bytes]]:
        """Send one request as it is, once the broker is there."""

        def job() -> tuple[int, bytes]:
            self.wait(VERB_WAIT)
            return self._calls.call(method, path, body, query, actor)

        return self.submit(job)

    def watch(self, watched: bool) -> None:
        """Tell the broker whether anybody looks through this server: then it reads often."""
        if watched == self.watched:
            return
        self.watched = watched
        if self._registered.is_set():
            self.submit(self._tell_watched)

    def _tell_watched(self) -> None:
        with contextlib.suppress(GpuError):  # it is told again with the next registration
            self.register(self.reports)

    def register(self, client: Client) -> None:
        """Tell the broker of this process."""
        report = ServerReport(
            pid=os.getpid(),
            version=__version__,
            pool=self.pool,
            name=os.environ.get("JUPYTERHUB_USER"),
            watched=self.watched,
            reservation=os.environ.get(RESERVATION),
        )
        client.register_server(self.id, report)

    # -- the thread -----------------------------------------------------------------------------

    def _keep(self) -> None:
        pause = FIRST_PAUSE
        while not self._closing.is_set():
            try:
                self._session()
                pause = FIRST_PAUSE
            except (GpuError, OSError, msgspec.MsgspecError) as error:
                self._note(error)
            except Exception:
                # Whatever it is, the next attempt may do better; Jupyter must not notice.
                self.log.exception("The link to the GPU broker failed; it is tried again.")
            self._registered.clear()
            self._closing.wait(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    def _session(self) -> None:
        """Register, tell all, and listen until the stream ends."""
        client = Client(timeout=CALL_SECONDS)
        try:
            client.health()  # the client has an older broker replaced, before it is told anything
            self.register(client)
            self._resync(client)
            stream = client.events(server=self.id)
        finally:
            client.close()
        with contextlib.closing(stream):
            self._stream = stream
            self.trouble = None
            if self._said:
                self.log.info("The GPU broker is there again.")
                self._said = ""
            if self._closing.is_set():
                return
            self._registered.set()
            while line := stream.read_line():
                self._take(msgspec.json.decode(line, type=Event))
        self._stream = None
        self._on_lost()

    def _take(self, event: Event) -> None:
        if event.health is not None and event.health.driver != self._driver:
            self._driver = event.health.driver
            self.log.info("GPUs: %s", self._driver or "the driver works.")
        self._on_event(event)

    def _hang_up(self) -> None:
        stream = self._stream
        if stream is not None:
            stream.close()

    def _note(self, error: Exception) -> None:
        """Keep the cause for whoever asks, and say it once in the log."""
        self.trouble = (
            error
            if isinstance(error, GpuError)
            else BrokerDown(f"The GPU broker cannot be reached: {error}.")
        )
        if str(self.trouble) != self._said:
            self._said = str(self.trouble)
            self.log.warning("GPUs are not managed at present: %s", self.trouble)
