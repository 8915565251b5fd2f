"""Calls in threads that tests let go."""

from __future__ import annotations

import asyncio
import threading


class Gate:
    """A call that begins, and ends when it is let."""

    def __init__(self) -> None:
        self.begun, self.open = threading.Event(), threading.Event()

    def __call__(self) -> str:
        self.begun.set()
        assert self.open.wait(30)
        return "through"

    async def reached(self) -> None:
        assert await asyncio.to_thread(self.begun.wait, 30)
