"""Believing what is told of a process: only what speaks of the variables that are wanted now.

Reports may come late, twice, or in another order than they were made. Every change of what a
process is to see has a number of its own, the revision, that travels with the variables into the
process and back. A report of another revision, or of other devices than are wanted, confirms
nothing: the variables are then wanted again.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from genv_jupyter.broker.books import Change, as_wanted, replaced
from genv_jupyter.broker.core import Core
from genv_jupyter.broker.release import unconfirmed
from genv_jupyter.broker.views import environ_for
from genv_jupyter.events import Want
from genv_jupyter.isolation.environ import VISIBLE
from genv_jupyter.ledger.rows import EnvironmentRow, GrantRow
from genv_jupyter.model import Applied, EnvironmentPatch, KernelReport

Report = KernelReport | EnvironmentPatch


def take_in(core: Core, change: Change, row: EnvironmentRow, report: Report) -> EnvironmentRow:
    """Carry what was seen in a process into its grants; return its environment as it is then."""
    if report.applied is None:
        return row
    for grant in list(core.books.grants_of(row.id)):
        applied = _applied(core, row, grant, report)
        if grant.state == "granted" and applied != grant.applied:
            change.change_grant(grant, replaced(grant, applied=applied))
    if report.applied == "live" and report.cuda == "not_initialized" and _agrees(core, row, report):
        return msgspec.structs.replace(row, confirmed=row.revision)
    return row


def started(core: Core, change: Change, row: EnvironmentRow, report: Report) -> EnvironmentRow:
    """Take in that a new process began, with the variables that the report tells of.

    One that tells of none was started with what its start was answered; but it confirms nothing.
    """
    agrees = _agrees(core, row, report)
    applied: Applied = "live" if agrees or not _speaks(report) else "pending"
    for grant in list(core.books.grants_of(row.id)):
        if grant.state == "granted":  # caps of an older process count no more
            change.change_grant(grant, as_wanted(grant, applied=applied))
    return msgspec.structs.replace(row, confirmed=row.revision if agrees else None)


def want_again(core: Core, row: EnvironmentRow) -> None:
    """Have the variables applied (again) where what was told confirmed nothing."""
    if row.server and row.state == "granted" and unconfirmed(core.books, row):
        core.books.want(row.server, Want(kernel=row.id, action="apply"))


def _speaks(report: Report) -> bool:
    return report.revision is not None or report.visible is not UNSET


def _agrees(core: Core, row: EnvironmentRow, report: Report) -> bool:
    """Say whether the process was seen with exactly what it is to have now."""
    wanted = environ_for(core, row)[VISIBLE]
    return report.revision == row.revision and report.visible == wanted


def _applied(core: Core, row: EnvironmentRow, grant: GrantRow, report: Report) -> Applied | None:
    """Return what a report leaves known of a grant."""
    if report.applied == "live":
        # One that tells of no variables is shown, and frees nothing.
        return "live" if not _speaks(report) or _agrees(core, row, report) else grant.applied
    if grant.applied == "live":
        return "live"  # nothing was changed in the process: it still sees what it saw
    if report.applied == "at_restart" and report.revision == row.revision:
        return "live" if _sees(report, grant.device) else "at_restart"
    if report.applied == "unknown" and report.revision in (None, row.revision):
        return "unknown"
    return grant.applied


def _sees(report: Report, device: str) -> bool:
    visible = report.visible
    if visible is UNSET:
        return False  # nothing of ours was ever put there
    return visible is None or device in visible.split(",")
