"""The audit log of a host's broker: every call that asks for a change, and every refusal."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, NamedTuple

from genv_jupyter.broker.log_lines import LogLines
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


class Actor(NamedTuple):
    """Who clicks in somebody else's Jupyter server, and so acts on that one's account.

    ``proved`` is one whose own token came along; ``claimed`` a name that the server says.
    """

    proved: Principal | None = None
    claimed: str | None = None


NOBODY_ELSE = Actor()


def note(
    core: Core,
    records: RecordsLedger | None,
    principal: Principal,
    method: str,
    path: str,
    status: int,
    said: str | None,
    actor: Actor = NOBODY_ELSE,
) -> None:
    """Write down a call, in the log and in the records. Does not wait.

    ``principal`` is on whose account it was; ``actor`` who did it, where that is somebody else.
    What Jupyter servers report of their kernels, all the time, is written down where it is refused.
    """
    target = path.removeprefix("/v1/")[:LONGEST]
    if status < 400 and target.startswith("servers/"):
        return
    row = AuditRow(
        at=core.clock(),
        actor=(actor.proved or principal).key,
        name=(actor.proved or principal).name,
        action=method,
        target=target,
        status=status,
        said=None if said is None else said[:LONGEST],
        owner=None if actor.proved is None else principal.key,
        claimed=None if actor.proved is not None else actor.claimed,
    )
    _lines.say(row)
    if records is not None:
        records.enqueue(row)


def _line(row: AuditRow) -> str:
    told = {
        "who": row.actor,
        "name": row.name,
        "did": f"{row.action} {row.target}",
        "status": row.status,
    }
    more = {"why": row.said, "on account of": row.owner, "as its server says": row.claimed}
    told |= {name: value for name, value in more.items() if value}
    return f"audit {json.dumps(told)}"


_lines = LogLines(log, _line)


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
            owner=row.owner,
            claimed=row.claimed,
        )
        for row in found
    ]
