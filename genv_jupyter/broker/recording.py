"""What happens to grants and environments, on its way to the records."""

from __future__ import annotations

from collections.abc import Callable

from genv_jupyter.ledger.records import Record, RecordsLedger
from genv_jupyter.ledger.rows import EnvironmentRow


def recorder(records: RecordsLedger | None, clock: Callable[[], float]) -> Callable[..., None]:
    """Return what is called with an event's name, its environment and its facts; it never waits."""

    def record(
        event: str,
        row: EnvironmentRow,
        *,
        device: str | None = None,
        memory: int | None = None,
        compute: int | None = None,
        reason: str | None = None,
    ) -> None:
        if records is not None:
            records.enqueue(
                Record(
                    at=clock(),
                    event=event,
                    owner=row.owner,
                    environment=row.id or None,
                    device=device,
                    memory=memory,
                    compute=compute,
                    reason=reason,
                )
            )

    return record
