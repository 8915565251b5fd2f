"""The first tables of the live ledger."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "live_1"
down_revision = None

_number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    _devices_and_shares()
    _servers_and_environments()
    _grants()


def _devices_and_shares() -> None:
    op.create_table(
        "devices",
        sa.Column("uuid", sa.Text, primary_key=True),
        sa.Column("memory_capacity", sa.BigInteger, nullable=False),
        sa.Column("compute_capacity", sa.BigInteger, nullable=False),
        sa.Column("memory_granted", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("exclusive_grants", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("shared_grants", sa.BigInteger, nullable=False, server_default="0"),
        sa.CheckConstraint("memory_granted BETWEEN 0 AND memory_capacity", name="memory_fits"),
        sa.CheckConstraint("exclusive_grants BETWEEN 0 AND 1", name="one_exclusive"),
        sa.CheckConstraint("shared_grants >= 0", name="shared_counted"),
        sa.CheckConstraint("exclusive_grants = 0 OR shared_grants = 0", name="exclusive_alone"),
        sa.CheckConstraint("compute_capacity >= 0", name="compute_capacity_counted"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "shares",
        sa.Column("device", sa.Text, sa.ForeignKey("devices.uuid"), primary_key=True),
        sa.Column("owner", sa.Text, primary_key=True),
        sa.Column("compute_capacity", sa.BigInteger, nullable=False),
        sa.Column("compute_granted", sa.BigInteger, nullable=False),
        sa.CheckConstraint("compute_granted BETWEEN 0 AND compute_capacity", name="compute_fits"),
        sqlite_with_rowid=False,
    )


def _servers_and_environments() -> None:
    op.create_table(
        "servers",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("pid", sa.BigInteger, nullable=False),
        sa.Column("start", sa.BigInteger, nullable=False),
        sa.Column("version", sa.Text, nullable=False),
        sa.Column("pool", sa.Text),
        sa.Column("name", sa.Text),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "environments",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("user", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("launch", sa.BigInteger, nullable=False),
        sa.Column("name", sa.Text),
        sa.Column("path", sa.Text),
        sa.Column("server", sa.Text),
        sa.Column("previous", sa.Text),
        sa.Column("request", sa.Text),
        sa.Column("pid", sa.BigInteger),
        sa.Column("start", sa.BigInteger),
        sa.Column("pool", sa.Text),
        sa.Column("unattached", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("applied", sa.Text),
        sa.Column("cuda", sa.Text, nullable=False),
        sa.Column("deadline", sa.Double),
        sa.Column("reason", sa.Text),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("expires", sa.Double),
        sqlite_with_rowid=False,
    )


def _grants() -> None:
    op.create_table(
        "grants",
        sa.Column("id", _number, primary_key=True, autoincrement=False),
        sa.Column("environment", sa.Text, sa.ForeignKey("environments.id"), nullable=False),
        sa.Column("device", sa.Text, sa.ForeignKey("devices.uuid"), nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("memory", sa.BigInteger, nullable=False),
        sa.Column("compute", sa.BigInteger),
        sa.Column("exclusive", sa.Boolean, nullable=False),
        sa.Column("counted_memory", sa.BigInteger, nullable=False),
        sa.Column("counted_compute", sa.BigInteger, nullable=False),
        sa.Column("counted_exclusive", sa.Boolean, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("applied", sa.Text),
        sa.Column("since", sa.Double, nullable=False),
        sa.CheckConstraint("counted_memory >= 0", name="memory_counted"),
        sa.CheckConstraint("counted_compute >= 0", name="compute_counted"),
        sa.UniqueConstraint("environment", "device", name="one_grant_each"),
    )
