"""What the broker wants of Jupyter servers: restarts, and variables that nobody has confirmed."""

from __future__ import annotations

import msgspec

from genv_jupyter.broker import failpoints
from genv_jupyter.broker.confirmations import want_again
from genv_jupyter.broker.core import Core
from genv_jupyter.broker.release import IDLE
from genv_jupyter.broker.views import environ_for
from genv_jupyter.errors import Conflict
from genv_jupyter.events import Want
from genv_jupyter.ledger.rows import EnvironmentRow


def restart(core: Core, row: EnvironmentRow) -> EnvironmentRow:
    """Have its server restart a kernel.

    Raises
    ------
    Conflict
        No registered server has started it.
    """
    server = row.server
    if server is None or server not in core.books.servers:
        raise Conflict(
            "No Jupyter server that knows us has started this kernel.",
            hint="Restart it by hand; its grants are kept for as long as it lives.",
        )
    until = core.steady() + core.policy.start_deadline
    row = msgspec.structs.replace(row, restart=until)
    with core.books.change() as change:
        change.put_environment(row)
    failpoints.reach("after_restart")
    core.books.want(server, Want(kernel=row.id, action="restart", launch=row.launch))
    return row


def renew(core: Core, server: str) -> None:
    """Want again what a server has not confirmed: it may never have heard of it."""
    for row in core.books.environments.values():
        if row.server != server:
            continue
        want_again(core, row)
        if row.restart is not None and core.steady() <= row.restart:
            # One that was idle may be at work by now.
            idle = (row.reason or "").startswith(IDLE)
            want = Want(kernel=row.id, action="restart", launch=row.launch, idle=idle)
            core.books.want(server, want)


def take(core: Core, server: str) -> tuple[Want, ...]:
    """Return what is wanted of a server, once, as things are now."""
    return tuple(
        msgspec.structs.replace(want, environ=environ_for(core, row))
        if want.action == "apply"
        else want
        for want in core.books.take_wants(server, core.steady())
        if (row := core.books.environments.get(want.kernel)) is not None
        and row.server == server
        and (want.action != "restart" or row.restart is not None)  # it may have come
    )
