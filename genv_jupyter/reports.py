"""Wire types of the history of use: points over time, and totals over a span.

As in ``genv_jupyter.model``: bytes are integers, shares are hundredths of a percent, times are RFC
3339 UTC, and what is unknown is ``None``. A span in which nobody looked has no point: it is a gap,
and no zero.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from genv_jupyter.model import Time

By = Literal["user", "device", "environment"]


class DevicePoint(Struct, frozen=True, kw_only=True):
    """A device from ``at`` on, for the step of the answer; means, and maxima (``…_peak``).

    ``seconds`` is for how long of that it was seen. ``memory_granted`` and ``share`` are what all
    environments held of it; utilisation is percent, temperature degrees Celsius, power milliwatts.
    """

    at: Time
    seconds: int
    memory_used: int | None
    memory_peak: int | None
    utilization: int | None
    utilization_peak: int | None
    memory_granted: int | None
    share: int | None
    temperature: int | None = None
    temperature_peak: int | None = None
    power: int | None = None


class PastEvent(Struct, frozen=True, kw_only=True):
    """Something that happened to a grant or an environment, as the records call it.

    ``event`` is in the past tense (``GrantAdded``, ``GrantReleased``, ``EnvironmentEnded``), or
    ``notice`` where the owner was told something. ``name`` and ``reason`` are for the owner and
    admins only.
    """

    at: Time
    event: str
    environment: str | None
    device: str | None
    user: str | None
    name: str | None
    reason: str | None


class DeviceHistory(Struct, frozen=True, kw_only=True):
    """Answer of ``GET usage?device=UUID&since=…``: points ``step`` seconds apart, and events."""

    device: str
    since: Time
    until: Time
    step: int
    points: tuple[DevicePoint, ...]
    events: tuple[PastEvent, ...] = ()


class GrantPoint(Struct, frozen=True, kw_only=True):
    """A grant from ``at`` on. ``seconds`` is for how long it was held and seen.

    ``idle`` is the part (0 to 1) of the time in which nothing was done with it, where known.
    """

    at: Time
    seconds: int
    memory: int | None
    share: int | None
    memory_used: int | None
    memory_peak: int | None
    idle: float | None


class GrantSeries(Struct, frozen=True, kw_only=True):
    """What an environment held on one device."""

    device: str
    points: tuple[GrantPoint, ...]


class EnvironmentHistory(Struct, frozen=True, kw_only=True):
    """Answer of ``GET usage?environment=ID&since=…``; also of an environment that has ended."""

    environment: str
    user: str
    name: str | None
    since: Time
    until: Time
    step: int
    devices: tuple[GrantSeries, ...]
    events: tuple[PastEvent, ...] = ()


class ReportRow(Struct, frozen=True, kw_only=True):
    """What one user, device or environment had.

    ``gpu_seconds`` is share x time. Of ``held_seconds``, ``known_seconds`` are those in which use
    was known, and ``idle_seconds`` those of them in which nothing was done. ``memory_peak`` is the
    most that was seen in use. ``name`` of an environment is for its owner and admins only.
    """

    key: str
    user: str | None
    name: str | None
    gpu_seconds: int
    held_seconds: int
    known_seconds: int
    idle_seconds: int
    memory_peak: int | None


class UsageReport(Struct, frozen=True, kw_only=True):
    """Answer of ``GET usage/report``. ``seen_seconds`` is for how long anybody looked."""

    by: By
    since: Time
    until: Time
    seen_seconds: int
    simulated: bool
    lost_samples: int
    rows: tuple[ReportRow, ...]
