"""A lease that is over: what was held for a time is due."""

from __future__ import annotations

from collections.abc import Sequence

from genv_jupyter.broker.rules.breaches import Breach, Key, Target

HINT = "Extend it (`%gpu extend 1h`), or release what is no longer needed."


def judge(
    environment: str, expires: float | None, now: float, processes: Sequence[Target], owed: bool
) -> Breach | None:
    """Judge an environment that holds devices; both times are on the same clock.

    ``processes`` are its own on those devices. ``owed`` says that all was taken back already for
    that reason, and they have not let go.
    """
    if not owed and (expires is None or now < expires):
        return None
    return Breach(
        key=Key("lease", environment),
        said="The lease of what is held here is over.",
        hint=HINT,
        targets=tuple(it for it in processes if it.spared is None),
        whole=True,
    )
