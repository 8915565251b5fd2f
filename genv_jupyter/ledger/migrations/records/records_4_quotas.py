"""Quotas that administrators set, and the audit log."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "records_4"
down_revision = "records_3"


def upgrade() -> None:
    op.create_table(
        "quotas",
        sa.Column("scope", sa.Text, primary_key=True),
        sa.Column("limits", sa.Text, nullable=False),
        sa.Column("by", sa.Text, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
    )
    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("target", sa.Text, nullable=False),
        sa.Column("status", sa.BigInteger, nullable=False),
        sa.Column("said", sa.Text),
    )
