"""The event stream of a server: one from the broker, any number to browsers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from genv_jupyter.events import Event, Figures
from genv_jupyter.leftovers import Leftover
from genv_jupyter.model import BrokerHealth, Device, Environment, EnvironmentUsage, QueueTicket
from genv_jupyter.notices import Notice

BACKLOG = 256
"""Messages that a listener may leave unread before it is cut off."""


class Listener(Protocol):
    """An open WebSocket."""

    def send(self, text: str) -> None:
        """Send a message."""

    def end(self) -> None:
        """Close."""


class Hub:
    """Keeps the last known state, so that a new listener gets its snapshot without the broker.

    Parameters
    ----------
    on_watch
        Called with whether anybody listens, when that may have changed.

    Attributes
    ----------
    figures
        What the broker has counted, as last heard; browsers are not told.
    """

    def __init__(self, on_watch: Callable[[bool], None] = lambda watched: None) -> None:
        self._on_watch = on_watch
        self._listeners: set[Listener] = set()
        self._revision: int | None = None
        self._devices: dict[str, Device] = {}
        self._environments: dict[str, Environment] = {}
        self._usage: dict[str, EnvironmentUsage] = {}
        self._health: BrokerHealth | None = None
        self._notices: tuple[Notice, ...] = ()
        self._leftovers: tuple[Leftover, ...] = ()
        self._queue: tuple[QueueTicket, ...] = ()
        self.figures: Figures | None = None

    @property
    def known(self) -> bool:
        """Whether the broker is heard, and so the state is the present one."""
        return self._revision is not None

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices as last heard of."""
        return tuple(self._devices.values())

    @property
    def environments(self) -> tuple[Environment, ...]:
        """The environments as last heard of."""
        return tuple(self._environments.values())

    @property
    def queue(self) -> tuple[QueueTicket, ...]:
        """The queue as last heard of."""
        return self._queue

    def join(self, listener: Listener, since: int | None) -> None:
        """Add a listener; it gets a snapshot unless it has seen the last change."""
        if self._revision is not None and since != self._revision:
            listener.send(_text(self._snapshot(self._revision)))
        self._listeners.add(listener)
        self._on_watch(True)

    def leave(self, listener: Listener) -> None:
        """Forget a listener."""
        self._listeners.discard(listener)
        self._on_watch(bool(self._listeners))

    def lose(self) -> None:
        """The broker is gone: listeners are ended, so that they ask why, and come again."""
        self._revision = None
        self.close()

    def close(self) -> None:
        """End all listeners."""
        for listener in list(self._listeners):
            listener.end()

    def publish(self, event: Event) -> None:
        """Take in an event and pass it on, less what is meant for this server alone."""
        if event.snapshot:
            self._devices.clear()
            self._environments.clear()
            self._usage.clear()
        self._revision = event.revision
        self._devices.update((device.uuid, device) for device in event.devices)
        self._environments.update((row.id, row) for row in event.environments)
        self._usage.update((usage.environment, usage) for usage in event.usage)
        for gone in event.removed:
            self._devices.pop(gone, None)
            self._environments.pop(gone, None)
            self._usage.pop(gone, None)
        self._health = event.health or self._health
        if event.notices is not None:
            self._notices = event.notices
        if event.leftovers is not None:
            self._leftovers = event.leftovers
        if event.queue is not None:
            self._queue = event.queue
        self.figures = event.figures or self.figures
        told = event.devices or event.environments or event.usage or event.removed
        lists = (event.notices, event.leftovers, event.queue)
        listed = any(it is not None for it in lists)
        if not (event.snapshot or told or event.health or listed):
            return
        text = _text(msgspec.structs.replace(event, wants=(), figures=None))
        for listener in list(self._listeners):
            listener.send(text)

    def _snapshot(self, revision: int) -> Event:
        return Event(
            revision=revision,
            snapshot=True,
            devices=tuple(self._devices.values()),
            environments=tuple(self._environments.values()),
            usage=tuple(self._usage.values()),
            health=self._health,
            notices=self._notices,
            leftovers=self._leftovers,
            queue=self._queue,
        )


def _text(event: Event) -> str:
    return msgspec.json.encode(event).decode()
