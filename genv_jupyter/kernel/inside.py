"""A process inside a command's environment: it sees the command's devices, and has none itself."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from genv_jupyter.demand import Demand, demand_of
from genv_jupyter.errors import Conflict
from genv_jupyter.isolation import inherited
from genv_jupyter.kernel import words
from genv_jupyter.model import HELD, Device, Environment, Grant, Request
from genv_jupyter.slots import Slot, memory_on, resolve

if TYPE_CHECKING:
    from genv_jupyter.kernel.session import Session
    from genv_jupyter.kernel.views import StatusView


def belongs(environment: Environment) -> bool:
    """Say whether an environment is that of the command above this process."""
    return environment.id == inherited.command() and not inherited.is_command(os.getpid())


def sentence(environment: Environment) -> str:
    """Say where this process is."""
    what = "terminal" if environment.kind == "shell" else "command"
    return (
        f"This runs inside the {what} {words.label(environment)!r} (environment "
        f"{environment.id[:8]}): it sees what that has, and all is given back when that ends."
    )


def attach(session: Session, environment: Environment, request: Request) -> StatusView:
    """Answer an attach from inside: what the command has will do, or it has too little.

    Raises
    ------
    Conflict
        The command has less than is asked for.
    """
    if covered(environment.grants, demand_of(request), session.devices(None)):
        view = session.status(environment=environment, head="Attached already, from outside.")
        view.remarks += (sentence(environment),)
        return view
    verb = "shell" if environment.kind == "shell" else "run"
    held = ", ".join(words.amount(grant) for grant in environment.grants) or "nothing"
    raise Conflict(
        f"{sentence(environment)} It has {held}, and {words.asked(request)} is more or other "
        "than that.",
        hint=f"Start it with what is needed: `jupyter gpu {verb} …`.",
    )


def covered(grants: Sequence[Grant], demand: Demand, devices: Sequence[Device]) -> bool:
    """Tell whether grants are at least what is asked for.

    Raises
    ------
    UnknownDevice, AmbiguousDevice, BadRequest
        A device is named that is not there, or several.
    """
    slots = [
        Slot(
            uuid=device.uuid,
            index=device.index,
            kind=device.kind,
            capacity=device.memory_usable or 0,
        )
        for device in devices
    ]
    named = resolve(demand.devices, slots) if demand.devices else slots
    held = {grant.device: grant for grant in grants if grant.state in HELD}
    enough = [slot for slot in named if slot.uuid in held and _does(held[slot.uuid], slot, demand)]
    return len(enough) >= demand.count


def _does(grant: Grant, slot: Slot, demand: Demand) -> bool:
    if grant.exclusive or demand.exclusive:
        return grant.exclusive
    ceiling = grant.compute is None or grant.compute >= (demand.compute or 0)
    return grant.memory >= memory_on(slot, demand) and ceiling
