"""Whether a kernel still runs a cell, after it was asked something beside it.

A kernel says busy and idle of each request, also of one in a subshell, and Jupyter takes the last
word for the kernel's: a cell that runs on would look idle, and idle kernels are culled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from genv_jupyter.server.talking import channels, request

AT_ONCE = 1.0
"""Seconds within which a kernel answers that runs nothing."""

LONGEST = 24 * 3600.0
"""Seconds for which the end of a cell is waited for."""


class Pulses:
    """Puts right what a server believes of its kernels.

    Parameters
    ----------
    manager_of
        Returns the kernel manager of a kernel id, ``None`` where it is not ours.
    """

    def __init__(self, manager_of: Callable[[str], Any], log: logging.Logger) -> None:
        self._manager_of = manager_of
        self._log = log
        self._watches: dict[str, asyncio.Task[None]] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        """What is under way, to be cancelled at the end."""

    def look(self, kernel: str) -> None:
        """Look, in the background, whether a kernel runs a cell."""
        self.forget(kernel)
        manager = self._manager_of(kernel)
        if manager is None or not manager.has_trait("execution_state"):
            return
        task = asyncio.get_running_loop().create_task(_straighten(manager))
        self._watches[kernel] = task
        self.tasks.add(task)
        task.add_done_callback(lambda done: self._done(kernel, done))

    def forget(self, kernel: str) -> None:
        """Look no more: its process is gone, or it is looked at anew."""
        task = self._watches.pop(kernel, None)
        if task is not None:
            task.cancel()

    def _done(self, kernel: str, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if self._watches.get(kernel) is task:
            del self._watches[kernel]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.info("Whether kernel %s is busy is not known: %s", kernel, error)


async def _straighten(manager: Any) -> None:
    """Ask the kernel what it answers in its turn, and changes nothing: a cell delays the answer."""
    told: list[object] = []

    def note(change: object) -> None:
        told.append(change)

    async with channels(manager) as client:
        info = request(client, "shell", "kernel_info_request", {}, LONGEST)
        answer = asyncio.ensure_future(info)
        try:
            done, _ = await asyncio.wait({answer}, timeout=AT_ONCE)
            if done or manager.execution_state != "idle":
                return
            manager.execution_state = "busy"
            manager.observe(note, "execution_state")
            try:
                await answer
            finally:
                manager.unobserve(note, "execution_state")
            # Nothing was told of the end of a cell: there was none, the kernel was slow to answer.
            if not told:
                manager.execution_state = "idle"
        finally:
            answer.cancel()
