"""What is reserved for Jupyter servers, and which kernels draw on it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "live_5"
down_revision = "live_4"


def upgrade() -> None:
    op.add_column("environments", sa.Column("reservation", sa.Text))
    op.add_column("environments", sa.Column("entitled", sa.Text))
