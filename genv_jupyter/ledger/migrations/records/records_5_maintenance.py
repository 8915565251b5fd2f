"""Devices that are drained for maintenance."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "records_5"
down_revision = "records_4"


def upgrade() -> None:
    op.create_table(
        "maintenance",
        sa.Column("device", sa.Text, primary_key=True),
        sa.Column("by", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
    )
