"""Use of a device that was not granted to the environment."""

from __future__ import annotations

from collections.abc import Sequence

from genv_jupyter.broker.rules.breaches import Breach, Key, Target

HINT = "Ask for it (`%gpu attach --device …`), or restart the kernel to see only what is granted."


def judge(
    environment: str, device: str, label: str, allowed: bool, processes: Sequence[Target]
) -> Breach | None:
    """Judge the use of one device by one environment.

    Parameters
    ----------
    allowed
        Whether the environment may be there: by a grant in whatever state, or since nothing is
        hidden from it and it was granted nothing elsewhere.
    processes
        Those of the environment on the device.
    """
    if allowed or not processes:
        return None
    first = processes[0]
    more = f" and {len(processes) - 1} more" if len(processes) > 1 else ""
    return Breach(
        key=Key("foreign_device", environment, device),
        said=f"{label} is used here by {first}{more}, and was not granted.",
        hint=HINT,
        targets=tuple(it for it in processes if it.spared is None),
    )
