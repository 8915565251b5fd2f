"""From changes in the books to every listener: viewers cost bytes, not readings."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

import msgspec

from genv_jupyter.broker.service import Broker
from genv_jupyter.events import Event, Figures
from genv_jupyter.model import Principal

T = TypeVar("T")
log = logging.getLogger(__name__)
Kind = tuple[Principal, str | None]
"""Listeners of one kind are told the same: whose they are, and the server they listen as."""
BACKLOG = 256
COALESCE = 0.02
"""Seconds for which changes are gathered into one message."""


class Run(Protocol):
    """Runs a call off the event loop."""

    async def __call__(self, verb: Callable[[], T]) -> T: ...


class Listener:
    """One open stream of somebody.

    ``server`` narrows devices to its pool, and brings what is wanted of it.
    """

    def __init__(self, server: str | None, principal: Principal) -> None:
        self.kind: Kind = (principal, server)
        self.principal = principal
        self.queue: asyncio.Queue[bytes | None] = asyncio.Queue(BACKLOG)

    def put(self, line: bytes) -> None:
        """Add a message; one who does not read is cut off, and will ask for a snapshot."""
        try:
            self.queue.put_nowait(line)
        except asyncio.QueueFull:
            while not self.queue.empty():
                self.queue.get_nowait()
            self.queue.put_nowait(None)


class Publisher:
    """Sends what has changed to all listeners.

    Parameters
    ----------
    run
        Runs a call off the event loop.
    principal
        As whom listeners see environments who do not say who they are: on a user's broker all are
        that user.
    """

    def __init__(
        self,
        broker: Broker,
        run: Run,
        principal: Principal,
    ) -> None:
        self.broker = broker
        self.run = run
        self.principal = principal
        self.listeners: set[Listener] = set()
        self._figures: dict[Kind, Figures] = {}
        self._nudged = asyncio.Event()

    @property
    def watched(self) -> bool:
        """Whether somebody looks: a server without a browser listens for its kernels alone."""
        unwatched = self.broker.core.unwatched
        return any(listener.kind[1] not in unwatched for listener in list(self.listeners))

    def nudge(self) -> None:
        """Say that something may have changed."""
        self._nudged.set()

    async def listen(
        self, server: str | None, since: int | None, principal: Principal | None = None
    ) -> Listener:
        """Open a stream; it begins with a snapshot unless nothing has changed since."""
        listener = Listener(server, principal or self.principal)
        snapshot = await self.run(lambda: self._snapshot(listener.kind))
        if server is not None:
            await self.run(lambda: self.broker.renew_wants(server, listener.principal))
        if since != snapshot.revision:
            listener.put(encode(snapshot))
            if snapshot.figures is not None:
                self._figures.setdefault(listener.kind, snapshot.figures)
        self.listeners.add(listener)
        self.nudge()
        return listener

    def forget(self, listener: Listener) -> None:
        """Close a stream."""
        self.listeners.discard(listener)

    async def serve(self) -> None:
        """Publish until cancelled."""
        while True:
            await self._nudged.wait()
            await asyncio.sleep(COALESCE)
            self._nudged.clear()
            if self.listeners:
                try:
                    await self.publish()
                except Exception:
                    # Without this task nobody would ever hear of a change again.
                    log.exception("a change could not be told; the next one follows")

    async def publish(self) -> None:
        """Send what has changed, and to each server what is wanted of it."""
        kinds = {listener.kind for listener in self.listeners}
        parts = await self.run(lambda: self._parts(kinds))
        for listener in list(self.listeners):
            if listener.kind not in kinds:
                # It came meanwhile: its snapshot may be older than what was just told.
                listener.put(await self.run(partial(self._late, listener.kind)))
                continue
            line = parts.get(listener.kind)
            if line is not None:
                listener.put(line)

    def _snapshot(self, kind: Kind) -> Event:
        if not self.listeners:
            self.broker.changes_for(())  # missed by nobody, and all in the snapshot
        return self.broker.snapshot(*kind)

    def _late(self, kind: Kind) -> bytes:
        return encode(self.broker.snapshot(*kind))

    def _parts(self, kinds: set[Kind]) -> dict[Kind, bytes]:
        """Return the message for each kind of listener; nothing where nothing changed."""
        broker = self.broker
        events = broker.changes_for({principal for principal, _ in kinds})
        lines: dict[Kind, bytes] = {}
        figures = self._new_figures(kinds)
        for principal, server in kinds:
            counted = figures.get((principal, server))
            wants = () if server is None else broker.take_wants(server, principal)
            event = events.get(principal)
            if event is None and counted is None and not wants:
                continue
            whole = event or Event(revision=broker.books.revision)
            pool = broker.pool_uuids(server, principal)
            devices = tuple(device for device in whole.devices if device.uuid in pool)
            known = whole.environments or whole.usage or whole.removed or whole.health
            lists = (whole.notices, whole.leftovers, whole.queue)
            listed = counted is not None or any(it is not None for it in lists)
            if not (devices or known or wants or listed):
                continue  # all that changed is outside its pool
            lines[principal, server] = encode(
                msgspec.structs.replace(whole, devices=devices, wants=wants, figures=counted)
            )
        return lines

    def _new_figures(self, kinds: set[Kind]) -> dict[Kind, Figures]:
        """Return what was counted, for the servers that have not heard it."""
        figures, told = self.broker.figures(), self._figures
        self._figures = {kind: figures for kind in kinds if kind[1] is not None}
        return {kind: figures for kind in self._figures if told.get(kind) != figures}


def encode(event: Event) -> bytes:
    """Write an event as one line of JSON."""
    return msgspec.json.encode(event) + b"\n"
