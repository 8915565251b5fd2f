"""The first table of the records."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "records_1"
down_revision = None

_number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "events",
        sa.Column("id", _number, primary_key=True),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("event", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("environment", sa.Text),
        sa.Column("device", sa.Text),
        sa.Column("memory", sa.BigInteger),
        sa.Column("compute", sa.BigInteger),
        sa.Column("reason", sa.Text),
    )
