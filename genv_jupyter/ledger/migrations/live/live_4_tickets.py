"""Who waits for devices, in which order."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "live_4"
down_revision = "live_3"


def upgrade() -> None:
    op.create_table(
        "tickets",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("environment", sa.Text, sa.ForeignKey("environments.id"), nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("request", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("since", sa.Double, nullable=False),
        sa.Column("came", sa.Double, nullable=False),
        sa.Column("until", sa.Double),
        sa.Column("restart", sa.Boolean, nullable=False),
        sa.Column("pid", sa.BigInteger),
        sa.Column("start", sa.BigInteger),
        sa.UniqueConstraint("environment", name="one_ticket_each"),
        sqlite_with_rowid=False,
    )
