"""What a scenario says: its keys, and devices to begin with. The C files read it as JSON."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict, cast
from uuid import UUID, uuid5

MIB = 2**20
GIB = 2**30

Fault = int | Literal["hang", "crash"]
"""What a function does instead: return this error code, never return, or end the process."""

_NAMESPACE = UUID("51e6a3a8-29d8-4a06-9d7f-6f1ce7a0c0de")


class ProcessSpec(TypedDict, total=False):
    """A process that NVML lists, whether it exists or not."""

    pid: int
    memory: int | None
    """Bytes; None is "not available", all ones in NVML's list."""
    kind: Literal["compute", "graphics", "mps"]


class InstanceSpec(TypedDict, total=False):
    """A MIG instance."""

    uuid: str
    name: str
    gpu_instance: int
    compute_instance: int
    memory_total: int
    memory_reserved: int
    memory_external: int
    multiprocessors: int
    processes: list[ProcessSpec]
    fail: dict[str, Fault]


class Utilization(TypedDict):
    """Percent of the time in which the device, or its memory, was in use."""

    gpu: int
    memory: int
    encoder: NotRequired[int]
    decoder: NotRequired[int]


class DeviceSpec(TypedDict, total=False):
    """A device. A reading that is left out or None is one that this card does not support."""

    uuid: str
    name: str
    memory_total: int
    memory_reserved: int
    memory_external: int
    """Bytes that no listed process explains."""
    processes: list[ProcessSpec]
    utilization: Utilization | None
    temperature: int | None
    power: int | None
    """Milliwatts, as all limits of it."""
    power_limit: int | None
    power_default_limit: int
    power_min_limit: int
    power_max_limit: int
    power_management: int
    ecc: dict[str, int] | None
    """Keys ``corrected`` and ``uncorrected``."""
    xids: list[int]
    """Critical errors so far: those that come later are told to whoever listens."""
    compute_mode: int
    """As in CUDA: 0 default, 2 prohibited, 3 one process at a time."""
    compute_capability: list[int]
    multiprocessors: int
    minor: int
    serial: str
    vbios: str
    brand: int
    architecture: int
    persistence_mode: int
    display_mode: int
    display_active: int
    ecc_mode: int
    fan: int
    pstate: int
    clocks: dict[str, int]
    """MHz: graphics, sm, memory, video; ``clocks_max`` likewise."""
    clocks_max: dict[str, int]
    pcie: dict[str, int]
    """Keys ``generation``, ``generation_max``, ``width``, ``width_max``; ``sent`` and ``received``
    are KB/s."""
    bar1_total: int
    bar1_used: int
    speed: int
    """CUDA's ordinals begin with the fastest, unless CUDA_DEVICE_ORDER=PCI_BUS_ID."""
    lost: bool
    mig_capable: bool
    mig_enabled: bool
    """Default: whether there are instances."""
    mig: list[InstanceSpec]
    fail: dict[str, Fault]


class Scenario(TypedDict, total=False):
    """All of it. The devices stand in NVML's order, which is that of the PCI bus."""

    devices: list[DeviceSpec]
    driver_loaded: bool
    driver_version: str
    cuda_version: int
    """1000 * major + 10 * minor."""
    context_bytes: int
    """What each context costs on its device."""
    cuinit_rereads: bool
    """Whether a cuInit after one that failed reads CUDA_VISIBLE_DEVICES again."""
    may_administer: bool
    """False: not even root may change a device's settings, as in some containers."""
    list_processes: bool
    """False: NVML's lists are empty while memory is in use, as inside a container."""
    pid_shift: int
    """Added to the pids of contexts: how another pid namespace would see them."""
    fail: dict[str, Fault]
    """By exported name, with or without its ``_v2``; a device's own entry wins."""


def uuid(index: int) -> str:
    """Return the UUID that ``device(index)`` has."""
    return f"GPU-{uuid5(_NAMESPACE, f'device {index}')}"


def instance_uuid(index: int, number: int) -> str:
    """Return the UUID that ``instance(index, number)`` has."""
    return f"MIG-{uuid5(_NAMESPACE, f'device {index} instance {number}')}"


def device(index: int = 0, **changes: Any) -> DeviceSpec:
    """Return an idle device of 24 GiB, with the given keys instead of its own.

    Parameters
    ----------
    index
        Which one: decides the UUID, not the place in the scenario.
    **changes
        Keys of ``DeviceSpec``.
    """
    made: DeviceSpec = {
        "uuid": uuid(index),
        "name": "NVIDIA Fake 24GiB",
        "memory_total": 24 * GIB,
        "memory_reserved": 512 * MIB,
        "memory_external": 0,
        "processes": [],
        "utilization": {"gpu": 0, "memory": 0},
        "temperature": 35,
        "power": 25_000,
        "power_limit": 300_000,
        "compute_mode": 0,
        "compute_capability": [9, 0],
        "lost": False,
        "mig_capable": False,
        "mig": [],
    }
    made.update(cast(DeviceSpec, _known(changes, DeviceSpec)))
    return made


def server_device(index: int = 0, **changes: Any) -> DeviceSpec:
    """Return a device as they stand in data centres: it can tell everything that is asked of it."""
    more: dict[str, Any] = {
        "serial": f"16503222{index:05d}",
        "vbios": "96.00.74.00.11",
        "brand": 14,
        "architecture": 9,
        "minor": index,
        "persistence_mode": 1,
        "display_mode": 0,
        "display_active": 0,
        "ecc_mode": 1,
        "ecc": {"corrected": 0, "uncorrected": 0},
        "fan": 30,
        "pstate": 0,
        "utilization": {"gpu": 41, "memory": 12, "encoder": 0, "decoder": 3},
        "power_management": 1,
        "power_default_limit": 300_000,
        "power_min_limit": 100_000,
        "power_max_limit": 350_000,
        "clocks": {"graphics": 1410, "sm": 1410, "memory": 1593, "video": 1275},
        "clocks_max": {"graphics": 1980, "sm": 1980, "memory": 2619, "video": 1980},
        "pcie": {"generation": 4, "generation_max": 5, "width": 16, "width_max": 16},
        "bar1_total": 32 * GIB,
        "bar1_used": 3 * MIB,
    }
    return device(index, **{**more, **changes})


def instance(index: int, number: int, **changes: Any) -> InstanceSpec:
    """Return MIG instance ``number`` of ``device(index)``, of 5 GiB, with some keys changed."""
    made: InstanceSpec = {
        "uuid": instance_uuid(index, number),
        "name": "NVIDIA Fake 24GiB MIG 1g.5gb",
        "gpu_instance": number + 7,
        "compute_instance": 0,
        "memory_total": 5 * GIB,
        "memory_reserved": 0,
        "memory_external": 0,
        "multiprocessors": 14,
        "processes": [],
    }
    made.update(cast(InstanceSpec, _known(changes, InstanceSpec)))
    return made


def default_scenario() -> Scenario:
    """Return two idle devices of 24 GiB; a context costs 300 MiB."""
    return {"devices": [device(0), device(1)], "context_bytes": 300 * MIB}


def mig_scenario() -> Scenario:
    """Return a whole device, and one of two instances, of 5 and 10 GiB."""
    instances = [instance(1, 0), instance(1, 1, memory_total=10 * GIB)]
    return {"devices": [device(0), device(1, mig_capable=True, mig=instances)]}


def _known(keys: dict[str, Any], spec: type) -> dict[str, Any]:
    if unknown := keys.keys() - spec.__annotations__.keys():
        raise TypeError(f"{spec.__name__} has no {', '.join(sorted(unknown))}")
    return keys
