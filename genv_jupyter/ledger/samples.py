"""The history of use in the records: rolled-up samples, in and out.

Written by the records' own thread, which may wait for a disk as long as it likes. A cell that is
there already grows: two brokers, or two halves of one, may have seen parts of one span.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import asdict
from sqlalchemy import Connection, Select, Table, delete, func, select
from sqlalchemy.dialects.sqlite import insert

from genv_jupyter.ledger.schema import device_samples, grant_samples, holders
from genv_jupyter.rollup import LEVELS, DeviceSums, GrantSums, coarser

Kept = TypeVar("Kept", DeviceSums, GrantSums)

MOST_ROWS = 100_000
"""Of each level and kind: with all levels full some 60 MB."""

_PEAK = "_peak"


class Holder(Struct, frozen=True, kw_only=True):
    """Whose an environment was, and what it was called; it may be gone."""

    environment: str
    owner: str
    user: str
    name: str | None
    seen: int


class DeviceSample(Struct, frozen=True):
    """What was seen of a device in a span."""

    step: int
    at: int
    device: str
    sums: DeviceSums


class GrantSample(Struct, frozen=True):
    """What was seen of an environment on a device in a span."""

    step: int
    at: int
    environment: str
    device: str
    sums: GrantSums


class Samples(Struct, frozen=True, kw_only=True):
    """What is written at once. ``now`` is the time by which what is too old goes."""

    now: int
    devices: tuple[DeviceSample, ...] = ()
    grants: tuple[GrantSample, ...] = ()
    holders: tuple[Holder, ...] = ()

    def __len__(self) -> int:
        return len(self.devices) + len(self.grants)


class Cells(Struct, frozen=True, kw_only=True):
    """What was seen, not yet rolled up: whoever saw it has no time for that.

    ``quiet`` are the cells of devices on which nothing happened: of them the finest level is not
    kept.
    """

    now: int
    devices: dict[tuple[str, int], DeviceSums]
    grants: dict[tuple[tuple[str, str], int], GrantSums]
    holders: tuple[Holder, ...]
    quiet: frozenset[tuple[str, int]] = frozenset()

    def __len__(self) -> int:
        return len(self.devices) + len(self.grants)

    def rolled(self) -> Samples:
        """Return it at every level."""
        finest = min(LEVELS)
        loud = {key: sums for key, sums in self.devices.items() if key not in self.quiet}
        return Samples(
            now=self.now,
            devices=tuple(
                DeviceSample(step, at, uuid, sums)
                for step in LEVELS
                for (uuid, at), sums in coarser(
                    loud if step == finest else self.devices, step
                ).items()
            ),
            grants=tuple(
                GrantSample(step, at, environment, uuid, sums)
                for step in LEVELS
                for ((environment, uuid), at), sums in coarser(self.grants, step).items()
            ),
            holders=self.holders,
        )


def put(connection: Connection, samples: Samples, most: int = MOST_ROWS) -> None:
    """Write samples, and drop what is too old or too much."""
    _grow(connection, device_samples, samples.devices)
    _grow(connection, grant_samples, samples.grants)
    for holder in samples.holders:
        values = asdict(holder)
        write = insert(holders).values(values)
        connection.execute(write.on_conflict_do_update(["environment"], set_=values))
    for table in (device_samples, grant_samples):
        for step, seconds in LEVELS.items():
            _trim(connection, table, step, samples.now - seconds, most)
    if samples.grants:
        known = select(grant_samples.c.environment)
        connection.execute(
            delete(holders).where(
                holders.c.seen < samples.now - min(LEVELS.values()),
                holders.c.environment.not_in(known),
            )
        )


def _grow(
    connection: Connection, table: Table, samples: Sequence[DeviceSample | GrantSample]
) -> None:
    """Add samples to the rows that are there, or make them."""
    if not samples:
        return
    write = insert(table)
    new, old = write.excluded, table.c
    grown: dict[str, Any] = {}
    for column in table.columns:
        if column.primary_key:
            continue
        if column.name.endswith(_PEAK):
            both = func.max(new[column.name], old[column.name])
            grown[column.name] = func.coalesce(both, new[column.name], old[column.name])
        else:
            grown[column.name] = old[column.name] + new[column.name]
    rows = []
    for sample in samples:
        row = {name: getattr(sample, name) for name in sample.__struct_fields__ if name != "sums"}
        rows.append({**row, **asdict(sample.sums)})
    keys = [column.name for column in table.primary_key]
    connection.execute(write.on_conflict_do_update(keys, set_=grown), rows)


def _trim(connection: Connection, table: Table, step: int, oldest: int, most: int) -> None:
    newest = table.c.at.desc()
    beyond = select(table.c.at).where(table.c.step == step).order_by(newest).limit(1).offset(most)
    least = connection.execute(beyond).scalar()
    if least is not None:
        oldest = max(oldest, least + 1)
    connection.execute(delete(table).where(table.c.step == step, table.c.at < oldest))


# -- reading --------------------------------------------------------------------------------------


def device_points(
    connection: Connection, device: str, level: int, since: int, step: int
) -> dict[int, DeviceSums]:
    """Return what was seen of a device, in spans of ``step`` seconds."""
    at = device_samples.c.at - device_samples.c.at % step
    query = _summed(device_samples, DeviceSums, at.label("span"))
    query = query.where(device_samples.c.device == device).group_by(at)
    return {
        span: sums
        for (span,), sums in _found(
            connection, _since(query, device_samples, level, since), DeviceSums
        )
    }


def grant_points(
    connection: Connection, environment: str, level: int, since: int, step: int
) -> dict[tuple[str, int], GrantSums]:
    """Return what was seen of an environment, by device and span of ``step`` seconds."""
    at = grant_samples.c.at - grant_samples.c.at % step
    query = _summed(grant_samples, GrantSums, grant_samples.c.device, at.label("span"))
    query = query.where(grant_samples.c.environment == environment)
    query = query.group_by(grant_samples.c.device, at)
    query = _since(query, grant_samples, level, since)
    return dict(_found(connection, query, GrantSums))


def device_totals(connection: Connection, level: int, since: int) -> dict[str, DeviceSums]:
    """Return what was seen of each device."""
    query = _summed(device_samples, DeviceSums, device_samples.c.device)
    query = _since(query.group_by(device_samples.c.device), device_samples, level, since)
    return {device: sums for (device,), sums in _found(connection, query, DeviceSums)}


def grant_totals(
    connection: Connection, level: int, since: int
) -> dict[tuple[str, str], GrantSums]:
    """Return what was seen of each environment on each device."""
    keys = grant_samples.c.environment, grant_samples.c.device
    query = _summed(grant_samples, GrantSums, *keys).group_by(*keys)
    query = _since(query, grant_samples, level, since)
    return dict(_found(connection, query, GrantSums))


def holders_of(connection: Connection, environment: str | None = None) -> dict[str, Holder]:
    """Return whose environments are, or were."""
    columns = [holders.c[name] for name in Holder.__struct_fields__]
    query = select(*columns)
    if environment is not None:
        query = query.where(holders.c.environment == environment)
    found = (Holder(**row) for row in connection.execute(query).mappings())
    return {holder.environment: holder for holder in found}


def _summed(table: Table, kind: type[Kept], *keys: Any) -> Select[Any]:
    columns = [
        func.max(table.c[name]) if name.endswith(_PEAK) else func.sum(table.c[name])
        for name in kind.__struct_fields__
    ]
    return select(*keys, *columns)


def _since(query: Select[Any], table: Table, level: int, since: int) -> Select[Any]:
    return query.where(table.c.step == level, table.c.at >= since)


def _found(
    connection: Connection, query: Select[Any], kind: type[Kept]
) -> Iterable[tuple[Any, Kept]]:
    names = kind.__struct_fields__
    for row in connection.execute(query):
        keys, values = tuple(row)[: -len(names)], tuple(row)[-len(names) :]
        yield keys, kind(**dict(zip(names, values, strict=True)))
