"""Quotas: who may have how much of what, counted over all servers, kernels and terminals.

What somebody holds is counted from the books; GPU hours from
the history of use, which a thread of its own adds up every half minute.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Container, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from genv_jupyter.broker import servers
from genv_jupyter.broker.guarantees import of_groups
from genv_jupyter.broker.quota_rules import QuotaRules, administers
from genv_jupyter.broker.quota_settings import zone
from genv_jupyter.ledger import quotas as table
from genv_jupyter.model import Principal
from genv_jupyter.quotas import (
    PERIODS,
    QUANTITIES,
    Period,
    Quantity,
    QuotaUse,
    QuotaView,
    Use,
    began,
    refusal,
    resets,
    share_of,
    shown,
)
from genv_jupyter.rollup import LEVELS
from genv_jupyter.units import WHOLE

if TYPE_CHECKING:
    from genv_jupyter.broker.core import Core
    from genv_jupyter.demand import Demand
    from genv_jupyter.ledger.records import RecordsLedger
    from genv_jupyter.ledger.rows import EnvironmentRow, GrantRow
    from genv_jupyter.placement import Placed

log = logging.getLogger(__name__)
REFRESH = 30.0
"""Seconds after which GPU hours are added up again."""
_MS = 1000
_HELD: tuple[Quantity, ...] = ("devices", "memory")


class Quotas:
    """The quotas of one broker. Used under its lock, but for ``add_up`` and ``whose``."""

    def __init__(self, core: Core, records: RecordsLedger | None) -> None:
        self.core = core
        self.records = records
        self.rules = QuotaRules(core, records)
        self._spent: dict[Period, dict[str, int]] | None = None
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def close(self) -> None:
        """End the thread."""
        self._ending.set()

    # -- what is used ---------------------------------------------------------------------------

    def use(
        self, owner: str, besides: Container[str | None] = (), more: Iterable[GrantRow] = ()
    ) -> Use:
        """Return what an owner holds, all environments but some together; what drains is held.

        What is left of a server's reservation counts too, and is no environment that works.
        """
        books = self.core.books
        mine = [
            grant
            for environment, held in books.grants.items()
            if environment not in besides and books.environments[environment].owner == owner
            for grant in held.values()
        ]
        mine.extend(more)
        holders = {grant.environment for grant in mine}
        return Use(
            devices=sum(self._share(grant) for grant in mine),
            memory=sum(grant.memory for grant in mine),
            environments=sum(books.environments[it].kind != "server" for it in holders),
        )

    def _share(self, grant: GrantRow) -> int:
        capacity = self.core.books.slots[grant.device].capacity
        return share_of(grant.memory, grant.compute, capacity, exclusive=grant.exclusive)

    def shares(self) -> dict[str, int]:
        """Return what every owner holds, in hundredths of a percent of a device."""
        books = self.core.books
        found: dict[str, int] = {}
        for environment, held in books.grants.items():
            owner = books.environments[environment].owner
            for grant in held.values():
                found[owner] = found.get(owner, 0) + self._share(grant)
        return found

    def spent(self, period: Period, owner: str) -> int | None:
        """Return the GPU seconds of a period, as they were added up last; ``None``: not known."""
        self._watch()
        if self._spent is None:
            return None
        return self._spent[period].get(owner, 0) // (WHOLE * _MS)

    def now(self) -> datetime:
        """Return the time in the zone of the quotas."""
        return self.core.stamp().astimezone(zone(self.rules.settings.timezone))

    def _watch(self) -> None:
        """Begin to add up GPU hours, since somebody wants to know."""
        if self._thread is None and self.core.history is not None:
            self._thread = threading.Thread(target=self._keep, name="gpu-hours", daemon=True)
            self._thread.start()

    def _keep(self) -> None:
        while True:
            try:
                self.add_up()
            except Exception as error:
                log.warning("GPU hours could not be added up: %s", error)
            if self._ending.wait(REFRESH):
                return

    def add_up(self) -> None:
        """Add up the GPU time of every owner in every period. Without the lock: it reads a disk."""
        history, records = self.core.history, self.records
        if history is None or records is None:
            return
        found: dict[Period, dict[str, int]] = {}
        for period in PERIODS:
            since = int(began(period, self.now()).timestamp())
            age = self.core.clock() - since
            level = 60 if age < LEVELS[60] - 60 else 3600
            first = since - since % level
            sums = records.run(lambda it, a=level, b=first: table.spent(it, a, b))  # type: ignore[misc]
            _, pending, holders = history.pending()
            for ((environment, _), at), part in pending.items():
                row = self.core.books.environments.get(environment)
                holder = holders.get(environment)
                owner = row.owner if row is not None else holder.owner if holder else None
                if owner is not None and at >= first:
                    sums[owner] = sums.get(owner, 0) + part.share
            found[period] = sums
        self._spent = found

    # -- decisions ------------------------------------------------------------------------------

    def admit(self, row: EnvironmentRow, demand: Demand) -> None:
        """Refuse what is too much wherever it would be placed.

        Raises
        ------
        QuotaExceeded
            With what is used, what is left, and which rule says so.
        """
        if not self.rules.any:
            return
        share = WHOLE if demand.exclusive else max(demand.fraction or 0, demand.compute or 0)
        count = demand.count
        largest = 0 if demand.exclusive else share
        works = int(row.kind != "server")
        asked = Use(count * share, count * (demand.memory or 0), works, largest)
        kept = Use(0, 0, 0) if row.reservation is None else self._kept(row)
        # As much of it as can be comes out of the reservation that it draws on.
        drawn = Use(min(kept.devices, asked.devices), min(kept.memory, asked.memory), 0)
        self._check(row, asked, drawn=drawn)
        for period in PERIODS:
            bound = self.rules.bound(period, row.owner)
            if bound.limit is None:
                continue
            used = self.spent(period, row.owner)
            if used is not None and used >= bound.limit:
                raise refusal(period, bound, used=used, asked=0, reset=resets(period, self.now()))

    def confirm(self, row: EnvironmentRow, placed: Iterable[Placed]) -> None:
        """Refuse what is too much on the devices that were chosen.

        Raises
        ------
        QuotaExceeded
            As ``admit``.
        """
        if not self.rules.any:
            return
        slots = self.core.books.slots
        shares, memory, largest = 0, 0, 0
        placed = tuple(placed)
        for part in placed:
            share = share_of(
                part.memory, part.compute, slots[part.device].capacity, exclusive=part.exclusive
            )
            shares, memory = shares + share, memory + part.memory
            largest = max(largest, 0 if part.exclusive else share)
        works = int(row.kind != "server")
        self._check(row, Use(shares, memory, works, largest), placed=placed)

    def _kept(self, row: EnvironmentRow) -> Use:
        """Return what an environment's reservation would keep, held the environment nothing."""
        left = servers.left_after(self.core, row, ())
        return Use(sum(self._share(it) for it in left), sum(it.memory for it in left), 0)

    def _check(
        self,
        row: EnvironmentRow,
        asked: Use,
        *,
        placed: Sequence[Placed] = (),
        drawn: Use | None = None,
    ) -> None:
        left = servers.left_after(self.core, row, placed)
        used = self.use(row.owner, (row.id, row.reservation), left)
        if drawn is not None:
            devices, memory = used.devices - drawn.devices, used.memory - drawn.memory
            used = Use(devices, memory, used.environments)
        wanted: tuple[tuple[Quantity, int, int], ...] = (
            ("fraction", 0, asked.fraction),
            ("devices", used.devices, asked.devices),
            ("memory", used.memory, asked.memory),
            ("environments", used.environments, asked.environments),
        )
        for quantity, have, more in wanted:
            bound = self.rules.bound(quantity, row.owner)
            if bound.limit is not None and have + more > bound.limit:
                raise refusal(quantity, bound, used=have, asked=more)

    def most(self, owner: str) -> tuple[int | None, int | None] | None:
        """Return what an owner may go on holding: devices and memory; ``None``: there is no bound.

        Whoever has used up a period's GPU hours may hold nothing until the next one.
        """
        if not self.rules.any:
            return None
        devices, memory = (self.rules.bound(it, owner).limit for it in _HELD)
        for period in PERIODS:
            limit = self.rules.bound(period, owner).limit
            used = None if limit is None else self.spent(period, owner)
            if limit is not None and used is not None and used >= limit:
                devices = 0
        return None if devices is None and memory is None else (devices, memory)

    def queue(self, row: EnvironmentRow) -> None:
        """Refuse a place in the queue that is one too many.

        Raises
        ------
        QuotaExceeded
            As ``admit``.
        """
        bound = self.rules.bound("queue", row.owner)
        if bound.limit is None:
            return
        used = self._waiting(row.owner, besides=row.id)
        if used + 1 > bound.limit:
            raise refusal("queue", bound, used=used, asked=1)

    def _waiting(self, owner: str, besides: str | None = None) -> int:
        books = self.core.books
        return sum(books.environments[it].owner == owner for it in books.tickets if it != besides)

    def lease(self, owner: str, seconds: float | None) -> float | None:
        """Return how long a lease is to be: as asked, or the longest that the owner may have.

        Raises
        ------
        QuotaExceeded
            That is longer than the owner's leases may be.
        """
        bound = self.rules.bound("lease", owner)
        if bound.limit is not None and seconds is not None and seconds > bound.limit:
            raise refusal("lease", bound, used=0, asked=int(seconds))
        return bound.limit if seconds is None else seconds

    # -- for the doors --------------------------------------------------------------------------

    def whose(self, principal: Principal, user: str | None) -> Principal:
        """Return the principal of that name, or the caller where none is given. Without the lock.

        Raises
        ------
        Forbidden, UnknownUser
            It is somebody else, and the caller is no administrator; there is nobody of that name.
        """
        if user is None or user == principal.name:
            return principal
        administers(self.core, principal)
        return self.core.identities.named(user)

    def view(self, principal: Principal) -> QuotaView:
        """Show what somebody may have, has, and has left."""
        owner, now = principal.key, self.now()
        used = self.use(owner)
        have: dict[Quantity, int | None] = {
            "devices": used.devices,
            "memory": used.memory,
            "environments": used.environments,
            "queue": self._waiting(owner),
        }
        found = []
        for quantity in QUANTITIES:
            bound, reset = self.rules.bound(quantity, owner), None
            if quantity in PERIODS:
                have[quantity] = self.spent(quantity, owner)
                reset = resets(quantity, now)
            amount = have.get(quantity)
            left = None
            if bound.limit is not None and amount is not None:
                left = max(0, bound.limit - amount)
            found.append(
                QuotaUse(
                    quantity=quantity,
                    used=shown(quantity, amount),
                    limit=shown(quantity, bound.limit),
                    left=shown(quantity, left),
                    rule=bound.rule,
                    reset=reset,
                )
            )
        return QuotaView(
            user=principal.name,
            groups=principal.groups,
            timezone=self.rules.settings.timezone,
            quantities=tuple(found),
            guarantees=of_groups(self.core, self.core.identities.of(owner).groups),
        )
