"""Run by Alembic: the connection, and its transaction, are those of whoever opens the ledger."""

from __future__ import annotations

from alembic import context

attributes = context.config.attributes
context.configure(
    connection=attributes["connection"],
    target_metadata=attributes["schema"].tables,
    render_as_batch=True,
)
context.run_migrations()
