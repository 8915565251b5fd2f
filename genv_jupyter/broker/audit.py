"""The audit log of a host's broker: every call that asks for a change, and every refusal."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

from genv_jupyter.broker.quota_rules import administers
from genv_jupyter.errors import Unavailable
from genv_jupyter.ledger import quotas as table
from genv_jupyter.ledger.quotas import AuditRow
from genv_jupyter.model import AuditEntry, Principal

if TYPE_CHECKING:
    from genv_jupyter.broker.core import Core
    from genv_jupyter.ledger.records import RecordsLedger

log = logging.getLogger("genv_jupyter.audit")
MOST, LONGEST = 1000, 500


def note(
    core: Core,
    records: RecordsLedger | None,
    principal: Principal,
    method: str,
    path: str,
    status: int,
    said: str | None,
) -> None:
    """Write down a call, in the log and in the records. Does not wait.

    What Jupyter servers report of their kernels, all the time, is written down where it is refused.
    """
    target = path.removeprefix("/v1/")[:LONGEST]
    if status < 400 and target.startswith("servers/"):
        return
    row = AuditRow(
        at=core.clock(),
        actor=principal.key,
        name=principal.name,
        action=method,
        target=target,
        status=status,
        said=None if said is None else said[:LONGEST],
    )
    told = {"who": row.actor, "name": row.name, "did": f"{method} {target}", "status": status}
    log.info("audit %s", json.dumps(told | ({"why": row.said} if row.said else {})))
    if records is not None:
        records.enqueue(row)


def entries(
    core: Core,
    records: RecordsLedger | None,
    principal: Principal,
    search: str | None,
    limit: int,
) -> list[AuditEntry]:
    """Return the newest entries.

    Raises
    ------
    Forbidden, Unavailable
        The caller is no administrator; nothing is kept, or it cannot be read.
    """
    administers(core, principal)
    if records is None:
        raise Unavailable("No audit log is kept here.", hint="`jupyter gpu doctor` says why.")
    found = records.run(lambda it: table.noted(it, min(limit, MOST), search))
    return [
        AuditEntry(
            at=core.stamp(row.at),
            actor=row.actor,
            name=row.name,
            action=row.action,
            target=row.target,
            status=row.status,
            said=row.said,
        )
        for row in found
    ]
