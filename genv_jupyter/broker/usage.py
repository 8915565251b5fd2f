"""Who really uses what: the readings of the driver joined to the environments.

What cannot be proved to belong to an environment is external: it counts, and is blamed on nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from msgspec import Struct

from genv_jupyter.broker.attribution import Attribution as Attribution
from genv_jupyter.devices.source import DeviceReading, Inventory, ProcessReading
from genv_jupyter.isolation import processes
from genv_jupyter.model import Process

UNEXPLAINED = 100 * 2**20
"""Bytes: less than a CUDA context takes. From here on what nobody visible explains may be ours."""


class Outsider(Struct, frozen=True, kw_only=True):
    """A process on a device that is not known to belong to any environment, past or present.

    ``start`` and ``uid`` are ``None`` where it is not to be found here.
    """

    device: str
    pid: int
    start: int | None
    memory: int | None
    kind: str
    name: str | None
    uid: int | None


class Remnant(Struct, frozen=True):
    """A process on a device whose kernel is gone, and the environment that it came from."""

    process: Process
    environment: str


class DeviceUsage(Struct):
    """The use of one device at one moment; memory in bytes, ``None`` where it is unknown.

    ``known`` says whether the driver lists processes at all; ``own`` are those of environments;
    ``servers`` is what MPS servers of ours hold, ``unseen`` what is held by processes that are
    not to be found here: the driver may name them by the ids of another namespace. ``outside`` are
    the processes of no environment, and ``remnants`` those of environments that are gone, or
    of a kernel before its restart: those are in ``own``, too. Both count as ``external`` where
    they belong to no present environment.
    """

    reading: DeviceReading
    known: bool = False
    own: dict[str, list[Process]] = {}
    external: int | None = None
    graphics: int = 0
    servers: int = 0
    unattributed: int | None = None
    unseen: int = 0
    outside: list[Outsider] = []
    remnants: list[Remnant] = []

    def used_by(self, environment: str) -> int:
        """Return the bytes that the processes of an environment are known to hold here."""
        return sum(process.memory or 0 for process in self.own.get(environment, ()))

    @property
    def users(self) -> frozenset[str]:
        """Owners whose processes compute here outside any environment."""
        return frozenset(
            f"local:{it.uid}" for it in self.outside if it.uid is not None and it.kind == "compute"
        )

    @property
    def listed(self) -> bool:
        """Whether the driver lists any process of an environment here."""
        pids = {process.pid for process in self.reading.processes or ()}
        return any(process.pid in pids for them in self.own.values() for process in them)

    @property
    def environments(self) -> int | None:
        """Bytes that all environments together are known to use."""
        return sum(map(self.used_by, self.own)) if self.known else None


def join(
    attribution: Attribution,
    inventory: Inventory,
    ours: Callable[[int], bool],
    clients: Mapping[str, Mapping[int, int]] = MappingProxyType({}),
) -> dict[str, DeviceUsage]:
    """Attribute every process of a reading.

    ``ours`` are the MPS servers of the broker. ``clients`` are processes (pid and start, by device)
    that are known to be there whether the driver lists them or not.
    """
    attribution.begin(process.pid for device in inventory.devices for process in _listed(device))
    found = {}
    for device in inventory.devices:
        usage = found[device.uuid] = _device(attribution, device, ours)
        _add_clients(attribution, usage, clients.get(device.uuid, {}))
    return found


def _add_clients(attribution: Attribution, usage: DeviceUsage, clients: Mapping[int, int]) -> None:
    """Add the clients of MPS that the driver has left out; what they hold is unknown."""
    listed = {process.pid for process in _listed(usage.reading)}
    for pid, start in clients.items():
        if pid in listed or not processes.alive(pid, start):
            continue
        environment = attribution.environment_of(pid)
        if environment is not None:
            usage.own.setdefault(environment, []).append(
                Process(
                    pid=pid,
                    start=start,
                    device=usage.reading.uuid,
                    memory=None,
                    name=processes.command(pid),
                )
            )


def _listed(device: DeviceReading) -> Iterable[ProcessReading]:
    return device.processes or ()


def _device(
    attribution: Attribution, reading: DeviceReading, ours: Callable[[int], bool]
) -> DeviceUsage:
    usage = DeviceUsage(reading=reading, own={}, outside=[], remnants=[])
    if reading.processes is None:
        usage.unattributed = reading.memory_used
        return usage
    usage.known = reading.health in ("ok", "unreliable")
    usage.external = explained = 0
    for process in reading.processes:
        explained += process.memory or 0
        _process(attribution, usage, process, ours)
    if reading.memory_used is not None:
        usage.unattributed = max(0, reading.memory_used - explained)
    return usage


def _process(
    attribution: Attribution,
    usage: DeviceUsage,
    process: ProcessReading,
    ours: Callable[[int], bool],
) -> None:
    memory, device = process.memory or 0, usage.reading.uuid
    start = attribution.start_of(process.pid)
    if start is None:
        usage.unseen += process.memory or UNEXPLAINED
    origin = attribution.origin_of(process.pid, start)
    seen = None
    if origin is not None and start is not None:
        seen = Process(
            pid=process.pid,
            start=start,
            device=device,
            memory=process.memory,
            name=process.name or attribution.command_of(process.pid, start),
        )
        if origin.left and process.kind != "graphics":  # a window that somebody still looks at
            usage.remnants.append(Remnant(seen, origin.environment))
        if origin.present:
            usage.own.setdefault(origin.environment, []).append(seen)
            return
    if seen is None and ours(process.pid):
        usage.servers += memory
        return
    usage.external = (usage.external or 0) + memory
    if process.kind == "graphics":
        usage.graphics += memory
    if seen is None:
        usage.outside.append(
            Outsider(
                device=device,
                pid=process.pid,
                start=start,
                memory=process.memory,
                kind=process.kind,
                name=process.name or attribution.command_of(process.pid, start),
                uid=attribution.uid_of(process.pid, start),
            )
        )
