"""Tables of the two ledgers, as SQLAlchemy Core.

The columns of a table are the fields of its row in ``genv_jupyter.ledger.rows``, in that order;
what follows them are counters, kept by the statements in ``genv_jupyter.ledger.statements``.
The CHECK constraints on the counters are the last guard of the invariants: whatever the code
above does, the database refuses to give a device out twice.

A change here needs a migration beside it; tests compare the two.
"""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
)


class Schema(NamedTuple):
    """One ledger's tables, and the revisions they had, oldest first.

    The last revision is the one of this code; one that is not listed is of a newer version.
    """

    name: str
    tables: MetaData
    revisions: tuple[str, ...]

    @property
    def head(self) -> str:
        """The revision of this code."""
        return self.revisions[-1]


live = MetaData()
records = MetaData()

_number = BigInteger().with_variant(Integer, "sqlite")  # SQLite's row id is an INTEGER only


def _check(name: str, condition: str) -> CheckConstraint:
    return CheckConstraint(condition, name=name)


devices = Table(
    "devices",
    live,
    Column("uuid", Text, primary_key=True),
    Column("memory_capacity", BigInteger, nullable=False),
    Column("compute_capacity", BigInteger, nullable=False),
    Column("memory_granted", BigInteger, nullable=False, server_default="0"),
    Column("exclusive_grants", BigInteger, nullable=False, server_default="0"),
    Column("shared_grants", BigInteger, nullable=False, server_default="0"),
    _check("memory_fits", "memory_granted BETWEEN 0 AND memory_capacity"),
    _check("one_exclusive", "exclusive_grants BETWEEN 0 AND 1"),
    _check("shared_counted", "shared_grants >= 0"),
    _check("exclusive_alone", "exclusive_grants = 0 OR shared_grants = 0"),
    _check("compute_capacity_counted", "compute_capacity >= 0"),
    sqlite_with_rowid=False,
)

shares = Table(
    "shares",
    live,
    Column("device", Text, ForeignKey("devices.uuid"), primary_key=True),
    Column("owner", Text, primary_key=True),
    Column("compute_capacity", BigInteger, nullable=False),
    Column("compute_granted", BigInteger, nullable=False),
    _check("compute_fits", "compute_granted BETWEEN 0 AND compute_capacity"),
    sqlite_with_rowid=False,
)

