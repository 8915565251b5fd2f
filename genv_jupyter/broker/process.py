"""The broker as a process: take the name, open the ledger, serve, leave when nobody needs it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from genv_jupyter import __version__
from genv_jupyter.api import rendezvous
from genv_jupyter.api.doors import LocalDoor, Verbs, user_name
from genv_jupyter.api.handlers import application
from genv_jupyter.api.http import MAX_HEAD, Connection, Left
from genv_jupyter.broker import directories, failpoints
from genv_jupyter.broker.config import BrokerConfig
from genv_jupyter.broker.events import Listener, Publisher
from genv_jupyter.broker.fair import FairPool
from genv_jupyter.broker.name import BACKLOG, take
from genv_jupyter.broker.pace import Pace
from genv_jupyter.broker.patience import PatientPool
from genv_jupyter.broker.service import Broker
from genv_jupyter.broker.turn_desk import TurnDesk
from genv_jupyter.devices.source import open_source
from genv_jupyter.errors import GpuError, Unavailable
from genv_jupyter.isolation import processes
from genv_jupyter.isolation.smi.install import install
from genv_jupyter.ledger.live import LiveLedger
from genv_jupyter.ledger.records import RecordsLedger
from genv_jupyter.model import Principal

T = TypeVar("T")
log = logging.getLogger("genv_jupyter.broker")
TICK = 1.0
LEAVE_SECONDS = 2.0
MOST_STRANGERS = 8
STRANGER_SECONDS = 2.0
PATIENT = 16
"""Threads for verbs that may wait: as many devices may have their daemons started at once."""


class Process:
    """One running broker; that of a user, unless a derived class says otherwise.

    Parameters
    ----------
    sock
        The bound, listening socket.
    idle_seconds
        Leave after that long without environments, servers, listeners and calls.
    """

    door: type[Verbs] = LocalDoor
    of_one = PATIENT
    """How many of the threads for verbs that may wait one user may have at once."""

    def __init__(self, broker: Broker, sock: socket.socket, idle_seconds: float) -> None:
        self.broker = broker
        self.sock = sock
        self.idle_seconds = idle_seconds
        # One thread: the verbs take turns anyway, and SQL stays off the event loop.
        self.pool = FairPool()
        # Those that wait for a program (MPS), for a verb that does, or for the host's answer who
        # somebody is, wait elsewhere.
        self.patient = PatientPool(PATIENT, self.of_one)
        uid = os.getuid()
        owner = Principal(realm="local", id=str(uid), name=user_name(uid))
        self.publisher = Publisher(broker, self._in_pool, owner)
        self.last_call = time.monotonic()
        self.leaving = asyncio.Event()
        self.woken = threading.Event()
        self.turns = TurnDesk(broker)
        self.pace = Pace(broker, lambda: self.publisher.watched)
        self.server = application(self, self.door)
        self.strangers = 0

    # -- what the handlers need -----------------------------------------------------------------

    async def run(
        self, verb: Callable[[], T], *, patient: bool = False, asks: bool = False, who: str = ""
    ) -> T:
        """Run a verb, then tell the listeners."""
        self.last_call = time.monotonic()
        try:
            if asks or (patient and self.broker.fences):
                result = await self.patient.run(verb, who)
            else:
                result = await self.pool.run(verb, who)
        finally:
            self.publisher.nudge()
            if self.broker.books.tickets:
                self.woken.set()
        failpoints.reach("before_answer")
        return result

    async def stream(self, handler: Verbs, server: str | None, since: int | None) -> None:
        """Write events to a caller until it leaves."""
        listener = await self.publisher.listen(server, since, handler.caller)
        closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        connection = handler.connection
        connection.begin(
            "application/jsonlines", lambda: None if closed.done() else closed.set_result(None)
        )
        try:
            with contextlib.suppress(Left):  # no error of ours
                await self._tell(connection, listener, closed)
        finally:
            self.publisher.forget(listener)

    async def _tell(
        self, connection: Connection, listener: Listener, closed: asyncio.Future[None]
    ) -> None:
        while not closed.done():
            waiting = asyncio.ensure_future(listener.queue.get())
            either: list[asyncio.Future[Any]] = [waiting, closed]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            line = waiting.result() if waiting.done() else None
            if line is None:
                waiting.cancel()
                return
            await connection.send(line)

    async def turn(
        self, handler: Verbs, environment: str, since: float | None, timeout: float | None
    ) -> None:
        """Tell a caller of its turn until that is over."""

        async def devices() -> tuple[str, ...]:
            return await self._in_pool(
                lambda: self.broker.turn_devices(handler.caller, environment)
            )

        self.last_call = time.monotonic()
        pid = handler.peer_pid()
        await self.turns.serve(handler, environment, devices, pid=pid, since=since, timeout=timeout)

    def leave(self, version: str) -> bool:
        """Make way for a newer version."""
        if rendezvous.version_key(version) <= rendezvous.version_key(__version__):
            return False
        log.info("leaving for version %s", version)
        self.leaving.set()
        return True

    # -- life -----------------------------------------------------------------------------------

    async def serve(self, ready: Callable[[], None]) -> None:
        """Serve until a signal, a newer version, or nobody is left."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.leaving.set)
        self._opened()
        server = await asyncio.start_server(
            self._welcome, sock=self.sock, limit=MAX_HEAD, backlog=BACKLOG
        )
        publishing = asyncio.create_task(self.publisher.serve())
        stop = threading.Event()
        for rounds in (
            lambda: self._tick(loop, stop),
            lambda: self._tick_mps(stop),
            lambda: self._tick_rules(stop),
            lambda: self._tick_queue(loop, stop),
        ):
            threading.Thread(target=rounds, daemon=True).start()
        # What was imported stays: looking through it for garbage would stop everybody for 50 ms.
        gc.collect()
        gc.freeze()
        ready()
        await self.leaving.wait()
        server.close()
        publishing.cancel()
        stop.set()
        await self._closing()
        self.patient.shutdown()
        self.pool.shutdown()
        self.broker.close()

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve the owner. Strangers reach an abstract name too: a few at a time, not for long."""
        if processes.peer(writer.get_extra_info("socket"))[1] == os.getuid():
            await self.server.serve(reader, writer)
        elif self.strangers < MOST_STRANGERS:
            self.strangers += 1
            try:  # is told in words whom we serve
                async with asyncio.timeout(STRANGER_SECONDS):
                    await self.server.serve(reader, writer)
            except TimeoutError:
                pass
            finally:
                self.strangers -= 1
        else:
            writer.close()

    def _tick(self, loop: asyncio.AbstractEventLoop, stop: threading.Event) -> None:
        while not stop.wait(TICK):
            try:
                self.broker.tick(read=self.pace.due())
            except Exception:
                log.exception("a round of housekeeping failed; the next one follows")
            if stop.is_set():
                return
            loop.call_soon_threadsafe(self.publisher.nudge)
            if self._unneeded():
                log.info("leaving: nobody needs a broker")
                loop.call_soon_threadsafe(self.leaving.set)
                return

    def _tick_queue(self, loop: asyncio.AbstractEventLoop, stop: threading.Event) -> None:
        """Serve those who wait, after every verb and once a second; a fence may take its time."""
        while True:
            self.woken.wait(TICK)
            if stop.is_set():
                return
            self.woken.clear()
            try:
                self.broker.queue.round()
            except Exception:
                log.exception("a round of the queue failed; the next one follows")
            if self.broker.books.tickets:
                loop.call_soon_threadsafe(self.publisher.nudge)

    def _tick_mps(self, stop: threading.Event) -> None:
        """Look after MPS: beside the other rounds, since its programs may hang for seconds."""
        rounds: Callable[[], None] = self.broker.core.mps.adopt
        while not stop.is_set():
            try:
                rounds()
            except Exception:
                log.exception("a round over the MPS daemons failed; the next one follows")
            rounds = self.broker.tick_mps
            stop.wait(TICK)

    def _tick_rules(self, stop: threading.Event) -> None:
        """Judge and act: beside the other rounds, since whoever is ended is taken off MPS first."""
        while not stop.wait(TICK):
            try:
                self.broker.tick_rules()
            except Exception:
                log.exception("a round of the rules failed; the next one follows")

    def _unneeded(self) -> bool:
        quiet = time.monotonic() - self.last_call > self.idle_seconds
        return quiet and not self.publisher.listeners and self.broker.idle()

    def _opened(self) -> None:
        """Begin with what comes with serving."""

    async def _closing(self) -> None:
        """End what is open, while verbs can still be answered."""
        await self.server.close(LEAVE_SECONDS)

    async def _in_pool(self, verb: Callable[[], T]) -> T:
        return await self.pool.run(verb)


def main(*, replace: bool, idle_seconds: float) -> int:
    """Run a user broker; the first line on stdout says how it went."""
    os.umask(0o077)  # whatever it writes, its log included, is this user's alone
    _raise_limit()
    try:
        sock = take(replace)
        if sock is None:
            _say({"ready": True, "started": False})
            return 0
        simulate = os.environ.get("GENV_JUPYTER_SIMULATE", "")
        directory = directories.live_directory(simulate)
        held = directories.lock(directory)
        source = open_source(simulate)
        ledger = LiveLedger(directory / "ledger.sqlite")
        config = BrokerConfig.user()
        notices = [f"A setting is left at its default: {said}" for said in config.problems]
        records = _records(simulate, notices)
        broker = Broker(ledger, source, records=records, mps=directory / "mps", config=config)
        broker.core.programs = _programs(directory, notices)
        broker.core.notices.extend(notices)
    except GpuError as error:
        _say(error.payload())
        return 1
    except OSError as error:
        _say(
            Unavailable(
                f"The GPU broker cannot use its files: {error}.",
                hint="Make room or give yourself access there, or set GENV_JUPYTER_HOME to "
                "another directory.",
            ).payload()
        )
        return 1
    _log_to(directory / "broker.log")
    log.info("version %s, pid %d, ledger %s", __version__, os.getpid(), directory)

    async def serve() -> None:
        process = Process(broker, sock, idle_seconds)
        await process.serve(ready=lambda: _say({"ready": True, "started": True}))

    asyncio.run(serve())
    os.close(held)
    return 0


def _raise_limit() -> None:
    """Allow as many open connections as the host does: sidebars keep theirs open."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _records(simulate: str, notices: list[str]) -> RecordsLedger | None:
    """Open the records; without them the broker still works, and says so."""
    try:
        records = RecordsLedger(directories.records_path(simulate))
        notices.extend(records.open())
    except (GpuError, OSError) as error:
        notices.append(f"No history is kept: {error}")
        return None
    return records


def _programs(directory: Path, notices: list[str]) -> str | None:
    """Write the environments' ``nvidia-smi``; without it NVIDIA's own runs, and we say so."""
    try:
        where = install(directories.private(directory / "bin"), rendezvous.address())
        why = f"no program can be run from {directory}"
    except (GpuError, OSError) as error:
        where, why = None, str(error)
    if where is None:
        notices.append(f"nvidia-smi shows whole devices also inside environments: {why}.")
    return where


def _say(answer: dict[str, Any]) -> None:
    """Write the first line, and hand standard output back."""
    with contextlib.suppress(BrokenPipeError):  # who started us was interrupted; others need us
        os.write(1, f"{json.dumps(answer)}\n".encode())
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.close(null)


def _log_to(path: Path) -> None:
    from logging.handlers import RotatingFileHandler

    handler = RotatingFileHandler(path, maxBytes=2**20, backupCount=1, delay=True)
    logging.basicConfig(
        level=logging.INFO, handlers=[handler], format="%(asctime)s %(levelname)s %(message)s"
    )
