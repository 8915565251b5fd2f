"""Quotas that were set while the broker ran, and who did what: two tables of the records."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, structs
from msgspec.structs import asdict
from sqlalchemy import Connection, delete, func, or_, select
from sqlalchemy.dialects.sqlite import insert

from genv_jupyter.ledger.schema import audit, grant_samples, holders, quotas
from genv_jupyter.ledger.statements import Inserting

KEEP = 200_000
"""Entries of the audit log that are kept; the oldest make room."""


class QuotaRow(Struct, frozen=True, kw_only=True):
    """A rule; ``limits`` is JSON text. ``at`` is seconds since the epoch."""

    scope: str
    limits: str
    by: str
    at: float


class AuditRow(Struct, frozen=True, kw_only=True):
    """Who wanted what, and what came of it.

    ``said`` is why it was refused; ``owner`` the key of the principal on whose account it was, if
    that is another; ``claimed`` who it was as that one's server says, which nobody has proved.
    """

    at: float
    actor: str
    name: str
    action: str
    target: str
    status: int
    said: str | None = None
    owner: str | None = None
    claimed: str | None = None


_NOTE = Inserting(audit, AuditRow.__struct_fields__)


def put(connection: Connection, row: QuotaRow) -> None:
    """Store a rule."""
    values = asdict(row)
    write = insert(quotas).values(values)
    connection.execute(write.on_conflict_do_update(["scope"], set_=values))


def drop(connection: Connection, scope: str) -> bool:
    """Forget a rule; say whether it was there."""
    return connection.execute(delete(quotas).where(quotas.c.scope == scope)).rowcount > 0


def every(connection: Connection) -> list[QuotaRow]:
    """Return all rules."""
    columns = [quotas.c[name] for name in QuotaRow.__struct_fields__]
    return [QuotaRow(**row) for row in connection.execute(select(*columns)).mappings()]


def note(connection: Connection, rows: Sequence[AuditRow]) -> None:
    """Write to the audit log."""
    if rows:
        _NOTE(connection, map(structs.astuple, rows))
        newest = select(func.max(audit.c.id)).scalar_subquery()
        connection.execute(delete(audit).where(audit.c.id <= newest - KEEP))


def noted(connection: Connection, limit: int, search: str | None = None) -> list[AuditRow]:
    """Return the newest entries of the audit log, the newest first."""
    columns = [audit.c[name] for name in AuditRow.__struct_fields__]
    query = select(*columns).order_by(audit.c.id.desc()).limit(limit)
    if search:
        names = ("actor", "name", "action", "target", "said", "owner", "claimed")
        query = query.where(or_(*(audit.c[it].contains(search, autoescape=True) for it in names)))
    return [AuditRow(**row) for row in connection.execute(query).mappings()]


def spent(connection: Connection, level: int, since: int) -> dict[str, int]:
    """Return what each owner had since then, in hundredths of a percent times milliseconds."""
    query = (
        select(holders.c.owner, func.sum(grant_samples.c.share))
        .join(holders, holders.c.environment == grant_samples.c.environment)
        .where(grant_samples.c.step == level, grant_samples.c.at >= since)
        .group_by(holders.c.owner)
    )
    return {owner: int(share) for owner, share in connection.execute(query)}
