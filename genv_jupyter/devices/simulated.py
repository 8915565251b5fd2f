"""Simulated devices: for demos, for trying the product, and for tests. Switched on explicitly."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

from genv_jupyter.devices.source import DeviceReading, DeviceSource, Inventory, ProcessReading
from genv_jupyter.errors import BadRequest, OutOfRange
from genv_jupyter.model import DeviceKind, Health
from genv_jupyter.units import format_memory, parse_memory

MAX_DEVICES = 256
SMALLEST = 2**20
_GROUP = re.compile(r"(?:(\d{1,4})\s*[x×])?\s*(\S(?:.*\S)?)", re.ASCII | re.IGNORECASE)
_HINT = "Write GENV_JUPYTER_SIMULATE=2x24GiB, or several groups such as 1x80GiB,2x24GiB."


@dataclass
class SimulatedDevice:
    """A device that is not there. Change any attribute; the next reading shows it.

    Attributes
    ----------
    memory_total, memory_reserved
        Bytes.
    external_memory
        Bytes that are in use and that no listed process explains.
    processes
        What runs on it; ``None`` when the driver would not say. Their memory is in use too.
    """

    uuid: str
    index: int | None
    memory_total: int
    name: str | None = None
    kind: DeviceKind = "gpu"
    parent: str | None = None
    parent_index: int | None = None
    instance: tuple[int, int] | None = None
    memory_reserved: int = 0
    external_memory: int = 0
    utilization: int | None = 0
    temperature: int | None = None
    power: int | None = None
    health: Health = "ok"
    processes: list[ProcessReading] | None = field(default_factory=list)
    compute_mode: str | None = "default"
    capability: tuple[int, int] | None = (9, 0)

    def __post_init__(self) -> None:
        if self.name is None:
            self.name = f"Simulated GPU {format_memory(self.memory_total)}"

    def reading(self) -> DeviceReading:
        """Return what a driver would tell of this device now."""
        processes = self.processes
        if self.health == "lost":
            processes = None
        held = self.external_memory + sum(process.memory or 0 for process in processes or ())
        free = max(0, self.memory_total - self.memory_reserved - held)
        return DeviceReading(
            uuid=self.uuid,
            index=self.index,
            name=self.name,
            kind=self.kind,
            parent=self.parent,
            parent_index=self.parent_index,
            instance=self.instance,
            memory_total=self.memory_total,
            memory_reserved=self.memory_reserved,
            memory_free=None if self.health == "lost" else free,
            utilization=None if self.health == "lost" else self.utilization,
            temperature=None if self.health == "lost" else self.temperature,
            power=None if self.health == "lost" else self.power,
            health=self.health,
            processes=None
            if processes is None
            else tuple(sorted(processes, key=lambda process: process.pid)),
            compute_mode=self.compute_mode,
            capability=self.capability,
        )


class SimulatedSource(DeviceSource):
    """A source of simulated devices.

    Parameters
    ----------
    devices
        The devices; kept as ``self.devices`` (a list), to be changed by tests.

    Attributes
    ----------
    trouble
        A sentence to report as the driver's trouble, or ``None``.
    """

    def __init__(self, devices: Iterable[SimulatedDevice]) -> None:
        self.devices = list(devices)
        self.trouble: str | None = None
        self._lock = threading.Lock()

    @classmethod
    def from_spec(cls, spec: str) -> SimulatedSource:
        """Make the devices of a text such as ``1x80GiB,2x24GiB``.

        Raises
        ------
        BadRequest
            The text cannot be read, or asks for sizes or numbers that make no sense.
        """
        devices: list[SimulatedDevice] = []
        for part in spec.split(","):
            count, memory = _group(part, spec)
            if len(devices) + count > MAX_DEVICES:
                raise BadRequest(
                    f"{spec[:64]!r} asks for more than {MAX_DEVICES} simulated GPUs.", hint=_HINT
                )
            devices.extend(
                SimulatedDevice(simulated_uuid(index), index, memory)
                for index in range(len(devices), len(devices) + count)
            )
        return cls(devices)

    def read(self, *, details: bool = False) -> Inventory:
        """Return what the devices are set to; particulars they have none."""
        with self._lock:
            return Inventory(
                devices=tuple(device.reading() for device in self.devices),
                simulated=True,
                trouble=self.trouble,
            )

    def close(self) -> None:
        """Nothing was started, so nothing is ended."""


def simulated_uuid(index: int) -> str:
    """Return the UUID of the simulated device of that index: ``GPU-51b00000-…``."""
    return f"GPU-{0x51B00000 + index:08x}-0000-4000-8000-{index:012x}"


def _group(part: str, spec: str) -> tuple[int, int]:
    """Read ``2x24GiB``: how many, and bytes of each."""
    match = _GROUP.fullmatch(part.strip())
    if match is None:
        raise BadRequest(f"{spec[:64]!r} does not describe simulated GPUs.", hint=_HINT)
    try:
        memory = parse_memory(match[2])
    except (BadRequest, OutOfRange) as error:
        raise BadRequest(
            f"{spec[:64]!r} does not describe simulated GPUs: {error.message}", hint=_HINT
        ) from None
    count = int(match[1] or 1)
    if memory < SMALLEST:
        raise BadRequest(
            f"{spec[:64]!r} asks for a GPU of {format_memory(memory)}: the unit is missing.",
            hint=_HINT,
        )
    if count == 0:
        raise BadRequest(f"{spec[:64]!r} asks for no GPU at all.", hint=_HINT)
    return count, memory
