"""The variables that make a process see its grants, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from genv_jupyter.isolation.caps import LIMIT, TOTAL
from genv_jupyter.isolation.live import PROGRAMS as PROGRAMS
from genv_jupyter.model import Limit, Limits
from genv_jupyter.units import format_memory

MARKER = "GENV_JUPYTER_ENVIRONMENT"
REVISION = "GENV_JUPYTER_REVISION"
"""Grows with every change of what an environment is to see. It stands in the process beside the
variables, so that none older than those are put there, and a report says which it speaks of."""

VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
MPS_PIPE = "CUDA_MPS_PIPE_DIRECTORY"

MPS_THREADS = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
MPS_MEMORY = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"

NO_MPS = "/nonexistent/genv-jupyter"
"""Where a process without MPS is pointed: the default, ``/tmp/nvidia-mps``, can be made by
anybody, and CUDA would silently join whatever daemon listens there. Nobody can create this one."""


class Cap(NamedTuple):
    """Bytes of a device that a process may use, and that it has (``None``: not told)."""

    memory: int
    total: int | None


class MpsClient(NamedTuple):
    """How a process joins MPS: the directory of its daemon, and its own bytes and ceiling.

    ``compute`` is in hundredths of a percent, ``None`` for no ceiling. ``device`` is what the limit
    of memory names: an ordinal, which is 0 where the daemon has one device, or a UUID.
    """

    pipe: str
    memory: int
    compute: int | None
    device: str = "0"


def environ_of(
    environment: str,
    devices: Sequence[str],
    *,
    hide: bool,
    pool: str | None,
    revision: int,
    caps: Mapping[str, Cap] | None = None,
    programs: str | None = None,
    mps: MpsClient | None = None,
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
    mps
        Of a grant that is shared under MPS.
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
            **_mps(mps),
            **limits,
        }
    visible = "" if hide else pool
    none: dict[str, str | None] = {MPS_PIPE: None, MPS_THREADS: None, MPS_MEMORY: None}
    return {**which, VISIBLE: visible, ORDER: None, **none, **limits}


def _mps(client: MpsClient | None) -> dict[str, str | None]:
    """Return the variables of an MPS client, or of a process that is to join no daemon.

    Whole percents and ``M`` (2**20 bytes) are the forms that NVIDIA documents; one entry, since a
    client sees one device: with an entry for any other it would have no limit at all.
    """
    if client is None:
        return {MPS_PIPE: NO_MPS, MPS_THREADS: None, MPS_MEMORY: None}
    percent = None if client.compute is None else max(1, client.compute // 100)
    return {
        MPS_PIPE: client.pipe,
        MPS_THREADS: None if percent is None else str(percent),
        MPS_MEMORY: f"{client.device}={client.memory // 2**20}M",
    }


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


def limits_of(
    *,
    compute: int | None,
    exclusive: bool,
    simulated: bool,
    mps: bool = False,
    without: str | None = None,
    started: int | None = None,
    verified: bool | None = None,
    cause: str | None = None,
    others: bool = False,
    operators: bool = False,
) -> Limits:
    """Say honestly how strong each limit of a grant is.

    ``without`` is why a shared grant does not run under MPS, ``started`` the cap in bytes with
    which its processes run until they are restarted, where that is another one. ``verified`` says
    whether all of its processes were seen to work through MPS, ``cause`` what is wrong with them.
    ``others`` says that another user works on the device too, ``operators`` that the daemon of MPS
    is not the broker's own.
    """
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
    if mps:
        memory = _under_mps(started, operators=operators, others=others)
        return Limits(
            memory=_seen(memory, verified, cause),
            compute=_NOT_AMONG_USERS if compute and others else _ceiling(compute, verified, cause),
            devices=devices,
        )
    why = " ".join(said for said in (cause, _COOPERATIVE, without) if said)
    return Limits(
        memory=Limit(strength="cooperative", verified=None, reason=why),
        compute=Limit(strength="none", verified=None, reason=_in_the_books(compute)),
        devices=devices,
    )


def _in_the_books(compute: int | None) -> str:
    """Say what a ceiling is without MPS."""
    if compute is None:
        return _NO_CEILING
    return "Kept in the books: without MPS nothing slows the process down."


def _under_mps(started: int | None, *, operators: bool, others: bool) -> Limit:
    """Say how strong a cap is under MPS, and what weakens it."""
    kept = None
    if started is not None:
        kept = f"What runs keeps the {format_memory(started)} that it started with."
    said = (_UNDER_MPS, kept, _OPERATORS if operators else None, _TURNS if others else None)
    return Limit(strength="driver", verified=None, reason=" ".join(it for it in said if it))


_COOPERATIVE = (
    "PyTorch, JAX and CuPy are told to stay below it by variables, TensorFlow and RMM by hooks "
    "where genv-jupyter is installed in the kernel. Each counts for itself; what else uses the "
    "device is not stopped."
)
_NO_CEILING = "No ceiling was asked for."
_UNDER_MPS = (
    "Under MPS the driver refuses what is above it, to each process for itself. That stops "
    "accidents: the process could take itself out of MPS."
)


_OPERATORS = "Its daemon is run by the operator of this host: the daemon itself sets no such limit."
_TURNS = "Another user works on this device too: users take turns on it, under MPS as well."
_NOT_AMONG_USERS = Limit(
    strength="none",
    verified=None,
    reason=f"{_TURNS} A process that starts now has no ceiling: half of the multiprocessors for "
    "half of the time would be a quarter.",
)


def _ceiling(compute: int | None, verified: bool | None, cause: str | None) -> Limit:
    """Say how strong a share of compute is under MPS."""
    if compute is None:
        return Limit(strength="none", verified=None, reason=_NO_CEILING)
    ceiling = Limit(
        strength="driver",
        verified=None,
        reason="Under MPS each process is kept to that part of the multiprocessors: a ceiling, "
        "not a reservation.",
    )
    return _seen(ceiling, verified, cause)


def _seen(limit: Limit, verified: bool | None, cause: str | None) -> Limit:
    """Add what was seen of the processes; what is wrong stands first."""
    if verified:
        seen = "All of its processes on the device were seen to be clients of MPS."
        said = f"{cause} {limit.reason}" if cause else f"{limit.reason} {seen}"
    else:
        said = f"{cause} {limit.reason}" if cause else limit.reason
    return msgspec.structs.replace(limit, verified=verified, reason=said)
