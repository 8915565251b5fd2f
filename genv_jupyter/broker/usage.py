"""Who really uses what: the readings of the driver joined to the environments.

What cannot be proved to belong to an environment is external: it counts, and is blamed on nobody.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from genv_jupyter.broker.books import Books
from genv_jupyter.devices.source import DeviceReading, Inventory
from genv_jupyter.isolation import processes
from genv_jupyter.model import Process

UNEXPLAINED = 100 * 2**20
"""Bytes: less than a CUDA context takes. From here on what nobody visible explains may be ours."""


class DeviceUsage(Struct):
    """The use of one device at one moment; memory in bytes, ``None`` where it is unknown.

    ``known`` says whether the driver lists processes at all; ``own`` are those of environments;
    ``servers`` is what MPS servers of ours hold, ``unseen`` what is held by processes that are
    not to be found here: the driver may name them by the ids of another namespace.
    """

    reading: DeviceReading
    known: bool = False
    own: dict[str, list[Process]] = {}
    external: int | None = None
    graphics: int = 0
    servers: int = 0
    unattributed: int | None = None
    unseen: int = 0

    def used_by(self, environment: str) -> int:
        """Return the bytes that the processes of an environment are known to hold here."""
        return sum(process.memory or 0 for process in self.own.get(environment, ()))


class Attribution:
    """Finds the environment of a process: by family first, else by its marker variable.

    ``ours`` says whether a process is an MPS server of the broker's: no outsider.
    """

    def __init__(self, books: Books, ours: Callable[[int], bool]) -> None:
        self.books = books
        self.ours = ours

    def environment_of(self, pid: int) -> str | None:
        """Return the environment that a process provably belongs to."""
        books = self.books
        for ancestor, start in processes.ancestors(pid):
            found = books.by_pid.get(ancestor)
            # Turns ask without the lock: it may be ending at this moment.
            row = None if found is None else books.environments.get(found)
            if row is not None and row.start == start:
                return found
        claimed = processes.marker(pid)
        return claimed if claimed in books.environments else None

    def join(self, inventory: Inventory) -> dict[str, DeviceUsage]:
        """Attribute every process of a reading."""
        return {device.uuid: self._device(device) for device in inventory.devices}

    def _device(self, reading: DeviceReading) -> DeviceUsage:
        usage = DeviceUsage(reading=reading, own={})
        if reading.processes is None:
            used = reading.memory_used
            usage.unattributed = used
            return usage
        usage.known = reading.health == "ok" or reading.health == "unreliable"
        explained = external = 0
        for process in reading.processes:
            memory = process.memory or 0
            explained += memory
            start = processes.start_of(process.pid)
            if start is None:
                usage.unseen += process.memory or UNEXPLAINED
            environment = self.environment_of(process.pid)
            if environment is None and self.ours(process.pid):
                usage.servers += memory
                continue
            if environment is None:
                external += memory
                if process.kind == "graphics":
                    usage.graphics += memory
                continue
            if start is None:
                continue
            usage.own.setdefault(environment, []).append(
                Process(
                    pid=process.pid,
                    start=start,
                    device=reading.uuid,
                    memory=process.memory,
                    name=process.name or processes.command(process.pid),
                )
            )
        usage.external = external
        if reading.memory_used is not None:
            usage.unattributed = max(0, reading.memory_used - explained)
        return usage
