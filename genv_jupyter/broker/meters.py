"""What was seen of each grant since it was given, and of each device lately.

Fed by every reading that the broker takes anyway, so viewers cost nothing. In memory only: after a
restart of the broker the peaks begin anew, and each says since when it is known.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from msgspec import Struct

from genv_jupyter.broker.usage import DeviceUsage
from genv_jupyter.ledger.rows import GrantRow

MEMORY_SECONDS = 300.0
"""For which the utilisation of a device is remembered."""

APART = 0.5
"""Seconds between two samples of utilisation: readings for a verb come between those of the round,
and must not weigh more."""

LONGEST_GAP = 5.0
"""Seconds between two samples that still count as seen without a break."""


class Peak(Struct):
    """What was seen of one grant. ``memory`` is the most, in bytes, and ``since`` when begun.

    ``used`` are the seconds in which processes of the environment were seen on the device.
    """

    granted: float
    since: float
    memory: int | None = None
    used: float = 0.0
    seen: float | None = None


class Load(Struct, frozen=True):
    """The utilisation of a device in the last minutes, in percent, and over how many seconds."""

    mean: int
    highest: int
    seconds: int


class Meters:
    """Peaks of grants, and the recent utilisation of devices."""

    def __init__(self) -> None:
        self.read_at: datetime | None = None
        self._peaks: dict[tuple[str, str], Peak] = {}
        self._loads: dict[str, deque[tuple[float, int]]] = {}

    def take(
        self,
        usage: Mapping[str, DeviceUsage],
        grants: Iterable[GrantRow],
        *,
        steady: float,
        clock: float,
    ) -> None:
        """Take in a reading that was begun at ``steady`` (monotonic) and ``clock`` (epoch)."""
        self.read_at = datetime.fromtimestamp(clock, UTC)
        for uuid, device in usage.items():
            if device.reading.health in ("ok", "unreliable"):
                self._load(uuid, device.reading.utilization, steady)
        for uuid in self._loads.keys() - usage.keys():
            del self._loads[uuid]
        there = list(grants)
        for grant in there:
            self._peak(grant, usage.get(grant.device), steady, clock)
        if len(self._peaks) > len(there):
            for key in self._peaks.keys() - {(it.environment, it.device) for it in there}:
                del self._peaks[key]

    def peak(self, grant: GrantRow) -> Peak | None:
        """Return what was seen of a grant; ``None`` before the first reading after it was given."""
        found = self._peaks.get((grant.environment, grant.device))
        return found if found is not None and found.granted == grant.since else None

    def load(self, uuid: str) -> Load | None:
        """Return how busy a device was lately; ``None`` where the driver does not say."""
        samples = self._loads.get(uuid)
        if not samples:
            return None
        values = [value for _, value in samples]
        span = samples[-1][0] - samples[0][0]
        return Load(round(sum(values) / len(values)), max(values), round(span))

    def _load(self, uuid: str, value: int | None, steady: float) -> None:
        samples = self._loads.setdefault(uuid, deque())
        while samples and steady - samples[0][0] > MEMORY_SECONDS:
            samples.popleft()
        if value is not None and (not samples or steady - samples[-1][0] >= APART):
            samples.append((steady, value))

    def _peak(
        self,
        grant: GrantRow,
        usage: DeviceUsage | None,
        steady: float,
        clock: float,
    ) -> None:
        key = grant.environment, grant.device
        peak = self._peaks.get(key)
        if peak is None or peak.granted != grant.since:
            peak = self._peaks[key] = Peak(grant.since, max(grant.since, clock))
        own = None if usage is None or not usage.own else usage.own.get(grant.environment)
        if not own:
            peak.seen = None
            return
        if peak.seen is not None and 0 < steady - peak.seen <= LONGEST_GAP:
            peak.used += steady - peak.seen
        peak.seen = steady
        amounts = [process.memory for process in own if process.memory is not None]
        if len(amounts) == len(own):  # one unknown amount, and the sum would be too small
            peak.memory = max(peak.memory or 0, sum(amounts))
