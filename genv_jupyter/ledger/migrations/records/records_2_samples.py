"""The history of use: samples of devices and of grants, and whose the environments were."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "records_2"
down_revision = "records_1"


def _sums(*names: str) -> list[sa.Column[int]]:
    return [sa.Column(name, sa.BigInteger, nullable=name.endswith("_peak")) for name in names]


def upgrade() -> None:
    op.create_table(
        "device_samples",
        sa.Column("step", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("at", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("device", sa.Text, primary_key=True),
        *_sums("seen", "memory_known", "memory", "memory_peak"),
        *_sums("utilization_known", "utilization", "utilization_peak", "granted", "share"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "grant_samples",
        sa.Column("step", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("at", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("environment", sa.Text, primary_key=True),
        sa.Column("device", sa.Text, primary_key=True),
        *_sums("held", "memory", "share", "used_known", "used", "used_peak", "idle_known", "idle"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "holders",
        sa.Column("environment", sa.Text, primary_key=True),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("user", sa.Text, nullable=False),
        sa.Column("name", sa.Text),
        sa.Column("seen", sa.BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )
