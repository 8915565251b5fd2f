"""Serves those who wait for a turn: a stream for each, no thread, and a look at locks meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec

from genv_jupyter.broker.service import Broker
from genv_jupyter.broker.turns import Ticket, Turns
from genv_jupyter.errors import GpuError

HEARTBEAT = 5.0
"""Seconds after which one who waits is told again that nothing has changed."""
POLL = 0.1
"""Seconds between two looks at a lock that outlived the broker which gave it."""
SETTLE = 1.0
"""Seconds in which those who waited at an earlier broker come back, before the first turn."""

Devices = Callable[[], Awaitable[tuple[str, ...]]]


class TurnDesk:
    """Keeps the turns of one running broker; made and used on its event loop."""

    def __init__(self, broker: Broker) -> None:
        core = broker.core
        self.loop = asyncio.get_running_loop()
        self.turns = Turns(
            broker.books.ledger.path.parent / "turns",
            core.attribution.environment_of,
            broker.label_of,
            core.clock,
        )
        # Environments in the ledger: there was a broker before this one.
        self.turns.open = not broker.books.environments
        self._opens = self.loop.time() + SETTLE
        self._timer: asyncio.TimerHandle | None = None

    async def serve(
        self,
        handler: Any,
        environment: str,
        devices: Devices,
        *,
        pid: int | None,
        since: float | None,
        timeout: float | None,
    ) -> None:
        """Tell a caller how it stands until its turn is over, or it has left the line.

        ``devices`` are those that its environment shares when it is called.
        """
        first, changed = await devices(), asyncio.Event()
        with self._end_of(handler, pid) as ended:
            ticket = self.turns.enter(environment, first, since, changed.set)
            self._look_again()
            try:
                # The caller has left; or its environment has ended, as it hears when it asks again.
                with contextlib.suppress(ConnectionError, GpuError):
                    await self._tell(handler, ticket, devices, changed, ended, timeout)
            finally:
                self.turns.leave(ticket)
                self._look_again()

    async def _tell(
        self,
        handler: Any,
        ticket: Ticket,
        devices: Devices,
        changed: asyncio.Event,
        ended: asyncio.Future[None],
        timeout: float | None,
    ) -> None:
        deadline = float("inf") if timeout is None else self.loop.time() + timeout
        while not ended.done():
            changed.clear()
            self.turns.move(ticket, await devices())
            self._look_again()
            view = self.turns.view(ticket)
            late = not ticket.yours and self.loop.time() >= deadline
            if late:
                view = msgspec.structs.replace(view, state="late")
            await _either(handler.connection.send(msgspec.json.encode(view) + b"\n"), ended)
            if late:
                return
            if ticket.yours:
                await ended
                return
            left = min(HEARTBEAT, deadline - self.loop.time())
            await _either(changed.wait(), ended, max(0.0, left))

    @contextlib.contextmanager
    def _end_of(self, handler: Any, pid: int | None) -> Iterator[asyncio.Future[None]]:
        """Give what is done when the connection closes or its process ends."""
        ended: asyncio.Future[None] = self.loop.create_future()

        def end() -> None:
            if not ended.done():
                ended.set_result(None)

        handler.connection.begin("application/jsonlines", end)
        try:
            # Children that were forked keep the connection open when its process is dead.
            process = os.pidfd_open(pid) if pid else None
        except OSError:  # it has just ended
            process = None
            end()
        if process is not None:
            self.loop.add_reader(process, end)
        try:
            yield ended
        finally:
            if process is not None:
                self.loop.remove_reader(process)
                os.close(process)

    def _look_again(self) -> None:
        if self.turns.held_up and self._timer is None:
            self._timer = self.loop.call_later(POLL, self._settle)

    def _settle(self) -> None:
        self._timer = None
        self.turns.open = self.turns.open or self.loop.time() >= self._opens
        self.turns.settle()
        self._look_again()


async def _either(what: Any, ended: asyncio.Future[None], timeout: float | None = None) -> None:
    """Wait for one thing or for the end of the caller; at most so many seconds."""
    waiting = asyncio.ensure_future(what)
    futures: list[asyncio.Future[Any]] = [waiting, ended]
    await asyncio.wait(futures, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    if waiting.done():
        waiting.result()
    else:
        waiting.cancel()
