"""Which variables a process was seen to have, and restarts that were promised."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "live_2"
down_revision = "live_1"


def upgrade() -> None:
    counter = sa.Column("revision", sa.BigInteger, nullable=False, server_default="0")
    op.add_column("environments", counter)
    op.add_column("environments", sa.Column("confirmed", sa.BigInteger))
    op.add_column("environments", sa.Column("restart", sa.Double))
