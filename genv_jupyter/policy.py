"""What the owner of the host decided: the numbers that placement and the broker obey."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from genv_jupyter.units import WHOLE


class Policy(Struct, frozen=True, kw_only=True):
    """The rules of one broker.

    Attributes
    ----------
    memory_headroom
        Bytes of every device that are never granted, besides the driver's own reserve.
    memory_overcommit, compute_overcommit
        Hundredths of a percent; ``10_000`` means that nothing is promised twice.
    desktop_memory
        Bytes that graphics processes may hold on a device that still counts as whole ...
    desktop_share
        ... or this part of its memory, in hundredths of a percent, whichever is more.
    start_deadline
        Seconds a start or a restart may take before its grants are given away.
    mps
        ``auto``: shared grants run under MPS where the device can; ``always``: they are refused
        where it cannot; ``never``.
    mps_memory_only
        Whether ``auto`` is for requests without a share of compute too.
    mps_minimum
        Bytes of the smallest cap under MPS: the driver counts a process's CUDA context, 300 to
        500 MiB, as a part of it.
    share_between_users
        Where a device that another user works on stands among those for a shared request: after
        all others (``last``), nowhere (``never``), or where it would without (``always``).
    confirm_seconds
        Seconds for which no process of the family may be on a device before a release that the
        process never confirmed is believed.
    """

    memory_headroom: int = 0
    memory_overcommit: int = WHOLE
    compute_overcommit: int = WHOLE
    desktop_memory: int = 2**30
    desktop_share: int = 500
    start_deadline: float = 60.0
    mps: Literal["auto", "always", "never"] = "auto"
    mps_memory_only: bool = True
    mps_minimum: int = 512 * 2**20
    share_between_users: Literal["last", "never", "always"] = "last"
    confirm_seconds: float = 5.0
