"""Readings of use, rolled up: sums and maxima over 10 s, a minute, an hour.

What is kept of a span of time is sums of *value x milliseconds*, beside the milliseconds in which
the value was known at all: a mean is one divided by the other, a gap is no milliseconds, and two
parts of one span are put together by adding. So nothing depends on when a broker begins or ends, or
on which way its clock is set: what was seen is counted once, at every level.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from typing import Any, TypeVar

from msgspec import Struct

from genv_jupyter.errors import BadRequest

Series = TypeVar("Series")
Kept = TypeVar("Kept", "DeviceSums", "GrantSums")

LEVELS: dict[int, int] = {10: 6 * 3600, 60: 8 * 86400, 3600: 400 * 86400}
"""Seconds that each level rolls up, and for how many seconds it is kept."""

MOST_POINTS = 2000
USUAL_POINTS = 300
_STEPS = (10, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)
_PEAK = "_peak"


class DeviceSums(Struct, kw_only=True):
    """What was seen of a device.

    ``seen`` are milliseconds; ``memory`` and ``granted`` are MiB times milliseconds (a year of
    bytes times milliseconds is more than a database counts), ``utilization`` percent times
    milliseconds, ``share`` hundredths of a percent times milliseconds; ``memory_peak`` is bytes.
    ``temperature`` is degrees Celsius and ``power`` milliwatts, times milliseconds. ``granted`` and
    ``share`` are known for as long as the device is seen.
    """

    seen: int = 0
    memory_known: int = 0
    memory: int = 0
    memory_peak: int | None = None
    utilization_known: int = 0
    utilization: int = 0
    utilization_peak: int | None = None
    temperature_known: int = 0
    temperature: int = 0
    temperature_peak: int | None = None
    power_known: int = 0
    power: int = 0
    granted: int = 0
    share: int = 0


class GrantSums(Struct, kw_only=True):
    """What was seen of an environment on a device; units as in ``DeviceSums``.

    ``held`` are milliseconds. ``memory`` is what was granted, ``used`` what was used of it. Of the
    ``idle_known`` milliseconds, nothing was done with the grant in ``idle``.
    """

    held: int = 0
    memory: int = 0
    share: int = 0
    used_known: int = 0
    used: int = 0
    used_peak: int | None = None
    idle_known: int = 0
    idle: int = 0


_NAMES: dict[type, tuple[tuple[str, ...], tuple[str, ...]]] = {
    kind: (
        tuple(name for name in kind.__struct_fields__ if not name.endswith(_PEAK)),
        tuple(name for name in kind.__struct_fields__ if name.endswith(_PEAK)),
    )
    for kind in (DeviceSums, GrantSums)
}
"""What is added up, and what only the most is kept of."""


def grow(kept: Kept, more: Kept) -> None:
    """Add the sums and maxima of a span to those of another, in place."""
    sums, peaks = _NAMES[type(kept)]
    for name in sums:
        setattr(kept, name, getattr(kept, name) + getattr(more, name))
    for name in peaks:
        peak = getattr(more, name)
        if peak is not None:
            there = getattr(kept, name)
            setattr(kept, name, peak if there is None else max(there, peak))


def combine(first: Kept, second: Kept) -> Kept:
    """Return the sums and maxima of two spans as those of one."""
    both = copy(first)
    grow(both, second)
    return both


def coarser(cells: Mapping[tuple[Series, int], Kept], step: int) -> dict[tuple[Series, int], Kept]:
    """Roll cells (of a series, from a time on) up into spans of ``step`` seconds."""
    found: dict[tuple[Series, int], Kept] = {}
    for (series, at), sums in cells.items():
        add(found, (series, at - at % step), sums)
    return found


def add(cells: dict[tuple[Series, int], Kept], key: tuple[Series, int], sums: Kept) -> None:
    """Add what was seen to the cell that it belongs to, which is nobody else's."""
    there = cells.get(key)
    if there is None:
        cells[key] = copy(sums)
    else:
        grow(there, sums)


def total(many: Iterable[Kept], empty: Kept) -> Kept:
    """Return the sums and maxima of any number of spans."""
    whole = copy(empty)
    for sums in many:
        grow(whole, sums)
    return whole


def mean(total: int, known: int) -> int | None:
    """Return a mean, rounded; ``None`` where nothing is known."""
    return None if known <= 0 else round(total / known)


def spread(sums: DeviceSums, parts: int) -> DeviceSums:
    """Return one of the equal parts of a span in which nothing moved."""
    found: dict[str, Any] = {}
    for name in sums.__struct_fields__:
        value = getattr(sums, name)
        found[name] = value if name.endswith(_PEAK) else value // parts
    return DeviceSums(**found)


def plan(since: float, now: float, step: int | None) -> tuple[int, int]:
    """Choose the level that a span is read from, and the seconds of each point.

    Parameters
    ----------
    step
        What was asked for. More is chosen where that would be too many points, or where so fine a
        level is no longer kept.

    Returns
    -------
    tuple
        The level, and the step, a multiple of it.

    Raises
    ------
    BadRequest
        The span begins in the future.
    """
    if since > now:
        raise BadRequest("since lies in the future.", hint="Say a time that has passed.")
    span = min(now - since, max(LEVELS.values()))
    if step is None:
        step = next((it for it in _STEPS if span / it <= USUAL_POINTS), _STEPS[-1])
    least = max(step, -(-int(span + 1) // (MOST_POINTS - 1)))
    level = max(it for it in LEVELS if it <= max(least, min(LEVELS)))
    level = next(it for it in LEVELS if it >= level and span <= LEVELS[it])
    return level, max(level, -(-least // level) * level)
