"""The history of use as the doors show it: what is written, and what is not yet.

Reading waits for a disk that may hang, so nothing here is called under the broker's lock, nor by
the thread that runs the verbs.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from datetime import UTC, datetime

from msgspec.structs import replace

from genv_jupyter.broker.discretion import SOMEBODY
from genv_jupyter.broker.history import FINEST, MINUTE, History
from genv_jupyter.broker.stretches import MIB
from genv_jupyter.errors import NotYours, Unavailable, UnknownDevice, UnknownEnvironment
from genv_jupyter.ledger import samples
from genv_jupyter.ledger.rows import Record
from genv_jupyter.ledger.samples import Holder
from genv_jupyter.model import Principal
from genv_jupyter.reports import (
    By,
    DeviceHistory,
    DevicePoint,
    EnvironmentHistory,
    GrantPoint,
    GrantSeries,
    PastEvent,
    ReportRow,
    UsageReport,
)
from genv_jupyter.rollup import (
    LEVELS,
    DeviceSums,
    GrantSums,
    add,
    coarser,
    combine,
    mean,
    plan,
    spread,
    total,
)
from genv_jupyter.units import WHOLE

OTHERS = "others"
FINE_REPORT = 2 * 86400
"""Seconds: a report of no more than this begins at a minute, others at a full hour."""


MOST_EVENTS = 500
"""That an answer has; the newest."""


class Past:
    """Answers questions about the history.

    Parameters
    ----------
    history
        ``None`` where no records are kept.
    clock
        Seconds since the epoch.
    devices
        UUIDs of the present devices.
    simulated
        Says whether they are.
    hides
        Says whether users do not see each other's names.
    """

    def __init__(
        self,
        history: History | None,
        clock: Callable[[], float],
        devices: Container[str],
        simulated: Callable[[], bool],
        hides: Callable[[], bool] = lambda: False,
    ) -> None:
        self._history = history
        self.clock = clock
        self.devices = devices
        self.simulated = simulated
        self.hides = hides

    @property
    def history(self) -> History:
        """The sums.

        Raises
        ------
        Unavailable
            None are kept.
        """
        if self._history is None:
            raise Unavailable(
                "No history of use is kept here.", hint="`jupyter gpu doctor` says why."
            )
        return self._history

    def device(
        self, device: str, since: float, step: int | None, principal: Principal | None = None
    ) -> DeviceHistory:
        """Return a device's past, as this principal may see it.

        Raises
        ------
        UnknownDevice
            It is not here, and was not.
        """
        now = self.clock()
        level, step = plan(since, now, step)
        first = _floor(max(since, now - LEVELS[level]), step)
        cells: dict[tuple[str, int], DeviceSums] = {}
        for at, sums in self._device_cells(device, level, first, step).items():
            cells[device, at] = sums
        pending = {key: it for key, it in self.history.pending()[0].items() if key[0] == device}
        for key, sums in coarser(pending, step).items():
            if key[1] >= first:
                add(cells, key, sums)
        if not cells and device not in self.devices:
            raise UnknownDevice(
                f"No device {device[:64]!r} is known.", hint="Name it by its whole UUID."
            )
        return DeviceHistory(
            device=device,
            since=_time(first),
            until=_time(now),
            step=step,
            points=tuple(_device_point(at, sums, step) for (_, at), sums in sorted(cells.items())),
            events=self._events(principal, first, device=device),
        )

    def _device_cells(
        self, device: str, level: int, first: int, step: int
    ) -> dict[int, DeviceSums]:
        """Read a device's cells; quiet minutes are kept as one, and shown as what they were."""
        run = self.history.records.run
        if level != FINEST or step % MINUTE == 0:
            level = max(level, MINUTE)
            return run(lambda it: samples.device_points(it, device, level, first, step))
        minutes = run(lambda it: samples.device_points(it, device, MINUTE, first, MINUTE))
        fine = run(lambda it: samples.device_points(it, device, FINEST, first, FINEST))
        moved = {at // MINUTE for at in fine}
        cells = {("", at): sums for at, sums in fine.items()}
        for minute, sums in minutes.items():
            if minute // MINUTE not in moved:
                part = spread(sums, MINUTE // FINEST)
                for at in range(minute, minute + MINUTE, FINEST):
                    cells["", at] = part
        return {at: sums for (_, at), sums in coarser(cells, step).items()}

    def environment(
        self, principal: Principal, environment: str, since: float, step: int | None
    ) -> EnvironmentHistory:
        """Return an environment's past, also when it has ended.

        Raises
        ------
        UnknownEnvironment
            It held nothing that is remembered.
        NotYours
            It was somebody else's.
        """
        now = self.clock()
        level, step = plan(since, now, step)
        first = _floor(max(since, now - LEVELS[level]), step)
        run = self.history.records.run
        _, pending, holders = self.history.pending()
        holder = holders.get(environment)
        if holder is None:
            holder = run(lambda it: samples.holders_of(it, environment)).get(environment)
        if holder is None:
            raise UnknownEnvironment(
                f"Nothing is remembered of a GPU environment {environment[:64]!r}.",
                hint="It held no GPU, or that is too long ago.",
            )
        if holder.owner != principal.key and not principal.admin:
            who = SOMEBODY if self.hides() else holder.user
            raise NotYours(f"This environment belonged to {who}.", hint="Ask its owner.")
        cells = run(lambda it: samples.grant_points(it, environment, level, first, step))
        for ((whose, device), at), sums in coarser(pending, step).items():
            if whose == environment and at >= first:
                add(cells, (device, at), sums)
        points: dict[str, list[GrantPoint]] = {}
        for (device, at), sums in sorted(cells.items()):
            points.setdefault(device, []).append(_grant_point(at, sums, step))
        return EnvironmentHistory(
            environment=environment,
            user=holder.user,
            name=holder.name,
            since=_time(first),
            until=_time(now),
            step=step,
            devices=tuple(
                GrantSeries(device=uuid, points=tuple(it)) for uuid, it in points.items()
            ),
            events=self._events(principal, first, environment=environment),
        )

    def _events(
        self,
        principal: Principal | None,
        since: int,
        *,
        device: str | None = None,
        environment: str | None = None,
    ) -> tuple[PastEvent, ...]:
        """Return the newest of what happened; details of one's own environments only."""
        records = self.history.records
        found = records.history(since, MOST_EVENTS, device=device, environment=environment)
        if not found:
            return ()
        holders = records.run(samples.holders_of) | self.history.pending()[2]
        holders = self._shown(holders, principal)
        return tuple(
            _event(record, holders.get(record.environment or ""), principal) for record in found
        )

    def _shown(
        self, holders: Mapping[str, Holder], principal: Principal | None
    ) -> dict[str, Holder]:
        """Return whose environments were, as somebody may know it: all others may be as one."""
        if not self.hides() or (principal is not None and principal.admin):
            return dict(holders)
        own = None if principal is None else principal.key
        return {
            name: it if it.owner == own else replace(it, owner=OTHERS, user=SOMEBODY)
            for name, it in holders.items()
        }

    def report(self, principal: Principal, since: float, by: By) -> UsageReport:
        """Add up what everybody had."""
        now = self.clock()
        plan(since, now, None)
        level = MINUTE if now - since <= FINE_REPORT else max(LEVELS)
        first = _floor(max(since, now - LEVELS[level]), level)
        run = self.history.records.run
        devices = run(lambda it: samples.device_totals(it, level, first))
        grants = run(lambda it: samples.grant_totals(it, level, first))
        holders = run(samples.holders_of)
        late_devices, late_grants, late_holders = self.history.pending()
        for (uuid, at), sums in late_devices.items():
            if at >= first:
                devices[uuid] = combine(devices.get(uuid, DeviceSums()), sums)
        for (key, at), late in late_grants.items():
            if at >= first:
                grants[key] = combine(grants.get(key, GrantSums()), late)
        holders = self._shown(holders | late_holders, principal)
        seen = max((sums.seen for sums in devices.values()), default=0)
        return UsageReport(
            by=by,
            since=_time(first),
            until=_time(now),
            seen_seconds=min(round(seen / 1000), round(now - first)),
            simulated=self.simulated(),
            lost_samples=self.history.records.lost_samples,
            rows=_rows(by, principal, devices, grants, holders),
        )


def _rows(
    by: By,
    principal: Principal,
    devices: Mapping[str, DeviceSums],
    grants: Mapping[tuple[str, str], GrantSums],
    holders: Mapping[str, Holder],
) -> tuple[ReportRow, ...]:
    """Return a row for each user, device or environment, who had most first."""
    groups: dict[str, list[GrantSums]] = {uuid: [] for uuid in devices} if by == "device" else {}
    about: dict[str, Holder] = {}
    for (environment, device), sums in grants.items():
        holder = holders.get(environment)
        if by == "device":
            key = device
        elif by == "environment" or holder is None:
            key = environment
        else:
            key = holder.owner
        groups.setdefault(key, []).append(sums)
        if holder is not None and by != "device":
            about[key] = holder
    found = []
    for key, many in groups.items():
        peak = devices[key].memory_peak if by == "device" and key in devices else None
        found.append(_row(key, total(many, GrantSums()), about.get(key), by, principal, peak))
    return tuple(sorted(found, key=lambda row: (-row.gpu_seconds, row.key)))


def _row(
    key: str,
    sums: GrantSums,
    holder: Holder | None,
    by: By,
    principal: Principal,
    peak: int | None,
) -> ReportRow:
    mine = holder is not None and (holder.owner == principal.key or principal.admin)
    return ReportRow(
        key=key,
        user=None if holder is None else holder.user,
        name=holder.name if holder is not None and mine and by == "environment" else None,
        gpu_seconds=round(sums.share / WHOLE / 1000),
        held_seconds=round(sums.held / 1000),
        known_seconds=round(sums.idle_known / 1000),
        idle_seconds=round(sums.idle / 1000),
        memory_peak=peak if by == "device" else sums.used_peak,
    )


def _device_point(at: int, sums: DeviceSums, step: int) -> DevicePoint:
    return DevicePoint(
        at=_time(at),
        seconds=min(step, round(sums.seen / 1000)),
        memory_used=_bytes(sums.memory, sums.memory_known),
        memory_peak=sums.memory_peak,
        utilization=mean(sums.utilization, sums.utilization_known),
        utilization_peak=sums.utilization_peak,
        memory_granted=_bytes(sums.granted, sums.seen),
        share=mean(sums.share, sums.seen),
        temperature=mean(sums.temperature, sums.temperature_known),
        temperature_peak=sums.temperature_peak,
        power=mean(sums.power, sums.power_known),
    )


def _grant_point(at: int, sums: GrantSums, step: int) -> GrantPoint:
    return GrantPoint(
        at=_time(at),
        seconds=min(step, round(sums.held / 1000)),
        memory=_bytes(sums.memory, sums.held),
        share=mean(sums.share, sums.held),
        memory_used=_bytes(sums.used, sums.used_known),
        memory_peak=sums.used_peak,
        idle=round(sums.idle / sums.idle_known, 4) if sums.idle_known else None,
    )


def _event(record: Record, holder: Holder | None, principal: Principal | None) -> PastEvent:
    mine = principal is not None and (record.owner == principal.key or principal.admin)
    return PastEvent(
        at=_time(record.at),
        event=record.event,
        environment=record.environment,
        device=record.device,
        user=None if holder is None else holder.user,
        name=holder.name if mine and holder is not None else None,
        reason=record.reason if mine else None,
    )


def _bytes(sums: int, known: int) -> int | None:
    return mean(sums * MIB, known)


def _floor(at: float, step: int) -> int:
    return int(at) // step * step


def _time(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)
