"""From the books to what the doors show."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec

from genv_jupyter import __version__
from genv_jupyter.broker import crowds, leases, mps
from genv_jupyter.broker.core import Core
from genv_jupyter.broker.discretion import seen
from genv_jupyter.broker.line import asked_by
from genv_jupyter.broker.rules.settings import Rules
from genv_jupyter.broker.sensors import sensors_of
from genv_jupyter.broker.witness import reason_of
from genv_jupyter.isolation.environ import Cap, environ_of, limits_of
from genv_jupyter.ledger.rows import EnvironmentRow, GrantRow
from genv_jupyter.model import (
    Applied,
    BrokerHealth,
    Device,
    DeviceGrant,
    Environment,
    EnvironmentState,
    Grant,
    GrantState,
    Principal,
    Request,
)

_WEAKEST_FIRST: tuple[Applied, ...] = ("unknown", "pending", "at_restart", "live")


def health_view(core: Core, viewer: Principal | None = None) -> BrokerHealth:
    """Show how the broker and the driver are."""
    inventory = core.inventory
    return BrokerHealth(
        version=__version__,
        kind=core.kind,
        pid=os.getpid(),
        ledger=str(core.books.ledger.path),
        simulated=inventory.simulated,
        driver=inventory.trouble,
        driver_version=inventory.driver_version,
        devices=len(core.books.slots),
        environments=len(core.books.environments),
        revision=core.books.revision,
        notices=tuple(core.notices),
        rules=core.config.of(Rules).in_force(),
        user=None if viewer is None else viewer.name,
        quotas=core.quotas.rules.revision,
    )


def device_view(core: Core, uuid: str, viewer: Principal | None = None) -> Device:
    """Show one device with everything that is held on it, as somebody may see it."""
    slot = core.books.slots[uuid]
    usage = core.usage.get(uuid)
    reading = None if usage is None else usage.reading
    return Device(
        uuid=uuid,
        index=slot.index,
        name=slot.name,
        kind="mig" if slot.kind == "mig" else "gpu",
        parent=None if reading is None else reading.parent,
        memory_total=None if reading is None else reading.memory_total,
        memory_usable=None if reading is None else core.usable(reading),
        memory_used=None if reading is None else reading.memory_used,
        utilization=None if reading is None else reading.utilization,
        health=slot.health,
        simulated=core.inventory.simulated,
        grants=tuple(
            device_grant(core, grant, viewer)
            for grant in core.books.on_device.get(uuid, {}).values()
        ),
        external_memory=None if usage is None else usage.external,
        unattributed_memory=None if usage is None else usage.unattributed,
        maintenance=core.upkeep.of(uuid),
        **sensors_of(slot, usage),
    )


def device_grant(core: Core, grant: GrantRow, viewer: Principal | None = None) -> DeviceGrant:
    """Show a grant as its device shows it."""
    row = core.books.environments[grant.environment]
    shown = seen(core, row, viewer)
    return DeviceGrant(
        environment=row.id,
        user=shown.user,
        name=shown.name,
        memory=grant.memory,
        compute=grant.compute,
        exclusive=grant.exclusive,
        state=_grant_state(core, grant),
        since=core.stamp(grant.since),
    )


def grant_view(core: Core, grant: GrantRow) -> Grant:
    """Show a grant as its environment shows it."""
    verdict = core.mps.verdict(grant)
    return Grant(
        device=grant.device,
        memory=grant.memory,
        compute=grant.compute,
        exclusive=grant.exclusive,
        state=_grant_state(core, grant),
        applied=grant.applied,
        limits=limits_of(
            compute=grant.compute,
            exclusive=grant.exclusive,
            simulated=core.inventory.simulated,
            mps=grant.mps,
            without=grant.without,
            started=grant.started,
            verified=None if verdict is None else verdict.verified,
            cause=_weakness(core, [grant]),
            others=grant.mps and mps.others_on(core, grant),
            operators=core.mps.operators,
        ),
        since=core.stamp(grant.since),
    )


def environment_view(core: Core, row: EnvironmentRow, principal: Principal) -> Environment:
    """Show an environment; its variables and processes only to its owner and to admins."""
    books = core.books
    pulse = books.pulse(row.id)
    mine = row.owner == principal.key or principal.admin
    shown = seen(core, row, principal)
    kernel_state = pulse.state
    if row.state in ("reserved", "held") and pulse.state == "dead":
        kernel_state = "dead"  # its restart has failed; another may come
    elif row.state == "reserved":
        kernel_state = "starting"
    elif row.state == "held":
        kernel_state = "restarting"
    grants = tuple(books.grants_of(row.id))
    ticket = books.tickets.get(row.id)
    if ticket is not None and ticket.state != "waiting":
        ticket = None
    return Environment(
        id=row.id,
        previous=row.previous,
        user=shown.user,
        kind=row.kind,
        name=shown.name,
        path=shown.path,
        server=row.server,
        kernel_state=kernel_state if row.kind == "kernel" else None,
        idle_since=pulse.idle_since,
        request=request_of(row) if shown.all else None,
        pending=asked_by(ticket) if ticket is not None and shown.all else None,
        grants=tuple(grant_view(core, grant) for grant in grants),
        state=_environment_state(core, row, grants, waits=ticket is not None),
        applied=_applied(grants),
        created=datetime.fromtimestamp(row.created, UTC),
        expires=leases.shown(core, row),
        cuda=row.cuda,
        reason=(_loss(core, grants) or row.reason or _weakness(core, grants)) if mine else None,
        pid=row.pid if mine else None,
        environ=environ_for(core, row) if mine and row.kind != "server" else None,
        processes=tuple(core.processes.get(row.id, ())) if mine else None,
        ended=core.deaths.of(row.id) if mine else None,
        kernel_state_since=pulse.since,
    )


def environ_for(core: Core, row: EnvironmentRow) -> dict[str, str | None]:
    """Compute the variables of an environment; an heir sees what it is about to take over."""
    grants = list(core.books.grants_of(row.id))
    if not grants and row.previous is not None:
        grants = list(core.books.grants_of(row.previous))
    server = core.books.servers.get(row.server) if row.server else None
    pool = row.pool if row.pool is not None or server is None else server.pool
    granted = [grant for grant in grants if grant.state == "granted"]
    return environ_of(
        row.id,
        [grant.device for grant in granted],
        hide=row.unattached == "hide",
        pool=pool,
        caps={
            grant.device: Cap(grant.cap, _total(core, grant.device))
            for grant in granted
            if not grant.exclusive
        },
        programs=core.programs,
        revision=row.revision,
        mps=mps.client_of(core, granted),
    )


def _loss(core: Core, grants: Iterable[GrantRow]) -> str | None:
    """Say that the work on a device has come to an end, where that was seen."""
    return next((why for grant in grants if (why := core.mps.lost(core, grant))), None)


def _weakness(core: Core, grants: Iterable[GrantRow]) -> str | None:
    """Say what is wrong with a cap, where that was seen."""
    for grant in grants:
        label = core.books.slots[grant.device].label
        why = reason_of(label, core.mps.verdict(grant)) or crowds.sentence(core, grant)
        if why is not None:
            return why
    return None


def _total(core: Core, uuid: str) -> int | None:
    """Return what a process will see a device to have: all of it, or of the broker's partition."""
    usage = core.usage.get(uuid)
    return None if usage is None else usage.reading.memory_total


def request_of(row: EnvironmentRow) -> Request | None:
    """Return the request of an environment as it was asked."""
    return None if row.request is None else msgspec.json.decode(row.request, type=Request)


def _grant_state(core: Core, grant: GrantRow) -> GrantState:
    if core.books.slots[grant.device].health == "lost":
        return "lost"
    return "contended" if core.contention.of(grant) else grant.state


def _environment_state(
    core: Core, row: EnvironmentRow, grants: tuple[GrantRow, ...], *, waits: bool
) -> EnvironmentState:
    if row.kind == "server" and row.entitled is not None:
        return row.state  # whatever its kernels have drawn
    if row.state == "held":
        return "held"
    if waits and row.state != "reserved":
        return "waiting"
    if row.state == "reserved" and (grants or row.previous):
        return "reserved"
    if not grants:
        return "released"
    if all(grant.state == "draining" for grant in grants):
        return "draining"
    return "active" if row.cuda == "initialized" else "granted"


def _applied(grants: tuple[GrantRow, ...]) -> Applied | None:
    """Return the weakest of the grants' states: what is missing is what should be seen."""
    seen = {grant.applied for grant in grants if grant.state == "granted"}
    for state in _WEAKEST_FIRST:
        if state in seen:
            return state
    return None
