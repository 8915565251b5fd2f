"""What people ask each other about devices, and what they answer."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "live_6"
down_revision = "live_5"


def upgrade() -> None:
    op.create_table(
        "notes",
        sa.Column("environment", sa.Text, primary_key=True),
        sa.Column("by", sa.Text, primary_key=True),
        sa.Column("kind", sa.Text, primary_key=True),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("lease", sa.Double),
        sqlite_with_rowid=False,
    )
