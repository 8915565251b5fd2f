"""Waiting for a change, as the broker tells of them: no polling, and no order among who waits."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from genv_jupyter.api.client import Client
from genv_jupyter.errors import BrokerDown, GpuError, NoCapacity
from genv_jupyter.model import Environment
from genv_jupyter.units import format_duration

_AGAIN = 1.0
"""Seconds after which a broker that is gone is looked for again."""


class WaitOver(Exception):
    """There was no room for as long as somebody was ready to wait."""


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
        self._thread.join(_AGAIN)

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
            self._over.wait(_AGAIN)


def until_room(
    client: Client,
    attempt: Callable[[], Environment],
    limit: float | None,
    say: Callable[[str], None],
) -> Environment:
    """Try until there is room; say who holds what whenever that is somebody else.

    Parameters
    ----------
    limit
        Seconds to wait for; ``None`` is for ever.

    Raises
    ------
    WaitOver
        There was no room in that time.
    GpuError
        It is refused for another reason.
    """
    deadline = None if limit is None else time.monotonic() + limit
    told: Any = None
    pause: float | None = None
    try:
        return attempt()
    except NoCapacity as error:
        refusal = error
    with Changes(client) as changes:
        while True:
            if told != (told := _holders(refusal)):
                say(f"Waiting ({_how_long(limit)}). {refusal.message}")
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                waited = format_duration(limit or 0)
                raise WaitOver(f"The wait of {waited} is over. {refusal}")
            changes.wait(min((it for it in (left, pause) if it is not None), default=None))
            pause = None
            try:
                return attempt()
            except NoCapacity as error:
                refusal = error
            except BrokerDown:
                pause = _AGAIN  # it is being replaced, and tells of no change meanwhile


def until(
    client: Client,
    look: Callable[[], Environment],
    done: Callable[[Environment], bool],
    limit: float,
) -> Environment:
    """Return an environment as soon as it is as it should be, or as it is after the time limit."""
    deadline = time.monotonic() + limit
    with Changes(client) as changes:
        while True:
            found = look()
            left = deadline - time.monotonic()
            if done(found) or left <= 0:
                return found
            changes.wait(left)


def _holders(refusal: NoCapacity) -> Any:
    holders = refusal.details.get("holders", ())
    return [
        [holder.get(key) for key in ("device", "environment", "memory", "state")]
        for holder in holders
    ]


def _how_long(limit: float | None) -> str:
    return "Ctrl-C ends it" if limit is None else f"for {format_duration(limit)}, or till Ctrl-C"
