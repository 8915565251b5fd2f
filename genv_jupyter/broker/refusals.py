"""Refusals that name who holds what since when."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from genv_jupyter.broker.core import Core
from genv_jupyter.broker.discretion import owner_of
from genv_jupyter.broker.views import device_grant
from genv_jupyter.errors import NoCapacity
from genv_jupyter.ledger.rows import EnvironmentRow
from genv_jupyter.model import DeviceGrant
from genv_jupyter.slots import Slot, outsiders
from genv_jupyter.units import format_memory, format_share, format_since

_NAMED = 3


def explain(
    core: Core,
    refusal: NoCapacity,
    slots: Sequence[Slot],
    row: EnvironmentRow,
) -> NoCapacity:
    """Add the holders to a refusal, and put them into its sentence."""
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
        if not grants or outsiders(slot, core.policy):
            parts.append(str(reason))
    more = len(reasons) - told
    message = " ".join([refusal.message, *parts])
    if more > 0:
        message += f" And {more} more."
    return NoCapacity(
        message,
        hint=refusal.hint,
        details={**refusal.details, "holders": holders},
    )


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
