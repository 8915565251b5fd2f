"""What is worth saying about the use of what an environment holds: one line, or why there is none.

Pure: the same sentence stands in the sidebar, in ``%gpu usage`` and in ``GET usage``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from genv_jupyter.model import GrantUsage
from genv_jupyter.units import format_duration, format_memory, short_uuid

AFTER = 300
"""Seconds of use from which on a peak is worth advice."""

CLOSE = 0.9
"""Part of the cap from which on the peak is close to it."""

ROOM = (0.2, 512 * 2**20)
"""Head-room over the peak: this part of it, and no less than these bytes."""

WORTH = 0.75
"""Part of the present cap below which a smaller one is worth the trouble."""

IDLE = 30
"""Percent: a device whose mean is no higher leaves room for others to compute."""

GIVE_BACK = 1800
"""Seconds without any use from which on somebody else should have the device."""

NO_GRANT = "%gpu attach 0.5 takes half of a GPU."
UNKNOWN = (
    "The driver does not tell which memory is this environment's, so there is no peak and no "
    "advice: frameworks can tell their own (torch.cuda.memory_summary())."
)


class Holding(Struct, frozen=True, kw_only=True):
    """One grant with all that advice needs; ``usable`` are the bytes of its device that can be
    granted, ``held`` the seconds since it was given.
    """

    label: str
    usage: GrantUsage
    usable: int | None
    exclusive: bool
    compute: int | None
    held: float


def advice(holdings: Sequence[Holding], *, simulated: bool = False) -> str:
    """Return one line of advice on what an environment holds, or why there is none.

    Parameters
    ----------
    holdings
        The grants, one for each device; memory in bytes, compute in hundredths of a percent.
    """
    if not holdings:
        return NO_GRANT
    if simulated:
        return "These devices are simulated: nothing runs on them, so there is nothing to advise."
    peaks = [holding.usage.memory_peak for holding in holdings]
    if None in peaks:
        return UNKNOWN
    idle = [holding for holding in holdings if not holding.usage.memory_peak]
    if idle:
        return _unused(holdings, idle)
    highest = max(holdings, key=lambda it: (it.usage.memory_peak or 0) / max(1, it.usage.memory))
    if (highest.usage.memory_peak or 0) >= CLOSE * highest.usage.memory:
        return _close(highest)
    if min(holding.usage.seconds_used or 0 for holding in holdings) < AFTER:
        return f"Advice comes after {format_duration(AFTER)} of use: the peak may still grow."
    needed = max(_needed(holding.usage.memory_peak or 0) for holding in holdings)
    found = _shared(holdings, needed) if highest.exclusive else _smaller(holdings, needed)
    return found or "The amount fits: the peak is neither close to it nor far below."


def _unused(holdings: Sequence[Holding], idle: Sequence[Holding]) -> str:
    if min(holding.held for holding in idle) < GIVE_BACK:
        which = "" if len(holdings) == 1 else f" of {' and '.join(it.label for it in idle)}"
        return f"Nothing{which} has been used yet."
    since = format_duration(min(holding.held for holding in idle))
    if len(idle) == len(holdings):
        return f"Nothing has been used for {since}: %gpu release gives it to others."
    device = short_uuid(idle[0].usage.device)
    return (
        f"{idle[0].label} has not been used for {since}: %gpu release --device {device} gives it "
        "to others."
    )


def _close(holding: Holding) -> str:
    peak, cap = (holding.usage.memory_peak or 0), holding.usage.memory
    said = f"{holding.label}: the peak is {100 * peak // max(1, cap)} % of the amount"
    if holding.exclusive:
        return f"{said}. Out of memory? A smaller batch size makes room."
    return f"{said}. Out of memory? A smaller batch size makes room, or ask for more."


def _needed(peak: int) -> int:
    """Return the peak with head-room over it, in bytes."""
    part, least = ROOM
    return peak + max(int(peak * part), least)


def _fraction(needed: int, usable: int | None) -> int | None:
    """Return the smallest fraction that has so much memory, in hundredths; ``None`` if unknown."""
    if not usable:
        return None
    hundredths = math.ceil(100 * needed / usable)
    return max(1, hundredths)


def _shared(holdings: Sequence[Holding], needed: int) -> str:
    """Advise on whole devices: one that idles can be shared."""
    loads = [holding.usage.utilization_mean for holding in holdings]
    spans = [holding.usage.utilization_seconds or 0 for holding in holdings]
    if None in loads or min(spans) < AFTER * 0.8:
        return ""
    busiest = max(load or 0 for load in loads)
    fraction = _fraction(needed, min(holding.usable or 0 for holding in holdings))
    if busiest > IDLE or fraction is None or fraction > 50 or len(holdings) > 1:
        return ""
    return (
        f"{busiest} % busy on average, and half of its memory would do: you can share it "
        "(%gpu attach 0.5)."
    )


def _smaller(holdings: Sequence[Holding], needed: int) -> str:
    """Advise on shared devices: a smaller amount leaves room for others."""
    cap = min(holding.usage.memory for holding in holdings)
    if needed > WORTH * cap:
        return ""
    peak = max(holding.usage.memory_peak or 0 for holding in holdings)
    said = f"The peak is {format_memory(peak)} of {format_memory(cap)}"
    first, number = holdings[0], len(holdings)
    fraction = _fraction(needed, first.usable)
    load, compute = first.usage.utilization_mean, first.compute
    if number > 1:
        share = f"{number} --memory"
    elif compute is None:
        share = "--memory"
    else:
        # A smaller fraction is a lower ceiling too: only where that much is not computed.
        if fraction is not None and load is not None and load <= fraction * 0.8:
            return f"{said}: {fraction / 100:g} would do (%gpu attach {fraction / 100:g})."
        share = f"{compute / 10_000:g} --memory"
    amount = f"{math.ceil(needed / 1e8) / 10:g}G"
    return f"{said}: {amount} would do (%gpu attach {share} {amount})."
