"""Whether a shared device is shared under NVIDIA MPS, and why not where it is not.

Pure rules over what is known of devices. MPS lets processes of one user work on a device at the
same time, and the driver keep each of them to its cap; it stops accidents, not intent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

from genv_jupyter.demand import Demand
from genv_jupyter.errors import BadRequest, NoCapacity, OutOfRange
from genv_jupyter.model import DeviceKind
from genv_jupyter.policy import Policy
from genv_jupyter.units import format_memory

FIRST_CAPABILITY = (7, 0)
"""Volta: before it a process under MPS has no address space of its own, nor a memory limit."""

MOST_CLIENTS = 48
MORE_CLIENTS = 60
"""Contexts on a device under MPS (NVIDIA's MPS guide); more from CUDA 13.1 on."""

MORE_FROM = 13_010
"""CUDA 13.1 as the driver tells it."""

_SHARED_HINT = "Leave mps out (`--mps` in the magic): it is used where it can be."


class Facts(Struct, frozen=True, kw_only=True):
    """What decides on one device; ``trouble`` is a sentence where no daemon can be had."""

    simulated: bool = False
    foreign: bool = False
    wsl: bool = False
    kind: DeviceKind = "gpu"
    capability: tuple[int, int] | None = None
    compute_mode: str | None = None
    trouble: str | None = None


class Sharing(NamedTuple):
    """Whether grants run under MPS, and a sentence that says why not; ``None``: no need to ask."""

    mps: bool
    without: str | None = None


def sharing_of(demand: Demand, policy: Policy, facts: Sequence[Facts]) -> Sharing:
    """Decide whether what is placed on devices is to run under MPS.

    Raises
    ------
    BadRequest
        It is demanded, by the request or by the policy, and cannot be; the reason is said.
    """
    if demand.exclusive:
        if demand.mps == "on":
            raise BadRequest(
                "MPS is for sharing a device, and whole ones were asked for.", hint=_SHARED_HINT
            )
        return Sharing(False)
    why = _against(demand, policy, facts)
    if why is None:
        return Sharing(True)
    if demand.mps == "on":
        raise BadRequest(f"MPS cannot be used for this request. {why}", hint=_SHARED_HINT)
    if policy.mps == "always":
        raise BadRequest(
            f"Devices are shared under MPS only here, and it cannot be used. {why}",
            hint="Ask for a whole GPU.",
        )
    return Sharing(False, why)


def check_clients(
    demand: Demand, policy: Policy, *, memory: int, others: int, cuda_version: int | None
) -> None:
    """Refuse what would leave a process without a context under MPS.

    Parameters
    ----------
    memory
        Bytes that the request gets on the device, for all of its processes together.
    others
        Processes that grants of others on the device are made for.

    Raises
    ------
    OutOfRange
        There is less for each process than a CUDA context needs.
    NoCapacity
        More processes than MPS serves on one device.
    """
    if memory // demand.processes < policy.mps_minimum:
        least = format_memory(policy.mps_minimum)
        each = f" for each of {demand.processes} processes" if demand.processes > 1 else ""
        raise OutOfRange(
            f"{format_memory(memory // demand.processes)}{each} is too little under MPS: a CUDA "
            f"context alone may need {least}, and it counts.",
            hint=f"Ask for at least {format_memory(policy.mps_minimum * demand.processes)}.",
        )
    most = MORE_CLIENTS if (cuda_version or 0) >= MORE_FROM else MOST_CLIENTS
    if others + demand.processes > most:
        raise NoCapacity(
            f"MPS serves {most} processes on one device: {others} are planned for there already, "
            f"and {demand.processes} more were asked for.",
            hint="Ask for fewer processes, or for another device.",
            details={"reasons": {}, "holders": []},
        )


def _against(demand: Demand, policy: Policy, facts: Sequence[Facts]) -> str | None:
    """Say why MPS is not to be used; ``None`` where it is."""
    if policy.mps == "never":
        return "Without MPS by this host's policy."
    if demand.mps == "off":
        return "Without MPS, as was asked for."
    if len(facts) > 1:
        return "On several devices without MPS: a process can join the daemon of one only."
    if demand.compute is None and not policy.mps_memory_only and demand.mps != "on":
        return "Without MPS by this host's policy, as no share of compute was asked for."
    return next((why for fact in facts if (why := _not_on(fact)) is not None), None)


def _not_on(fact: Facts) -> str | None:
    if fact.simulated:
        return "The device is simulated."
    if fact.kind == "mig":
        return "MPS is not offered on MIG instances."
    if fact.wsl:
        return "MPS is not offered under WSL."
    if fact.capability is None or fact.capability < FIRST_CAPABILITY:
        has = "unknown" if fact.capability is None else "{}.{}".format(*fact.capability)
        return f"MPS needs a compute capability of 7.0 (Volta), and this device's is {has}."
    if fact.compute_mode not in (None, "default"):
        mode = fact.compute_mode.replace("_", " ")
        return f"MPS is offered in compute mode default, and this device is in mode {mode}."
    if fact.foreign:
        return "MPS runs as the user of the broker, and this environment is of another one."
    return fact.trouble
