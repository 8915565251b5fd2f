"""Devices under maintenance: one table of the records, so that a reboot changes nothing."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import asdict
from sqlalchemy import Connection, delete, select
from sqlalchemy.dialects.sqlite import insert

from genv_jupyter.ledger.schema import maintenance


class MaintenanceRow(Struct, frozen=True, kw_only=True):
    """A device that is drained; ``at`` is seconds since the epoch."""

    device: str
    by: str
    reason: str
    at: float


def put(connection: Connection, row: MaintenanceRow) -> None:
    """Store it, in place of what was there for the device."""
    values = asdict(row)
    write = insert(maintenance).values(values)
    connection.execute(write.on_conflict_do_update(["device"], set_=values))


def drop(connection: Connection, device: str) -> None:
    """Forget it."""
    connection.execute(delete(maintenance).where(maintenance.c.device == device))


def every(connection: Connection) -> list[MaintenanceRow]:
    """Return all of them."""
    columns = [maintenance.c[name] for name in MaintenanceRow.__struct_fields__]
    return [MaintenanceRow(**row) for row in connection.execute(select(*columns)).mappings()]
