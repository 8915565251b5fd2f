"""What is known of the devices from reading to reading: nothing that was there vanishes silently.

Pure: rounds go in (what the child told in one reading), inventories come out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from genv_jupyter.devices import trouble
from genv_jupyter.devices.frames import Told
from genv_jupyter.devices.source import DeviceReading, Inventory
from genv_jupyter.model import Health


@dataclass
class Round:
    """One reading of all devices, as far as it came.

    ``count`` is how many GPUs the driver has; ``complete`` is false when the child hung or
    crashed on the way. ``began`` is in monotonic seconds.
    """

    count: int
    driver_version: str | None
    began: float = 0.0
    cuda_version: int | None = None
    told: dict[int, Told] = field(default_factory=dict)
    complete: bool = False


_NOTHING: dict[str, None] = dict.fromkeys(
    (
        *("utilization", "memory_utilization", "temperature", "power", "sm_clock"),
        "memory_clock",
    )
)
"""What a device that is lost does not tell any more."""


class Known:
    """Remembers every device that was ever read, by UUID and by its place."""

    def __init__(self) -> None:
        self._places: dict[int, tuple[str, ...]] = {}
        self._devices: dict[str, DeviceReading] = {}
        self._count: int | None = None
        self._driver_version: str | None = None
        self._cuda_version: int | None = None

    @property
    def any_lost(self) -> bool:
        """Whether a known device is lost at present."""
        return any(device.health == "lost" for device in self._devices.values())

    def opened(self, count: int) -> bool:
        """Note how many GPUs a fresh process finds; false if places mean others than before."""
        same = self._count in (None, count)
        if not same:
            self._places.clear()
        self._count = count
        return same

    def stale(self, why: str | None) -> Inventory:
        """Return the last reading, as something that is not known to hold any more."""
        devices = tuple(_as(device, "unknown") for device in self._in_order())
        return Inventory(
            devices=devices,
            driver_version=self._driver_version,
            cuda_version=self._cuda_version,
            trouble=why,
        )

    def combine(self, new: Round, why: str | None = None) -> Inventory:
        """Put a round into what is known, and return all of it.

        Parameters
        ----------
        new
            The round.
        why
            The sentence about what went wrong in it, if something did.
        """
        self._driver_version, self._cuda_version = new.driver_version, new.cuda_version
        current: dict[str, DeviceReading] = {}
        nameless: list[str] = []
        for index in range(new.count):
            told = new.told.get(index)
            if told is not None and told.fault is None:
                self._places[index] = tuple(device.uuid for device in told.devices)
                current.update((device.uuid, device) for device in told.devices)
                continue
            health: Health = told.fault if told is not None and told.fault else "unknown"
            before = self._at(index, told)
            current.update((device.uuid, _as(device, health)) for device in before)
            if told is not None and not before:
                nameless.append(trouble.nameless(index, told.fault == "lost", told.why))
        self._keep(current, new)
        self._devices = current
        return Inventory(
            devices=tuple(self._in_order()),
            driver_version=new.driver_version,
            cuda_version=new.cuda_version,
            trouble=why or (nameless[0] if nameless else None),
        )

    def _at(self, index: int, told: Told | None) -> list[DeviceReading]:
        """Return what was last seen of a GPU that cannot be read now."""
        uuids: Iterable[str] = self._places.get(index, ())
        if told is not None and told.uuid is not None:
            uuids = [
                device.uuid
                for device in self._devices.values()
                if told.uuid in (device.uuid, device.parent)
            ]
        return [self._devices[uuid] for uuid in uuids if uuid in self._devices]

    def _keep(self, current: dict[str, DeviceReading], new: Round) -> None:
        """Add what was known and is not there now, unless its GPU says that it is gone."""
        healthy = {told.uuid for told in new.told.values() if told.fault is None}
        numbers = {device.index for device in current.values()}
        for uuid, device in self._devices.items():
            if uuid in current or uuid in healthy or device.parent in healthy:
                continue  # its GPU was put into MIG mode, or cut into other instances
            lost = _as(device, "lost" if new.complete else "unknown")
            if lost.index in numbers:  # another GPU moved up to its number
                lost = msgspec.structs.replace(lost, index=None)
            current[uuid] = lost

    def _in_order(self) -> list[DeviceReading]:
        return sorted(self._devices.values(), key=_place)


def _place(device: DeviceReading) -> tuple[bool, int]:
    index = device.index if device.parent is None else device.parent_index
    return (index is None, index or 0)


def _as(device: DeviceReading, health: Health) -> DeviceReading:
    """Return a device that was not read: lost stays lost, and what is lost holds nothing."""
    if health == "lost" or device.health == "lost":
        return msgspec.structs.replace(
            device, health="lost", memory_free=None, processes=None, **_NOTHING
        )
    return msgspec.structs.replace(device, health=health)
