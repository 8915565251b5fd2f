"""Refusals that name who holds what since when."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from genv_jupyter.broker.core import Core
from genv_jupyter.broker.discretion import owner_of, seen
from genv_jupyter.broker.line import when
from genv_jupyter.broker.views import device_grant
from genv_jupyter.demand import Demand
from genv_jupyter.errors import NoCapacity
from genv_jupyter.ledger.rows import EnvironmentRow
from genv_jupyter.model import DeviceGrant
from genv_jupyter.queueing import Closed
from genv_jupyter.slots import Slot, outsiders
from genv_jupyter.units import format_memory, format_share, format_since

_NAMED = 3


def explain(
    core: Core,
    refusal: NoCapacity,
    slots: Sequence[Slot],
    row: EnvironmentRow,
    demand: Demand,
) -> NoCapacity:
    """Add the holders to a refusal, and when there should be room; put both into its sentence."""
    now, viewer = core.stamp(), owner_of(row)
    holders: list[dict[str, object]] = []
    parts: list[str] = []
    told = 0
    reasons = refusal.details.get("reasons", {})
    for slot in slots:
        reason = reasons.get(slot.uuid)
        if reason is None:
            continue  # it would do, or was not asked for
        grants = [
            device_grant(core, grant, viewer)
            for grant in core.books.on_device.get(slot.uuid, {}).values()
            if grant.environment != row.id
        ]
        holders.extend({"device": slot.uuid, **msgspec.to_builtins(grant)} for grant in grants)
        if told == _NAMED:
            continue
        told += 1
        if grants:
            parts.append(f"{slot.label}: {holders_sentence(grants, now)}.")
        if not grants or slot.closed is not None or outsiders(slot, core.policy):
            parts.append(str(reason))
    more = len(reasons) - told
    message = " ".join([refusal.message, *parts])
    if more > 0:
        message += f" And {more} more."
    if holders and (expected := core.line.free_at(row, demand)) is not None:
        message += f" There should be room {when(expected, now)}."
    return NoCapacity(
        message + _waiting(core, row),
        hint=refusal.hint,
        details={**refusal.details, "holders": holders, **_expected(core, row, demand)},
    )


def kept(
    core: Core, closed: Closed, slots: Sequence[Slot], row: EnvironmentRow, demand: Demand
) -> NoCapacity:
    """Say for whom what is free is kept."""
    now, viewer, books = core.stamp(), owner_of(row), core.books
    reasons: dict[str, str] = {}
    for slot in slots:
        gate = closed.get(slot.uuid)
        if gate is None:
            continue
        first = books.environments[gate.environment]
        shown = seen(core, first, viewer)
        who = f"{shown.name} of {shown.user}" if shown.name else f"a {first.kind} of {shown.user}"
        since = format_since(core.stamp(books.tickets[first.id].since), now)
        reasons[slot.uuid] = f"{slot.label} is kept for {who}, waiting since {since}."
    said = " ".join(list(reasons.values())[:_NAMED])
    return NoCapacity(
        f"What is free is kept for those who wait in the queue. {said}".rstrip(),
        hint="Get in line (`--wait`), or ask for less.",
        details={"reasons": reasons, "holders": [], **_expected(core, row, demand)},
    )


def _expected(core: Core, row: EnvironmentRow, demand: Demand) -> dict[str, object]:
    """Return when there should be room, and how many wait for some, for programs."""
    found = core.line.free_at(row, demand)
    return {
        "expected": None if found is None else msgspec.to_builtins(found[0]),
        "guess": None if found is None else found[1],
        "waiting": len(core.books.line()),
    }


def _waiting(core: Core, row: EnvironmentRow) -> str:
    """Say how many others wait."""
    number = sum(ticket.environment != row.id for ticket in core.books.line())
    if not number:
        return ""
    return f" {number} {'waits' if number == 1 else 'wait'} in the queue already."


def holders_sentence(grants: Sequence[DeviceGrant], now: datetime) -> str:
    """Say who holds what on one device since when."""
    said = [
        f"{_who(grant)} {_what(grant)} since {format_since(grant.since, now)}"
        for grant in grants[:_NAMED]
    ]
    if len(grants) > _NAMED:
        said.append(f"{len(grants) - _NAMED} more hold the rest")
    return ", ".join(said)


def _who(grant: DeviceGrant) -> str:
    return f"{grant.name} of {grant.user}" if grant.name else f"a kernel of {grant.user}"


def _what(grant: DeviceGrant) -> str:
    if grant.state == "draining":
        return "is draining and still holds " + (
            "all of it" if grant.exclusive else format_memory(grant.memory)
        )
    if grant.exclusive:
        return "holds all of it"
    share = f" and {format_share(grant.compute)}" if grant.compute is not None else ""
    return f"holds {format_memory(grant.memory)}{share}"
