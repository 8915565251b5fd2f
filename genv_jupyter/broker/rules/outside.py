"""A process on a device that belongs to no environment."""

from __future__ import annotations

from collections.abc import Sequence

from genv_jupyter.broker.rules.breaches import Breach, Key, Target
from genv_jupyter.units import format_memory

HINT = "Start it with `jupyter gpu run`, so that others see what is taken."


def judge(owner: str, device: str, label: str, processes: Sequence[Target]) -> Breach | None:
    """Judge the processes of one user on a device that are known to belong to no environment.

    Of those that are spared nothing is said: they are not the owner's, or no concern of theirs.
    """
    targets = tuple(it for it in processes if it.spared is None)
    if not targets:
        return None
    shown = ", ".join(
        f"{it} with {'memory unknown' if it.memory is None else format_memory(it.memory)}"
        for it in targets[:3]
    )
    more = f", and {len(targets) - 3} more" if len(targets) > 3 else ""
    return Breach(
        key=Key("outside", "", device, owner),
        said=f"{label} is used outside any environment: {shown}{more}.",
        hint=HINT,
        targets=targets,
    )
