"""Which grants share their device under MPS, and among how many processes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "live_3"
down_revision = "live_2"


def upgrade() -> None:
    op.add_column("grants", sa.Column("mps", sa.Boolean, nullable=False, server_default=sa.false()))
    count = sa.Column("processes", sa.BigInteger, nullable=False, server_default="1")
    op.add_column("grants", count)
    op.add_column("grants", sa.Column("without", sa.Text))
    op.add_column("grants", sa.Column("started", sa.BigInteger))
