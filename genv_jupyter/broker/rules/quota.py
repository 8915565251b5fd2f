"""Over the quota: more is held than may be, since the quota was lowered after it was granted."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from genv_jupyter.broker.rules.breaches import Breach, Key, Target
from genv_jupyter.units import WHOLE, format_memory

HINT = "Release something; what was granted last goes first otherwise."


class Quota(Struct, frozen=True, kw_only=True):
    """The most that one owner may hold at once; ``None`` is no bound.

    ``devices`` in hundredths of a percent of one device (``10_000``: one), ``memory`` in bytes.
    """

    devices: int | None = None
    memory: int | None = None


class Holding(Struct, frozen=True, kw_only=True):
    """What one environment of the owner holds, in the same units, and since when.

    ``processes`` are its own on the devices that it holds.
    """

    environment: str
    devices: int
    memory: int
    since: float
    processes: tuple[Target, ...] = ()


def judge(holdings: Sequence[Holding], quota: Quota) -> list[Breach]:
    """Judge all that one owner holds: what was granted last is over, and no more than needed."""
    devices, memory = sum(it.devices for it in holdings), sum(it.memory for it in holdings)
    found = []
    for holding in sorted(holdings, key=lambda it: (-it.since, it.environment)):
        over = _over(devices, memory, quota)
        if over is None:
            break
        much = quota.devices is not None and devices > quota.devices and holding.devices
        large = quota.memory is not None and memory > quota.memory and holding.memory
        if not (much or large):
            continue  # it holds nothing of what is too much
        found.append(
            Breach(
                key=Key("quota", holding.environment),
                said=f"{over}, and this was granted last.",
                hint=HINT,
                targets=tuple(it for it in holding.processes if it.spared is None),
                whole=True,
            )
        )
        devices -= holding.devices
        memory -= holding.memory
    return found


def owed(environment: str, processes: Sequence[Target]) -> Breach:
    """Return the breach of one that all was taken back from, and that has not let go."""
    return Breach(
        key=Key("quota", environment),
        said="More was held than the quota allows, and this was granted last.",
        hint=HINT,
        targets=tuple(it for it in processes if it.spared is None),
        whole=True,
    )


def _over(devices: int, memory: int, quota: Quota) -> str | None:
    if quota.devices is not None and devices > quota.devices:
        held = "1 device is" if devices == WHOLE else f"{devices / WHOLE:g} devices are"
        return f"{held} held, and the quota is {quota.devices / WHOLE:g}"
    if quota.memory is not None and memory > quota.memory:
        return f"{format_memory(memory)} are held, and the quota is {format_memory(quota.memory)}"
    return None