servers = Table(
    "servers",
    live,
    Column("id", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("pid", BigInteger, nullable=False),
    Column("start", BigInteger, nullable=False),
    Column("version", Text, nullable=False),
    Column("pool", Text),
    Column("name", Text),
    sqlite_with_rowid=False,
)

# ``server`` and ``previous`` are no foreign keys: kernels outlive their server, and a kernel that
# has been taken over is gone.
environments = Table(
    "environments",
    live,
    Column("id", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("user", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("launch", BigInteger, nullable=False),
    Column("name", Text),
    Column("path", Text),
    Column("server", Text),
    Column("previous", Text),
    Column("request", Text),
    Column("pid", BigInteger),
    Column("start", BigInteger),
    Column("pool", Text),
    Column("unattached", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("applied", Text),
    Column("cuda", Text, nullable=False),
    Column("deadline", Double),
    Column("reason", Text),
    Column("created", Double, nullable=False),
    Column("expires", Double),
    Column("revision", BigInteger, nullable=False, server_default="0"),
    Column("confirmed", BigInteger),
    Column("restart", Double),
    Column("reservation", Text),
    Column("entitled", Text),
    sqlite_with_rowid=False,
)

grants = Table(
    "grants",
    live,
    Column("id", _number, primary_key=True, autoincrement=False),
    Column("environment", Text, ForeignKey("environments.id"), nullable=False),
    Column("device", Text, ForeignKey("devices.uuid"), nullable=False),
    Column("owner", Text, nullable=False),
    Column("memory", BigInteger, nullable=False),
    Column("compute", BigInteger),
    Column("exclusive", Boolean, nullable=False),
    Column("counted_memory", BigInteger, nullable=False),
    Column("counted_compute", BigInteger, nullable=False),
    Column("counted_exclusive", Boolean, nullable=False),
    Column("state", Text, nullable=False),
    Column("applied", Text),
    Column("since", Double, nullable=False),
    Column("mps", Boolean, nullable=False, server_default=false()),
    Column("processes", BigInteger, nullable=False, server_default="1"),
    Column("without", Text),
    Column("started", BigInteger),
    # A negative count would make room that is not there.
    _check("memory_counted", "counted_memory >= 0"),
    _check("compute_counted", "counted_compute >= 0"),
    UniqueConstraint("environment", "device", name="one_grant_each"),
)

tickets = Table(
    "tickets",
    live,
    Column("id", Text, primary_key=True),
    Column("environment", Text, ForeignKey("environments.id"), nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("request", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("since", Double, nullable=False),
    Column("came", Double, nullable=False),
    Column("until", Double),
    Column("restart", Boolean, nullable=False),
    Column("pid", BigInteger),
    Column("start", BigInteger),
    UniqueConstraint("environment", name="one_ticket_each"),
    sqlite_with_rowid=False,
)

# No foreign keys: a note outlives who wrote it, and whoever it was left for is told of that.
notes = Table(
    "notes",
    live,
    Column("environment", Text, primary_key=True),
    Column("by", Text, primary_key=True),
    Column("kind", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("at", Double, nullable=False),
    Column("lease", Double),
    sqlite_with_rowid=False,
)

events = Table(
    "events",
    records,
    Column("id", _number, primary_key=True),
    Column("at", Double, nullable=False),
    Column("event", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("environment", Text),
    Column("device", Text),
    Column("memory", BigInteger),
    Column("compute", BigInteger),
    Column("reason", Text),
)


def _sums(*names: str) -> list[Column[int]]:
    return [Column(name, BigInteger, nullable=name.endswith("_peak")) for name in names]


def _later(*names: str) -> list[Column[int]]:
    """Return sums that rows of an earlier version do not have."""
    return [Column(name, BigInteger, nullable=False, server_default="0") for name in names]


# Rolled-up readings (``genv_jupyter.rollup``): ``step`` seconds from ``at`` on.
device_samples = Table(
    "device_samples",
    records,
    Column("step", BigInteger, primary_key=True, autoincrement=False),
    Column("at", BigInteger, primary_key=True, autoincrement=False),
    Column("device", Text, primary_key=True),
    *_sums("seen", "memory_known", "memory", "memory_peak"),
    *_sums("utilization_known", "utilization", "utilization_peak", "granted", "share"),
    *_later("temperature_known", "temperature", "power_known", "power"),
    *_sums("temperature_peak"),
    sqlite_with_rowid=False,
)

grant_samples = Table(
    "grant_samples",
    records,
    Column("step", BigInteger, primary_key=True, autoincrement=False),
    Column("at", BigInteger, primary_key=True, autoincrement=False),
    Column("environment", Text, primary_key=True),
    Column("device", Text, primary_key=True),
    *_sums("held", "memory", "share", "used_known", "used", "used_peak", "idle_known", "idle"),
    sqlite_with_rowid=False,
)

holders = Table(
    "holders",
    records,
    Column("environment", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("user", Text, nullable=False),
    Column("name", Text),
    Column("seen", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

quotas = Table(
    "quotas",
    records,
    Column("scope", Text, primary_key=True),
    Column("limits", Text, nullable=False),
    Column("by", Text, nullable=False),
    Column("at", Double, nullable=False),
)

audit = Table(
    "audit",
    records,
    Column("id", _number, primary_key=True),
    Column("at", Double, nullable=False),
    Column("actor", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("status", BigInteger, nullable=False),
    Column("said", Text),
    Column("owner", Text),
    Column("claimed", Text),
)

maintenance = Table(
    "maintenance",
    records,
    Column("device", Text, primary_key=True),
    Column("by", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("at", Double, nullable=False),
)

# Alembic's own table: a new ledger is made, and a present one recognised, without importing it.
version = Table(
    "alembic_version",
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)

LIVE = Schema("live", live, ("live_1", "live_2", "live_3", "live_4", "live_5", "live_6"))
RECORDS = Schema(
    "records",
    records,
    ("records_1", "records_2", "records_3", "records_4", "records_5", "records_6"),
)

_CHECKS = [
    str(constraint.name)
    for table in live.sorted_tables
    for constraint in table.constraints
    if isinstance(constraint, CheckConstraint)
]


def check_in(message: str) -> str | None:
    """Return the name of the CHECK constraint that a database's refusal speaks of, if any."""
    return next((name for name in _CHECKS if name in message), None)
