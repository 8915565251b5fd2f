"""The history of use: every reading is added up, and once a minute the sums go to the records.

Adding up happens under the broker's lock and takes microseconds; the records' own thread writes.
What is not written yet is lost with a broker that is killed: a minute, and a few of a host where
nothing happens. A device that nobody holds and that does nothing leaves a row a minute and one an
hour, written every ten minutes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from copy import copy

from genv_jupyter.broker.books import Books
from genv_jupyter.broker.stretches import GrantCells, Stretches, mib
from genv_jupyter.broker.usage import DeviceUsage
from genv_jupyter.devices.source import DeviceReading
from genv_jupyter.ledger.records import RecordsLedger
from genv_jupyter.ledger.samples import Cells, Holder
from genv_jupyter.rollup import DeviceSums, Kept, Series, add

LONGEST_GAP = 5.0
"""Seconds between two readings that still count as seen without a break."""

QUIET_SECONDS = 600
"""After which sums are written where nothing happens; elsewhere at the end of each minute."""

FINEST, MINUTE = 10, 60

DeviceCells = dict[tuple[str, int], DeviceSums]


class History:
    """Adds readings up.

    Parameters
    ----------
    records
        Where the sums go.
    usable
        Returns how many bytes of a device can be granted.
    notices
        The broker's sentences for its user: lost samples are said there.
    """

    def __init__(
        self,
        records: RecordsLedger,
        books: Books,
        usable: Callable[[DeviceReading], int | None],
        notices: list[str],
    ) -> None:
        self.records = records
        self.books = books
        self.usable = usable
        self.notices = notices
        self.lock = threading.Lock()
        self.grants = Stretches(books, usable)
        self._devices: DeviceCells = {}
        self._lively: set[tuple[str, int]] = set()
        self._last: float | None = None
        self._minute: int | None = None
        self._wrote: float | None = None
        self._notice: str | None = None

    def take(self, usage: Mapping[str, DeviceUsage], *, steady: float, clock: float) -> None:
        """Take in a reading that was begun at ``steady`` (monotonic) and ``clock`` (epoch)."""
        gap, self._last = steady - (steady if self._last is None else self._last), steady
        if 0 < gap <= LONGEST_GAP:
            at = int(clock) // FINEST * FINEST
            with self.lock:
                for uuid, device in usage.items():
                    if device.reading.health in ("ok", "unreliable"):
                        self._device(uuid, device, at, gap, clock)
        minute, self._minute = self._minute, int(clock) // MINUTE
        if minute == self._minute:
            return
        if self._wrote is None:
            self._wrote = steady
        if self._lively or steady - self._wrote >= QUIET_SECONDS:
            self._wrote = steady
            self.write(int(clock))

    def close(self, clock: float) -> None:
        """Hand over all that is there."""
        self.write(int(clock), whole=True)

    def pending(self) -> tuple[DeviceCells, GrantCells, dict[str, Holder]]:
        """Return what is not yet handed over."""
        with self.lock:
            self.grants.settle()
            # Copies: those here grow on.
            devices = {key: copy(sums) for key, sums in self._devices.items()}
            grants = {key: copy(sums) for key, sums in self.grants.cells.items()}
            return devices, grants, dict(self.grants.holders)

    def write(self, now: int, *, whole: bool = False) -> None:
        """Hand over what is complete to the minute; with ``whole`` the minute that runs, too."""
        minute = None if whole else now // MINUTE
        with self.lock:
            self.grants.settle()
            devices, self._devices = _split(self._devices, minute)
            grants, self.grants.cells = _split(self.grants.cells, minute)
            quiet = {key for key in devices if (key[0], key[1] // MINUTE) not in self._lively}
            self._lively = {key for key in self._lively if key[1] == minute}
            holders, self.grants.holders = tuple(self.grants.holders.values()), {}
        self._say_lost()
        if not devices:
            return
        self.records.enqueue_samples(
            Cells(
                now=now,
                devices=devices,
                grants=grants,
                holders=holders,
                quiet=frozenset(() if whole else quiet),
            )
        )

    def _device(self, uuid: str, device: DeviceUsage, at: int, gap: float, clock: float) -> None:
        reading = device.reading
        ms = round(gap * 1000)
        sums = DeviceSums(seen=ms)
        if reading.memory_used is not None:
            sums.memory_known, sums.memory_peak = ms, reading.memory_used
            sums.memory = ms * mib(reading.memory_used)
        if reading.utilization is not None:
            sums.utilization_known, sums.utilization_peak = ms, reading.utilization
            sums.utilization = ms * reading.utilization
        if reading.temperature is not None:
            sums.temperature_known, sums.temperature_peak = ms, reading.temperature
            sums.temperature = ms * reading.temperature
        if reading.power is not None:
            sums.power_known, sums.power = ms, ms * reading.power
        sums.granted, sums.share = self.grants.take(device, at, ms, clock)
        if self.books.on_device.get(uuid) or reading.utilization or reading.processes:
            self._lively.add((uuid, at // MINUTE))
        add(self._devices, (uuid, at), sums)

    def _say_lost(self) -> None:
        """Tell the user once, and keep the number right."""
        lost = self.records.lost_samples
        if not lost:
            return
        said = f"{lost} samples of the history of use could not be written; broker.log says why."
        if self._notice in self.notices:
            self.notices[self.notices.index(self._notice)] = said
        else:
            self.notices.append(said)
        self._notice = said


def _split(
    cells: dict[tuple[Series, int], Kept], minute: int | None
) -> tuple[dict[tuple[Series, int], Kept], dict[tuple[Series, int], Kept]]:
    """Return the cells that do not belong to this minute, and those that do."""
    done: dict[tuple[Series, int], Kept] = {}
    runs: dict[tuple[Series, int], Kept] = {}
    for key, sums in cells.items():
        (runs if key[1] // MINUTE == minute else done)[key] = sums
    return done, runs
