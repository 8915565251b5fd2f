"""What an environment really uses, as the doors show it: unknown is said as unknown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from genv_jupyter.advice import Holding, advice
from genv_jupyter.broker.core import Core
from genv_jupyter.broker.usage import UNEXPLAINED, DeviceUsage
from genv_jupyter.ledger.rows import EnvironmentRow, GrantRow
from genv_jupyter.model import EnvironmentUsage, GrantUsage, Principal

AGAIN = 30.0
"""Seconds after which advice is looked at again where nothing else has changed."""

GIVEN_BACK = "It is given back; the memory is free when its processes have ended."


def usage_view(core: Core, row: EnvironmentRow) -> EnvironmentUsage:
    """Show what the processes of an environment use of each of its grants."""
    held = list(core.books.grants_of(row.id))
    grants = tuple(_grant(core, grant) for grant in held)
    return EnvironmentUsage(
        environment=row.id,
        at=core.meters.read_at,
        simulated=core.inventory.simulated,
        grants=grants,
        advice=_advice(core, row, held, grants),
    )


class UsageNews:
    """Knows what was told of each environment's usage, so that only news is told."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._told: dict[str, object] = {}
        self._next_look = float("-inf")

    def take(
        self, environments: Iterable[str], devices: Iterable[str]
    ) -> list[tuple[EnvironmentRow, EnvironmentUsage]]:
        """Return the usage that differs from what was told before, and whose it is.

        Looked at is that of these environments and of whoever holds a part of these devices; from
        time to time that of all, as advice also depends on how long something has lasted.
        """
        books = self.core.books
        looked_at = {*environments}
        for uuid in devices:
            looked_at.update(it.environment for it in books.on_device.get(uuid, {}).values())
        if self.core.steady() >= self._next_look:
            self._next_look = self.core.steady() + AGAIN
            looked_at.update(books.grants)
        found = []
        for environment in looked_at:
            row = books.environments.get(environment)
            if row is None:
                self._told.pop(environment, None)
                continue
            usage = usage_view(self.core, row)
            if self._told.get(environment) != (seen := _seen(usage)):
                self._told[environment] = seen
                found.append((row, usage))
        return found


def may_see(row: EnvironmentRow, principal: Principal) -> bool:
    """Say whether somebody may see what an environment uses."""
    return row.owner == principal.key or principal.admin


def _seen(usage: EnvironmentUsage) -> object:
    """Return what of a usage is worth a message; the rest comes along with the next."""
    grants = [
        (it.device, it.memory, it.memory_used, it.memory_peak, it.peak_since) for it in usage.grants
    ]
    return usage.advice, grants


def _advice(
    core: Core, row: EnvironmentRow, held: Sequence[GrantRow], seen: Sequence[GrantUsage]
) -> str:
    now = core.clock()
    holdings = []
    for grant, usage in zip(held, seen, strict=True):
        if grant.state == "draining":
            continue
        device = core.usage.get(grant.device)
        holdings.append(
            Holding(
                label=core.books.slots[grant.device].label,
                usage=usage,
                usable=None if device is None else core.usable(device.reading),
                exclusive=grant.exclusive,
                compute=grant.compute,
                held=now - grant.since,
            )
        )
    if held and not holdings:
        return row.reason or GIVEN_BACK
    return advice(holdings, simulated=core.inventory.simulated)


def _grant(core: Core, grant: GrantRow) -> GrantUsage:
    usage = core.usage.get(grant.device)
    peak, load = core.meters.peak(grant), core.meters.load(grant.device)
    used = None if usage is None else used_now(usage, grant.environment)
    highest = None if peak is None else peak.memory
    if highest is None and used == 0:
        highest = 0
    return GrantUsage(
        device=grant.device,
        memory=grant.memory,
        memory_used=used,
        memory_peak=highest,
        peak_since=None if peak is None else core.stamp(peak.since),
        seconds_used=None if peak is None else round(peak.used),
        since=core.stamp(grant.since),
        utilization=None if usage is None else usage.reading.utilization,
        utilization_mean=None if load is None else load.mean,
        utilization_max=None if load is None else load.highest,
        utilization_seconds=None if load is None else load.seconds,
    )


def used_now(usage: DeviceUsage, environment: str) -> int | None:
    """Return the bytes that the processes of an environment hold, where that can be known.

    Where none of them is seen that is nothing, unless much is in use that nobody visible explains:
    the driver may name processes by the ids of another namespace, or none at all.
    """
    if not usage.known:
        return None
    own = usage.own.get(environment, [])
    if own:
        amounts = [process.memory for process in own]
        return None if None in amounts else sum(amount or 0 for amount in amounts)
    unknown = (usage.unattributed or 0) + usage.unseen
    return None if unknown >= UNEXPLAINED else 0
