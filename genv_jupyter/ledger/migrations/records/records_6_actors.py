"""The audit log tells on whose account somebody acted, and what a server says of who it was."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "records_6"
down_revision = "records_5"


def upgrade() -> None:
    op.add_column("audit", sa.Column("owner", sa.Text))
    op.add_column("audit", sa.Column("claimed", sa.Text))
