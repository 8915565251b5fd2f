"""The variables that make a process see its grants, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from genv_jupyter.isolation.caps import LIMIT, TOTAL
from genv_jupyter.isolation.live import PROGRAMS as PROGRAMS
from genv_jupyter.model import Limit, Limits

MARKER = "GENV_JUPYTER_ENVIRONMENT"
REVISION = "GENV_JUPYTER_REVISION"
"""Grows with every change of what an environment is to see. It stands in the process beside the
variables, so that none older than those are put there, and a report says which it speaks of."""

VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
MPS_PIPE = "CUDA_MPS_PIPE_DIRECTORY"

NO_MPS = "/nonexistent/genv-jupyter"
"""Where a process without MPS is pointed: the default, ``/tmp/nvidia-mps``, can be made by
anybody, and CUDA would silently join whatever daemon listens there. Nobody can create this one."""


class Cap(NamedTuple):
    """Bytes of a device that a process may use, and that it has (``None``: not told)."""

    memory: int
    total: int | None


def environ_of(
    environment: str,
    devices: Sequence[str],
    *,
    hide: bool,
    pool: str | None,
    revision: int,
    caps: Mapping[str, Cap] | None = None,
    programs: str | None = None,
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
    revision
        Which change of the environment this is.
    caps
        Of the devices that are granted in part. What frameworks make of them is decided where the
        process is (``isolation.caps``).
    programs
        The directory with the environment's ``nvidia-smi``, to be first in PATH; where the process
        sees all devices, NVIDIA's own tells the truth.
    """
    which: dict[str, str | None] = {MARKER: environment, REVISION: str(revision)}
    limits = _limits(devices, caps or {})
    if programs is not None:
        limits[PROGRAMS] = programs if devices or hide else None
    if devices:
        return {
            **which,
            VISIBLE: ",".join(devices),
            ORDER: "PCI_BUS_ID",
            MPS_PIPE: NO_MPS,
            **limits,
        }
    visible = "" if hide else pool
    return {**which, VISIBLE: visible, ORDER: None, MPS_PIPE: None, **limits}


def _limits(devices: Sequence[str], caps: Mapping[str, Cap]) -> dict[str, str | None]:
    if not any(device in caps for device in devices):
        return {LIMIT: None, TOTAL: None}
    found = [caps.get(device) for device in devices]
    return {
        LIMIT: ",".join("" if cap is None else str(cap.memory) for cap in found),
        TOTAL: ",".join(str(cap.total) if cap is not None and cap.total else "" for cap in found),
    }


def revision_of(environ: Mapping[str, str | None] | None) -> int | None:
    """Return which change of its environment these variables are, if they say so."""
    value = (environ or {}).get(REVISION)
    return None if value is None else int(value)


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
        strength="cooperative",
        verified=None,
        reason="PyTorch, JAX and CuPy are told to stay below it by variables, TensorFlow and RMM "
        "by hooks where genv-jupyter is installed in the kernel. Each counts for itself; what "
        "else uses the device is not stopped.",
    )
    ceiling = Limit(
        strength="none",
        verified=None,
        reason="No ceiling was asked for."
        if compute is None
        else "Kept in the books: without MPS nothing slows the process down.",
    )
    return Limits(memory=memory, compute=ceiling, devices=devices)
