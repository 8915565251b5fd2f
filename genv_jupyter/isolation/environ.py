"""The variables that make a process see its grants, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from genv_jupyter.model import Limit, Limits

MARKER = "GENV_JUPYTER_ENVIRONMENT"
VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
MPS_PIPE = "CUDA_MPS_PIPE_DIRECTORY"

NO_MPS = "/nonexistent/genv-jupyter"
"""Where a process without MPS is pointed: the default, ``/tmp/nvidia-mps``, can be made by
anybody, and CUDA would silently join whatever daemon listens there. Nobody can create this one."""


def environ_of(
    environment: str, devices: Sequence[str], *, hide: bool, pool: str | None
) -> dict[str, str | None]:
    """Compute what to set (and, with ``None``, to unset) in the process of an environment.

    Parameters
    ----------
    devices
        UUIDs of the granted devices.
    hide
        Without a grant: whether every device is hidden, or the pool is visible.
    pool
        The ``CUDA_VISIBLE_DEVICES`` that was there before us.
    """
    if devices:
        return {
            MARKER: environment,
            VISIBLE: ",".join(devices),
            ORDER: "PCI_BUS_ID",
            MPS_PIPE: NO_MPS,
        }
    return {MARKER: environment, VISIBLE: "" if hide else pool, ORDER: None, MPS_PIPE: None}


def limits_of(*, compute: int | None, exclusive: bool, simulated: bool) -> Limits:
    """Say honestly how strong each limit of a grant is."""
    if simulated:
        nothing = Limit(strength="none", verified=None, reason="The device is simulated.")
        return Limits(memory=nothing, compute=nothing, devices=nothing)
    devices = Limit(
        strength="cooperative",
        verified=None,
        reason="CUDA_VISIBLE_DEVICES hides the other devices; the process could change it.",
    )
    if exclusive:
        whole = Limit(strength="none", verified=None, reason="The whole device is granted.")
        return Limits(memory=whole, compute=whole, devices=devices)
    memory = Limit(
        strength="none",
        verified=None,
        reason="Kept in the books: nobody else is promised this memory. The process is not "
        "stopped from using more.",
    )
    ceiling = Limit(
        strength="none",
        verified=None,
        reason="No ceiling was asked for."
        if compute is None
        else "Kept in the books: without MPS nothing slows the process down.",
    )
    return Limits(memory=memory, compute=ceiling, devices=devices)
