"""How devices, grants and environments are called in every view of the magic and the CLI."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from datetime import UTC, datetime

from genv_jupyter.kernel.document import printable
from genv_jupyter.model import Device, DeviceGrant, Environment, Grant, Request
from genv_jupyter.units import (
    echo_memory,
    format_duration,
    format_memory,
    format_moment,
    format_share,
    format_since,
    short_uuid,
)

short = short_uuid

APPLIED = {
    "live": "in force",
    "at_restart": "takes effect at restart",
    "pending": "being applied",
    "unknown": "not confirmed by the process",
}


def device_label(device: Device | None, uuid: str = "") -> str:
    """Return ``GPU 0``, or the beginning of the UUID where there is no index."""
    if device is None:
        return short(uuid)
    if device.index is None:
        return short(device.uuid)
    return f"GPU {device.index}" if device.kind == "gpu" else f"GPU {device.index} (MIG)"


def amount(grant: Grant | DeviceGrant) -> str:
    """Say how much a grant is: ``all of it (23.6 GiB)``, ``11.8 GiB, 50 %``."""
    if grant.exclusive:
        return f"all of it ({format_memory(grant.memory)})"
    ceiling = "" if grant.compute is None else f", {format_share(grant.compute)} of compute"
    return format_memory(grant.memory) + ceiling


def in_use(memory: int) -> str:
    """Say how much memory is in use."""
    return format_memory(memory) if memory else "nothing"


def since(when: datetime, now: datetime | None = None) -> str:
    """Say since when, in local time, and how long that is."""
    return format_since(when, now or datetime.now(UTC))


def clock(when: datetime, now: datetime | None = None) -> str:
    """Say a time of day in local time, with the day where it is another one."""
    return format_moment(when, now or datetime.now(UTC))


def until(when: datetime, now: datetime | None = None) -> str:
    """Say until when something is: ``until 15:10 (1 h 20 min left)``."""
    left = (when - (now or datetime.now(UTC))).total_seconds()
    state = f"{format_duration(left)} left" if left > 0 else f"over since {format_duration(-left)}"
    return f"until {clock(when, now)} ({state})"


def wrapped(text: str) -> str:
    """Break a sentence for a screen, so that it does nothing but be read."""
    lines = textwrap.wrap(text, 78, break_long_words=False, break_on_hyphens=False)
    return "\n".join(printable(line) for line in lines)


def asked(request: Request | None) -> str:
    """Say what was asked for, as it was asked."""
    if request is None:
        return ""
    parts: list[str] = []
    if request.gpus is not None:
        parts.append(f"{request.gpus:g} GPU{'' if request.gpus == 1 else 's'}")
    if request.fraction is not None:
        parts.append(f"{request.fraction:g} of a GPU")
    if request.memory is not None:
        parts.append(echo_memory(request.memory))
    if request.devices:
        several = "device" if len(request.devices) == 1 else "devices"
        parts.append(f"{several} {', '.join(request.devices)}")
    return ", ".join(parts)


def free_memory(device: Device) -> int | None:
    """Return how many bytes of a device could still be granted; ``None`` when unknown."""
    if device.memory_usable is None:
        return None
    if device.health == "lost" or any(grant.exclusive for grant in device.grants):
        return 0
    if device.maintenance is not None:
        return 0
    taken = sum(grant.memory for grant in device.grants)
    outside = (device.external_memory or 0) + (device.unattributed_memory or 0)
    return max(0, device.memory_usable - taken - outside)


def free(device: Device) -> str:
    """Say what is free on a device."""
    room = free_memory(device)
    if room is None:
        return "memory unknown"
    if device.health == "lost":
        return "lost"
    if device.maintenance is not None:
        return "under maintenance"
    if room == 0:
        return "nothing free"
    outside = device.external_memory or device.unattributed_memory
    if not device.grants and not outside:
        return f"all free ({format_memory(room)})"
    return f"{format_memory(room)} free"


def label(environment: Environment) -> str:
    """Return what people call an environment."""
    kinds = {"kernel": "kernel", "shell": "terminal", "command": "command", "server": "server"}
    return environment.name or f"a {kinds[environment.kind]}"


def holder(grant: DeviceGrant) -> str:
    """Return what people call the environment behind a device's grant."""
    return grant.name or f"environment {grant.environment[:8]}"


def mark(devices: Iterable[Device]) -> str:
    """Return the mark of simulated devices."""
    return "SIMULATED" if any(device.simulated for device in devices) else ""


def here(environment: Environment | None, terminal: bool) -> str:
    """Return what "this" is."""
    if environment is not None and environment.kind == "command":
        return f"The command {environment.name}" if environment.name else "This command"
    if terminal or (environment is not None and environment.kind == "shell"):
        return "This terminal"
    if environment is not None and environment.name:
        return f"This notebook ({environment.name})"
    return "This kernel"
