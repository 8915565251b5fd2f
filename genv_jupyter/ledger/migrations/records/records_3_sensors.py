"""How warm a device was and what power it took."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "records_3"
down_revision = "records_2"


def upgrade() -> None:
    for name in ("temperature_known", "temperature", "power_known", "power"):
        column = sa.Column(name, sa.BigInteger, nullable=False, server_default="0")
        op.add_column("device_samples", column)
    op.add_column("device_samples", sa.Column("temperature_peak", sa.BigInteger))
