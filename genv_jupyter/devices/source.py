"""What a host's devices are at one moment, and the port through which the broker reads them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal, NamedTuple

from msgspec import Struct

from genv_jupyter.details import Details
from genv_jupyter.model import DeviceKind, Health

ProcessKind = Literal["compute", "graphics", "mps"]


class ProcessReading(Struct, frozen=True):
    """A process on a device, as the driver tells it.

    ``memory`` in bytes, ``None`` where the driver does not say. ``kind`` is ``mps`` for a client
    of an MPS server (the server itself is ``compute``).
    """

    pid: int
    memory: int | None
    kind: ProcessKind
    name: str | None = None


class Xid(Struct, frozen=True, order=True):
    """A critical error that the driver has reported of a GPU: its number, and when (epoch)."""

    at: float
    code: int


class DeviceReading(Struct, frozen=True, kw_only=True):
    """One GPU, or one MIG instance, at one moment; ``None`` is unknown everywhere.

    Attributes
    ----------
    uuid
        ``GPU-…`` or ``MIG-…``.
    index
        The number of a GPU in PCI order, for display only; MIG instances have none.
    parent, parent_index, instance
        Of a MIG instance: UUID and number of the GPU that it is a part of, and the ids of its GPU
        instance and compute instance there.
    memory_total, memory_reserved, memory_free
        Bytes. What is used is total − free − reserved: NVML's own ``used`` means different things
        in different drivers.
    utilization, memory_utilization
        Percent of the time in which a program ran there, and in which its memory was read or
        written; 0 to 100.
    temperature
        Degrees Celsius.
    power, power_limit
        Milliwatts.
    sm_clock, memory_clock
        MHz.
    ecc_errors
        Memory errors that could not be corrected, since the driver was loaded.
    xids
        The last critical errors, the oldest first, as far as the present reader of the driver has
        seen them.
    health
        ``lost``: fell off the bus. ``unreliable``: the driver told things that cannot be (they are
        left out), or the GPU has an error that only a reset cures. ``unknown``: not read this time;
        the fields are those of the last good reading.
    doubts
        What is wrong with an unreliable one, each in a few words.
    processes
        Sorted by pid, each pid once.
    compute_mode
        ``default``, ``exclusive_process``, ``exclusive_thread`` or ``prohibited``.
    capability
        CUDA compute capability, such as ``(9, 0)``.
    details
        What is read only when asked for.
    """

    uuid: str
    index: int | None = None
    name: str | None = None
    kind: DeviceKind = "gpu"
    parent: str | None = None
    parent_index: int | None = None
    instance: tuple[int, int] | None = None
    memory_total: int | None = None
    memory_reserved: int | None = None
    memory_free: int | None = None
    utilization: int | None = None
    memory_utilization: int | None = None
    temperature: int | None = None
    power: int | None = None
    power_limit: int | None = None
    sm_clock: int | None = None
    memory_clock: int | None = None
    ecc_errors: int | None = None
    xids: tuple[Xid, ...] = ()
    health: Health = "ok"
    doubts: tuple[str, ...] = ()
    processes: tuple[ProcessReading, ...] | None = None
    compute_mode: str | None = None
    capability: tuple[int, int] | None = None
    details: Details | None = None

    @property
    def memory_used(self) -> int | None:
        """Bytes in use, by whomever; ``None`` if the driver does not say."""
        if self.memory_total is None or self.memory_free is None:
            return None
        return max(0, self.memory_total - self.memory_free - (self.memory_reserved or 0))


class Inventory(Struct, frozen=True, kw_only=True):
    """All devices of a host at one moment, GPUs in index order, instances after their parents.

    ``cuda_version`` is 1000 * major + 10 * minor of the newest CUDA that the driver can run.
    ``trouble`` is a sentence (cause, and cure) when the driver as a whole, or a device that
    cannot even be named, does not work.
    """

    devices: tuple[DeviceReading, ...] = ()
    simulated: bool = False
    driver_version: str | None = None
    cuda_version: int | None = None
    trouble: str | None = None


class ModeSet(NamedTuple):
    """What came of setting a compute mode.

    ``found`` is the mode there was, ``None`` where that could not be read; it was set if that is
    the one expected, and there is no ``trouble`` (the cause, in words).
    """

    found: str | None
    trouble: str | None = None


class DeviceSource(ABC):
    """Where readings come from."""

    @abstractmethod
    def read(self, *, details: bool = False) -> Inventory:
        """Read all devices, and on demand what is rarely asked (``DeviceReading.details``).

        Synchronous and callable from any thread. It never raises and never takes longer than the
        source's deadline (2 s by default): what goes wrong is told in ``Inventory.trouble`` and in
        each device's ``health``.
        """

    def set_compute_mode(self, uuid: str, mode: str, *, expected: str) -> ModeSet:
        """Set the compute mode of a GPU, unless it is another one than ``expected`` by now.

        Needs root. It never raises, and takes no longer than the source's deadline.
        """
        return ModeSet(None, "these devices have none that could be set")

    @abstractmethod
    def close(self) -> None:
        """End what the source started; ``read`` keeps answering with the last reading."""


def open_source(simulate: str | None) -> DeviceSource:
    """Open the source of this host's devices.

    Parameters
    ----------
    simulate
        The value of ``GENV_JUPYTER_SIMULATE``, such as ``2x24GiB`` or ``1x80GiB,2x24GiB``;
        ``None`` or empty for the real devices. A missing driver never turns simulation on.

    Raises
    ------
    BadRequest
        ``simulate`` cannot be read.
    """
    # Imported here because both are built on this module.
    if simulate:
        from genv_jupyter.devices.simulated import SimulatedSource

        return SimulatedSource.from_spec(simulate)
    from genv_jupyter.devices.nvml import NvmlSource

    return NvmlSource()
