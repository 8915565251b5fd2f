"""Waiting for a change, as the broker tells of them: no polling."""

from __future__ import annotations

import contextlib
import threading
from types import TracebackType
from typing import Any, Self

from genv_jupyter.api.client import Client
from genv_jupyter.errors import GpuError

AGAIN = 1.0
"""Seconds after which a broker that is gone is looked for again."""


class Changes:
    """Listens to the broker, in a thread, from the moment it is entered."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._changed = threading.Event()
        self._over = threading.Event()
        self._stream: Any = None
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> Self:
        self._stream = self.client.events()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        self._stream.close()
        self._thread.join(AGAIN)

    def wait(self, seconds: float | None) -> bool:
        """Wait for a change since the last call; say whether there was one in time."""
        seen = self._changed.wait(seconds)
        self._changed.clear()
        return seen

    def _listen(self) -> None:
        while True:
            while self._stream.read_line():
                self._changed.set()
            if self._over.is_set():
                return
            self._changed.set()  # whatever happened while nobody listened
            with contextlib.suppress(GpuError):  # it is tried again
                self._stream = self.client.events()
                if self._over.is_set():
                    self._stream.close()
            self._over.wait(AGAIN)
