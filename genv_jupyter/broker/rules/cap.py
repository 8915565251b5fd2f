"""Over the memory cap: all processes of an environment on a device together, against its grant."""

from __future__ import annotations

from collections.abc import Sequence

from genv_jupyter.broker.rules.breaches import Breach, Key, Target
from genv_jupyter.units import format_memory

HINT = "Free some (`%gpu empty-cache` says how much came back), or ask for more."


def judge(
    environment: str, device: str, label: str, cap: int, slack: int, processes: Sequence[Target]
) -> Breach | None:
    """Judge the use of one grant.

    Parameters
    ----------
    label
        The device as sentences name it.
    cap, slack
        Bytes that were granted, and bytes over that which are let pass.
    processes
        Those of the environment on the device. Where the driver does not say what one holds, it
        counts for nothing.
    """
    used = sum(process.memory or 0 for process in processes)
    over = used - cap - slack
    if over <= 0:
        return None
    return Breach(
        key=Key("cap", environment, device),
        said=f"{format_memory(used)} of {label} are used here, and {format_memory(cap)} granted.",
        hint=HINT,
        targets=fewest(processes, over),
    )


def fewest(processes: Sequence[Target], over: int) -> tuple[Target, ...]:
    """Choose the fewest processes that together hold ``over`` bytes, a kernel only if need be.

    None, where all that may be ended would not be enough: nothing is ended in vain.
    """
    able = [it for it in processes if it.spared is None and it.memory]
    able.sort(key=lambda it: (-(it.memory or 0), it.pid))
    for among in ([it for it in able if not it.kernel], able):
        chosen, left = [], over
        for process in among:
            chosen.append(process)
            left -= process.memory or 0
            if left <= 0:
                return tuple(chosen)
    return ()
