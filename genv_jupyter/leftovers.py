"""What is left of kernels: processes that outlived the one that started them, and hold a GPU.

On the wire as all of ``model`` is.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from genv_jupyter.units import Time


class LeftoverUse(Struct, frozen=True, kw_only=True):
    """What a leftover process holds on one device; memory in bytes."""

    device: str
    memory: int | None


class Leftover(Struct, frozen=True, kw_only=True):
    """A process whose kernel (or command) is gone, and that still uses a device.

    ``DELETE processes/{pid}-{start}`` ends it. ``start`` is in clock ticks since boot, and tells
    it from any other process that may come to have its pid. ``environment`` is the id of the
    environment that it came from, and ``name`` what that was called, if it is still known.
    ``after`` says whether that has ``ended``, or only its kernel was ``restarted``. ``started`` is
    when the process was, ``left`` since when it is a leftover, ``until`` when it is ended by
    itself. ``ending`` is one that has been told to end.
    """

    pid: int
    start: int
    command: str | None
    environment: str
    name: str | None
    user: str
    after: Literal["ended", "restarted"]
    uses: tuple[LeftoverUse, ...]
    started: Time
    left: Time
    until: Time | None
    state: Literal["running", "ending"]
