"""What an environment really uses, as the doors show it: unknown is said as unknown."""

from __future__ import annotations

from genv_jupyter.broker.core import Core
from genv_jupyter.broker.usage import DeviceUsage
from genv_jupyter.isolation import processes
from genv_jupyter.ledger.rows import EnvironmentRow, GrantRow
from genv_jupyter.model import EnvironmentUsage, GrantUsage

UNEXPLAINED = 100 * 2**20
"""Bytes: less than a CUDA context takes. From here on what nobody visible explains may be ours."""


def usage_view(core: Core, row: EnvironmentRow) -> EnvironmentUsage:
    """Show what the processes of an environment use of each of its grants."""
    return EnvironmentUsage(
        environment=row.id,
        at=core.meters.read_at,
        simulated=core.inventory.simulated,
        grants=tuple(_grant(core, grant) for grant in core.books.grants_of(row.id)),
    )


def _grant(core: Core, grant: GrantRow) -> GrantUsage:
    usage = core.usage.get(grant.device)
    peak, load = core.meters.peak(grant), core.meters.load(grant.device)
    used = None if usage is None else _used(usage, grant.environment)
    highest = None if peak is None else peak.memory
    if highest is None and used == 0:
        highest = 0
    return GrantUsage(
        device=grant.device,
        memory=grant.memory,
        memory_used=used,
        memory_peak=highest,
        peak_since=None if peak is None else core.stamp(peak.since),
        seconds_used=None if peak is None else int(peak.used),
        since=core.stamp(grant.since),
        utilization=None if usage is None else usage.reading.utilization,
        utilization_mean=None if load is None else load.mean,
        utilization_max=None if load is None else load.highest,
        utilization_seconds=None if load is None else load.seconds,
    )


def _used(usage: DeviceUsage, environment: str) -> int | None:
    """Return the bytes that the processes of an environment hold, where that can be known.

    Where none of them is seen that is nothing, unless much is in use that nobody visible explains:
    the driver may name processes by the ids of another namespace, or none at all.
    """
    reading = usage.reading
    if not usage.known or reading.processes is None:
        return None
    own = usage.own.get(environment, [])
    if own:
        amounts = [process.memory for process in own]
        return None if None in amounts else sum(amount or 0 for amount in amounts)
    unseen = sum(
        process.memory or UNEXPLAINED
        for process in reading.processes
        if processes.start_of(process.pid) is None
    )
    return None if (usage.unattributed or 0) + unseen >= UNEXPLAINED else 0
