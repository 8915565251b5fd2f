"""What happens to grants, added up while it happens and not once a second.

A grant mostly stays as it is: as large, as much used, as idle. Such a stretch of a device is only
measured; it is put down for each of its grants when something changes, when its span of ten
seconds is over, or when somebody asks. A reading costs what has changed, whatever is held.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec import Struct

from genv_jupyter.broker.books import Books
from genv_jupyter.broker.discretion import label_of
from genv_jupyter.broker.usage import UNEXPLAINED, DeviceUsage
from genv_jupyter.broker.usage_view import used_now
from genv_jupyter.devices.source import DeviceReading
from genv_jupyter.ledger.rows import GrantRow
from genv_jupyter.ledger.samples import Holder
from genv_jupyter.rollup import GrantSums
from genv_jupyter.units import WHOLE

IDLE_PERCENT = 1
"""Up to this utilisation nobody computes: drivers show 1 % for a desktop that stands still."""

MIB = 2**20

GrantCells = dict[tuple[tuple[str, str], int], GrantSums]


class Part(NamedTuple):
    """One grant of a stretch. ``memory`` and ``used`` are MiB, ``used_peak`` bytes."""

    series: tuple[str, str]
    since: float
    memory: int
    share: int
    used: int | None
    used_peak: int | None
    idle: bool | None


class Stretch(Struct):
    """A time in which some grants of a device, and what is done with them, stay the same.

    ``ms`` are those that are not put down yet; ``latest`` is when the newest grant was given.
    """

    grants: list[GrantRow]
    facts: tuple[object, ...]
    at: int
    parts: list[Part]
    latest: float
    memory: int
    share: int
    ms: int = 0


class Stretches:
    """Adds up what is seen of grants. Whoever calls it holds a lock.

    Parameters
    ----------
    usable
        Returns how many bytes of a device can be granted.
    """

    def __init__(self, books: Books, usable: Callable[[DeviceReading], int | None]) -> None:
        self.books = books
        self.usable = usable
        self.cells: GrantCells = {}
        self.holders: dict[str, Holder] = {}
        self._stretches: dict[tuple[str, bool], Stretch] = {}

    def take(self, device: DeviceUsage, at: int, ms: int, clock: float) -> tuple[int, int]:
        """Take in a reading of a device.

        Parameters
        ----------
        at
            When its span of ten seconds began.
        ms
            Since the reading before.

        Returns
        -------
        tuple
            What was granted in that time: MiB, and hundredths of a percent, times milliseconds.
        """
        grants = list(self.books.on_device.get(device.reading.uuid, {}).values())
        using = [grant for grant in grants if grant.environment in device.own] if device.own else []
        if using:
            grants = [grant for grant in grants if grant.environment not in device.own]
        seen_resting = self._take(device, grants, at, ms, clock, using=False)
        seen_using = self._take(device, using, at, ms, clock, using=True)
        return seen_resting[0] + seen_using[0], seen_resting[1] + seen_using[1]

    def settle(self) -> None:
        """Put down all that was seen; ``cells`` and ``holders`` are complete then."""
        for stretch in self._stretches.values():
            self._put_down(stretch)

    def _take(
        self,
        device: DeviceUsage,
        grants: list[GrantRow],
        at: int,
        ms: int,
        clock: float,
        *,
        using: bool,
    ) -> tuple[int, int]:
        """Take in what is seen of grants with processes on the device, or of those without."""
        key = device.reading.uuid, using
        stretch = self._stretches.get(key)
        if not grants:
            if stretch is not None:
                self._put_down(stretch)
                del self._stretches[key]
            return 0, 0
        facts = self._facts(device, using)
        if stretch is None or stretch.facts != facts or stretch.grants != grants:
            if stretch is not None:
                self._put_down(stretch)
            stretch = self._stretches[key] = self._begin(device, grants, facts, at)
        elif stretch.at != at:
            self._put_down(stretch)
            stretch.at = at
        if round((clock - stretch.latest) * 1000) >= ms:
            stretch.ms += ms
            return ms * stretch.memory, ms * stretch.share
        return self._take_young(stretch, ms, clock)

    def _facts(self, device: DeviceUsage, using: bool) -> tuple[object, ...]:
        """Return all that ``_part`` depends on, besides the grants."""
        busy, usable = device.reading.utilization, self.usable(device.reading)
        idle = None if busy is None else busy <= IDLE_PERCENT
        if using:
            return device.own, idle, usable
        hidden = not device.known or (device.unattributed or 0) + device.unseen >= UNEXPLAINED
        # Whoever certainly has no process there is idle, however busy the device is with others.
        return hidden, hidden and idle, device.known, usable

    def _begin(
        self, device: DeviceUsage, grants: list[GrantRow], facts: tuple[object, ...], at: int
    ) -> Stretch:
        parts = [self._part(grant, device) for grant in grants if grant.state != "reserved"]
        for part in parts:
            self._remember(part.series[0], at)
        return Stretch(
            grants=grants,
            facts=facts,
            at=at,
            parts=parts,
            latest=max((part.since for part in parts), default=0.0),
            memory=sum(part.memory for part in parts),
            share=sum(part.share for part in parts),
        )

    def _part(self, grant: GrantRow, device: DeviceUsage) -> Part:
        used, busy = used_now(device, grant.environment), device.reading.utilization
        idle: bool | None = None
        if used == 0 or (busy is not None and (used is not None or busy <= IDLE_PERCENT)):
            idle = used == 0 or (busy or 0) <= IDLE_PERCENT
        return Part(
            series=(grant.environment, grant.device),
            since=grant.since,
            memory=mib(grant.counted_memory),
            share=self._share(grant, device.reading),
            used=None if used is None else mib(used),
            used_peak=used,
            idle=idle,
        )

    def _share(self, grant: GrantRow, reading: DeviceReading) -> int:
        """Return how much of a device a grant keeps from others: of its memory or its compute."""
        if grant.counted_exclusive:
            return WHOLE
        usable = self.usable(reading)
        memory = grant.counted_memory * WHOLE // usable if usable else 0
        return min(WHOLE, max(memory, grant.counted_compute))

    def _take_young(self, stretch: Stretch, ms: int, clock: float) -> tuple[int, int]:
        """Put a reading down at once: a grant is younger than it, and counts from when it was."""
        memory = share = 0
        for part in stretch.parts:
            held = min(ms, round((clock - part.since) * 1000))
            if held > 0:
                self._add([part], stretch.at, held)
                memory += held * part.memory
                share += held * part.share
        return memory, share

    def _put_down(self, stretch: Stretch) -> None:
        if stretch.ms:
            self._add(stretch.parts, stretch.at, stretch.ms)
            stretch.ms = 0

    def _add(self, parts: Sequence[Part], at: int, held: int) -> None:
        cells = self.cells
        for series, _, memory, share, used, used_peak, idle in parts:
            sums = cells.get((series, at))
            if sums is None:
                sums = cells[series, at] = GrantSums()
                self._remember(series[0], at)
            sums.held += held
            sums.memory += held * memory
            sums.share += held * share
            if used is not None and used_peak is not None:
                sums.used_known += held
                sums.used += held * used
                sums.used_peak = max(sums.used_peak or 0, used_peak)
            if idle is not None:
                sums.idle_known += held
                sums.idle += held if idle else 0

    def _remember(self, environment: str, at: int) -> None:
        """Note whose it is, while it is there: what is put down later may be of one that ended."""
        row = self.books.environments.get(environment)
        if environment not in self.holders and row is not None:
            self.holders[environment] = Holder(
                environment=environment, owner=row.owner, user=row.user, name=label_of(row), seen=at
            )


def mib(memory: int) -> int:
    """Return bytes in MiB."""
    return round(memory / MIB)
