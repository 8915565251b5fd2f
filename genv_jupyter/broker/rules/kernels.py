"""What is done to kernels as a whole: by their Jupyter server, which does it in good order.

Used with the broker's lock held.
"""

from __future__ import annotations

from collections.abc import Mapping

from genv_jupyter.broker import failpoints, release
from genv_jupyter.broker.core import Core
from genv_jupyter.broker.rules.breaches import Rule
from genv_jupyter.errors import Conflict
from genv_jupyter.events import Want
from genv_jupyter.ledger.rows import EnvironmentRow

HEARD = 30.0
"""Seconds within which a server must have taken what is wanted of it; later it is out of date."""

TAKEN_BACK: Mapping[Rule, str] = {
    "idle": release.IDLE,
    "lease": release.LEASE_OVER,
    "quota": release.OVER_QUOTA,
}
_OWED: tuple[Rule, ...] = ("lease", "quota")


def may(core: Core, row: EnvironmentRow, *, idle: bool) -> bool:
    """Say whether it is still right to act: it holds something, and rests where that is why."""
    if not core.books.grants.get(row.id):
        return False
    return not idle or core.books.pulse(row.id).state == "idle"


def interrupt(core: Core, row: EnvironmentRow) -> bool:
    """Have its server interrupt a kernel, in the way of that kernel; say if there is a server."""
    if row.server is None or row.server not in core.books.servers:
        return False
    want = Want(kernel=row.id, action="interrupt", launch=row.launch)
    core.books.want(row.server, want, until=core.steady() + HEARD)
    return True


def shut_down(core: Core, row: EnvironmentRow, *, idle: bool) -> None:
    """Have its server shut a kernel down; ``idle``: unless it executes something by then."""
    if row.server is not None:
        want = Want(kernel=row.id, action="shutdown", launch=row.launch, idle=idle)
        core.books.want(row.server, want, until=core.steady() + HEARD)


def give_back(core: Core, row: EnvironmentRow, rule: Rule) -> bool:
    """Take back all that an environment holds, and have its kernel restarted where it must be.

    Both are one transaction: after a crash either both stand or neither. A kernel without CUDA
    lets go of its devices as it is. Returns whether that was done.
    """
    held = any(
        usage is not None and usage.own.get(row.id)
        for usage in (core.usage.get(grant.device) for grant in core.books.grants_of(row.id))
    )
    served = row.server is not None and row.server in core.books.servers
    until = core.steady() + core.policy.start_deadline
    try:
        row = release.detach(
            core,
            row,
            restart=until if served and (held or row.cuda == "initialized") else None,
            reason=f"{TAKEN_BACK[rule]} {release.RESTART_TO_FREE}",
        )
    except Conflict:
        return False  # another kernel is taking over: it is judged by itself then
    failpoints.reach("inside_rule_step")
    if row.restart is not None and row.server is not None:
        idle = rule == "idle"
        want = Want(kernel=row.id, action="restart", launch=row.launch, idle=idle)
        core.books.want(row.server, want)
    return True


def owed(row: EnvironmentRow) -> Rule | None:
    """Say by which rule an environment has to let go of what it still holds.

    Not one that was idle: who is at work again is asked to restart, and no more.
    """
    for rule in _OWED:
        if row.reason is not None and row.reason.startswith(TAKEN_BACK[rule]):
            return rule
    return None
