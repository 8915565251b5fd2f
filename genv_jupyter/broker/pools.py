"""Which of the present devices a ``CUDA_VISIBLE_DEVICES`` names, read once for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from genv_jupyter.devices.pool import Pool, read_pool
from genv_jupyter.devices.source import DeviceReading

if TYPE_CHECKING:
    from genv_jupyter.broker.core import Core

MOST = 64
"""Readings that are kept: clients choose the texts."""


class Pools:
    """The pools of servers and kernels, as they are over the present devices."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._known: dict[str | None, Pool] = {}

    def of(self, value: str | None) -> Pool:
        """Read a ``CUDA_VISIBLE_DEVICES``."""
        found = self._known.get(value)
        if found is None:
            if len(self._known) >= MOST:
                self._known.clear()
            found = self._known[value] = read_pool(value, self._named_in(value))
        return found

    def forget(self) -> None:
        """Read all anew: the devices are others."""
        self._known.clear()

    def _named_in(self, value: str | None) -> Sequence[DeviceReading]:
        """Return the present devices, and those that a pool names and that are gone.

        CUDA would hide all that follows a device that is gone. What is granted is set by its own
        UUID, so the healthy ones can still be used.
        """
        devices = self.core.inventory.devices
        if value is None:
            return devices
        present = {device.uuid for device in devices}
        gone = (uuid for uuid in value.split(",") if uuid in self.core.books.on_device)
        return devices + tuple(
            DeviceReading(uuid=uuid, kind="mig" if uuid.startswith("MIG-") else "gpu")
            for uuid in dict.fromkeys(gone)
            if uuid not in present
        )
