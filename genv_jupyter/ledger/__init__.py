"""The ledger: who holds what, in SQL.

``LiveLedger`` keeps devices, environments and grants of this boot, ``RecordsLedger`` what happened.
SQLAlchemy is imported when one of them is first asked for, Alembic only to migrate an older file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from genv_jupyter.ledger.rows import Refused

if TYPE_CHECKING:
    from genv_jupyter.ledger.live import LiveLedger, Transaction
    from genv_jupyter.ledger.records import RecordsLedger

__all__ = ["LiveLedger", "RecordsLedger", "Refused", "Transaction"]


def __getattr__(name: str) -> Any:
    if name in ("LiveLedger", "Transaction"):
        from genv_jupyter.ledger import live

        return getattr(live, name)
    if name == "RecordsLedger":
        from genv_jupyter.ledger.records import RecordsLedger

        return RecordsLedger
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
