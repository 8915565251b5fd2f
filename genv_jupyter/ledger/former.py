"""Environments that have ended, as the records remember them."""

from __future__ import annotations

from sqlalchemy import Connection, select

from genv_jupyter.ledger.schema import events, holders


def whose(connection: Connection, environment: str) -> tuple[str, str, str | None] | None:
    """Return owner, user and name of an environment; ``None`` where nothing tells of it.

    What held a device for a minute has a name; of others only the owner is known.
    """
    known = select(holders.c.owner, holders.c.user, holders.c.name)
    found = connection.execute(known.where(holders.c.environment == environment)).first()
    if found is not None:
        return found[0], found[1], found[2]
    owner = connection.execute(
        select(events.c.owner).where(events.c.environment == environment).limit(1)
    ).scalar()
    return None if owner is None else (owner, "", None)
