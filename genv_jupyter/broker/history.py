"""The history of use: every reading is added up, and once a minute the sums go to the records.

Adding up happens under the broker's lock and takes microseconds; the records' own thread writes.
What is not written yet is lost with a broker that is killed: a minute, and a few of a host where
nothing happens. A device that nobody holds and that does nothing leaves a row a minute and one an
hour, written every ten minutes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from genv_jupyter.broker.books import Books
from genv_jupyter.broker.discretion import label_of
from genv_jupyter.broker.usage import DeviceUsage
from genv_jupyter.broker.usage_view import used_now
from genv_jupyter.devices.source import DeviceReading
from genv_jupyter.ledger.records import RecordsLedger
from genv_jupyter.ledger.rows import GrantRow
from genv_jupyter.ledger.samples import DeviceSample, GrantSample, Holder, Samples
from genv_jupyter.rollup import LEVELS, DeviceSums, GrantSums, Kept, Series, add, coarser
from genv_jupyter.units import WHOLE

LONGEST_GAP = 5.0
"""Seconds between two readings that still count as seen without a break."""

QUIET_SECONDS = 600
"""After which sums are written where nothing happens; elsewhere at the end of each minute."""

IDLE_PERCENT = 1
"""Up to this utilisation nobody computes: drivers show 1 % for a desktop that stands still."""

MIB = 2**20
FINEST, MINUTE = 10, 60

DeviceCells = dict[tuple[str, int], DeviceSums]
GrantCells = dict[tuple[tuple[str, str], int], GrantSums]


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
        self._devices: DeviceCells = {}
        self._grants: GrantCells = {}
        self._holders: dict[str, Holder] = {}
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
            return dict(self._devices), dict(self._grants), dict(self._holders)

    def write(self, now: int, *, whole: bool = False) -> None:
        """Hand over what is complete to the minute; with ``whole`` the minute that runs, too."""
        minute = None if whole else now // MINUTE
        with self.lock:
            devices, self._devices = _split(self._devices, minute)
            grants, self._grants = _split(self._grants, minute)
            quiet = {key for key in devices if (key[0], key[1] // MINUTE) not in self._lively}
            self._lively = {key for key in self._lively if key[1] == minute}
            holders, self._holders = tuple(self._holders.values()), {}
        self._say_lost()
        if not devices:
            return
        fine = {key: sums for key, sums in devices.items() if whole or key not in quiet}
        self.records.enqueue_samples(
            Samples(
                now=now,
                devices=tuple(
                    DeviceSample(step, at, uuid, sums)
                    for step in LEVELS
                    for (uuid, at), sums in (
                        fine if step == FINEST else coarser(devices, step)
                    ).items()
                ),
                grants=tuple(
                    GrantSample(step, at, environment, uuid, sums)
                    for step in LEVELS
                    for ((environment, uuid), at), sums in coarser(grants, step).items()
                ),
                holders=holders,
            )
        )

    def _device(self, uuid: str, device: DeviceUsage, at: int, gap: float, clock: float) -> None:
        reading = device.reading
        ms = round(gap * 1000)
        sums = DeviceSums(seen=ms)
        if reading.memory_used is not None:
            sums.memory_known, sums.memory_peak = ms, reading.memory_used
            sums.memory = ms * _mib(reading.memory_used)
        if reading.utilization is not None:
            sums.utilization_known, sums.utilization_peak = ms, reading.utilization
            sums.utilization = ms * reading.utilization
        if reading.temperature is not None:
            sums.temperature_known, sums.temperature_peak = ms, reading.temperature
            sums.temperature = ms * reading.temperature
        if reading.power is not None:
            sums.power_known, sums.power = ms, ms * reading.power
        grants = self.books.on_device.get(uuid, {}).values()
        for grant in grants:
            held = min(ms, round((clock - grant.since) * 1000))
            if held <= 0 or grant.state == "reserved":
                continue
            share = self._share(grant, reading)
            sums.granted += held * _mib(grant.counted_memory)
            sums.share += held * share
            self._grant(grant, device, at, held, share)
        if grants or reading.utilization or reading.processes:
            self._lively.add((uuid, at // MINUTE))
        add(self._devices, (uuid, at), sums)

    def _grant(self, grant: GrantRow, device: DeviceUsage, at: int, held: int, share: int) -> None:
        sums = GrantSums(held=held, memory=held * _mib(grant.counted_memory), share=held * share)
        used = used_now(device, grant.environment)
        if used is not None:
            sums.used_known, sums.used, sums.used_peak = held, held * _mib(used), used
        busy = device.reading.utilization
        if used == 0 or (busy is not None and (used is not None or busy <= IDLE_PERCENT)):
            sums.idle_known = held
            sums.idle = held if used == 0 or (busy or 0) <= IDLE_PERCENT else 0
        key = (grant.environment, grant.device), at
        if key not in self._grants:
            row = self.books.environments[grant.environment]
            self._holders[row.id] = Holder(
                environment=row.id, owner=row.owner, user=row.user, name=label_of(row), seen=at
            )
        add(self._grants, key, sums)

    def _share(self, grant: GrantRow, reading: DeviceReading) -> int:
        """Return how much of a device a grant keeps from others: of its memory or its compute."""
        if grant.counted_exclusive:
            return WHOLE
        usable = self.usable(reading)
        memory = grant.counted_memory * WHOLE // usable if usable else 0
        return min(WHOLE, max(memory, grant.counted_compute))

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


def _mib(memory: int) -> int:
    return round(memory / MIB)


def _split(
    cells: dict[tuple[Series, int], Kept], minute: int | None
) -> tuple[dict[tuple[Series, int], Kept], dict[tuple[Series, int], Kept]]:
    """Return the cells that do not belong to this minute, and those that do."""
    done: dict[tuple[Series, int], Kept] = {}
    runs: dict[tuple[Series, int], Kept] = {}
    for key, sums in cells.items():
        (runs if key[1] // MINUTE == minute else done)[key] = sums
    return done, runs
