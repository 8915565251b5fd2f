"""Migrations of the ledgers, run by Alembic from inside the package.

``live/`` and ``records/`` hold one module for each revision. This package imports Alembic: it is
imported only when a ledger of an older version is opened.
"""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection

from genv_jupyter.ledger.schema import Schema

HERE = Path(__file__).parent


def config_for(schema: Schema) -> Config:
    """Return Alembic's configuration for one ledger."""
    config = Config()
    config.set_main_option("script_location", str(HERE).replace("%", "%%"))
    config.set_main_option("version_locations", str(HERE / schema.name).replace("%", "%%"))
    config.set_main_option("path_separator", "newline")
    config.attributes["schema"] = schema
    return config


def upgrade(connection: Connection, schema: Schema, revision: str = "head") -> None:
    """Bring a ledger to a revision, within the transaction that ``connection`` is in."""
    config = config_for(schema)
    config.attributes["connection"] = connection
    command.upgrade(config, revision)
