"""What stands, as everybody may see it: read at once, or told to those who listen."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from genv_jupyter.broker import attach, audit, release, smi, views, wants
from genv_jupyter.broker.books import Books
from genv_jupyter.broker.core import Core
from genv_jupyter.broker.discretion import owner_of, seen
from genv_jupyter.broker.queue_view import QueueNews, tickets
from genv_jupyter.broker.rules.enforcer import Enforcer
from genv_jupyter.broker.tally import Tally
from genv_jupyter.broker.usage_view import UsageNews, may_see, usage_view
from genv_jupyter.events import Event, Figures, Want
from genv_jupyter.isolation.smi.report import SmiAnswer, SmiCall
from genv_jupyter.ledger.records import RecordsLedger
from genv_jupyter.ledger.rows import EnvironmentRow
from genv_jupyter.leftovers import Leftover
from genv_jupyter.model import (
    AuditEntry,
    BrokerHealth,
    Device,
    DryRun,
    Environment,
    EnvironmentUsage,
    Principal,
    QueueTicket,
    Request,
)
from genv_jupyter.notices import Notice
from genv_jupyter.quotas import QuotaRule, QuotaView


class Outlook:
    """What a broker answers without changing anything; ``Broker`` puts the parts together."""

    core: Core
    books: Books
    lock: threading.RLock
    records: RecordsLedger | None
    particulars: smi.Particulars
    news: UsageNews
    lines: QueueNews
    rules: Enforcer
    tally: Tally
    _told: tuple[str | None, int] = (None, 0)
    """What of the broker's own health was told last: the driver's trouble, and its quotas."""

    # -- reading --------------------------------------------------------------------------------

    def health(self, viewer: Principal | None = None) -> BrokerHealth:
        """Say how the broker and the driver are."""
        with self.lock:
            return views.health_view(self.core, viewer)

    def devices(
        self,
        server: str | None = None,
        *,
        fresh: bool = False,
        viewer: Principal | None = None,
    ) -> list[Device]:
        """Return all devices, or those of a server's pool; ``fresh`` reads them anew."""
        with self.lock:
            self.core.refresh(0.0 if fresh else release.FRESH)
            return [
                views.device_view(self.core, uuid, viewer) for uuid in self._uuids(server, viewer)
            ]

    def environments(self, principal: Principal) -> list[Environment]:
        """Return all environments."""
        with self.lock:
            return [self._view(principal, row) for row in self.books.environments.values()]

    def environment(self, principal: Principal, environment: str) -> Environment:
        """Return one environment."""
        with self.lock:
            return self._view(principal, self.core.environment(principal, environment))

    def usage(self, principal: Principal, environment: str) -> EnvironmentUsage:
        """Return what an environment really uses, as the last reading saw it."""
        with self.lock:
            return usage_view(self.core, self.core.environment(principal, environment))

    def turn_devices(self, principal: Principal, environment: str) -> tuple[str, ...]:
        """Return the devices that an environment shares: those there are turns on."""
        with self.lock:
            row = self.core.environment(principal, environment)
            grants = self.books.grants_of(row.id)
            return tuple(
                grant.device for grant in grants if grant.state == "granted" and not grant.exclusive
            )

    def label_of(self, environment: str, viewer: str) -> tuple[str, str | None]:
        """Return the user and the name of an environment, as the owner of another may see it."""
        row, asker = (self.books.environments.get(it) for it in (environment, viewer))
        if row is None or asker is None:
            return "", None
        shown = seen(self.core, row, owner_of(asker))
        return shown.user, shown.name

    def nvidia_smi(self, principal: Principal, environment: str, call: SmiCall) -> SmiAnswer:
        """Answer a call of nvidia-smi inside an environment."""
        with self.lock:
            row = self.core.environment(principal, environment)
        return smi.answer(self.core, self.lock, row, self.particulars, call)

    def place(
        self, principal: Principal, request: Request, environment: str | None = None
    ) -> DryRun:
        """Say what a request would get now."""
        with self.lock:
            row = None if environment is None else self.core.environment(principal, environment)
            rows = attach.dry_run(self.core, row, principal.key, request)
            return DryRun(grants=tuple(views.grant_view(self.core, grant) for grant in rows))

    def figures(self) -> Figures:
        """Return what was counted since this broker began."""
        return self.tally.figures(dict(self.rules.acted), self.rules.settings.terms())

    def tickets(self, principal: Principal) -> tuple[QueueTicket, ...]:
        """Return who waits in the queue."""
        with self.lock:
            return tickets(self.core, principal)

    def notices(self, principal: Principal) -> list[Notice]:
        """Return what somebody is told about their environments."""
        with self.lock:
            return self.core.board.of(principal)

    def leftovers(self, principal: Principal) -> list[Leftover]:
        """Return what kernels of somebody have left behind on devices."""
        with self.lock:
            return self.core.leftovers.of(principal)

    def quota(self, principal: Principal, user: str | None = None) -> QuotaView:
        """Return what somebody may have, has, and has left; of others only to administrators."""
        who = self.core.quotas.whose(principal, user)  # asks the host: without the lock
        with self.lock:
            return self.core.quotas.view(who)

    def audit(self, principal: Principal, search: str | None, limit: int) -> list[AuditEntry]:
        """Return the newest of the audit log; without the lock, since it waits for a disk."""
        return audit.entries(self.core, self.records, principal, search, limit)

    def quotas(self, principal: Principal) -> list[QuotaRule]:
        """List all rules."""
        with self.lock:
            return self.core.quotas.rules.listed(principal)

    # -- for those who listen --------------------------------------------------------------------

    def changes(self, principal: Principal) -> Event | None:
        """Return what has changed since the last call, as one event; ``None`` for nothing."""
        return self.changes_for([principal]).get(principal)

    def changes_for(self, principals: Iterable[Principal]) -> dict[Principal, Event]:
        """Return what has changed since the last call, as each of these may see it."""
        with self.lock:
            books = self.books
            devices, environments = books.changed_devices, books.changed_environments
            told = self._told
            self._told = self.core.inventory.trouble, self.core.quotas.rules.revision
            health = self._told != told
            usage = self.news.take(environments, devices)
            noticed = self.core.board.news()
            left, queued = self.core.leftovers.news(), self.lines.changed()
            if not (devices or environments or usage or noticed or left or queued or health):
                return {}
            books.changed_devices, books.changed_environments = set(), set()
            books.revision += 1
            removed = tuple(
                name
                for name in (*environments, *devices)
                if name not in books.environments and name not in books.slots
            )
            return {
                principal: Event(
                    health=self.health(principal) if health else None,
                    revision=books.revision,
                    devices=tuple(
                        views.device_view(self.core, uuid, principal)
                        for uuid in books.slots
                        if uuid in devices
                    ),
                    environments=tuple(
                        self._view(principal, books.environments[environment])
                        for environment in environments
                        if environment in books.environments
                    ),
                    usage=tuple(seen for row, seen in usage if may_see(row, principal)),
                    removed=removed,
                    notices=tuple(self.core.board.of(principal)) if noticed else None,
                    leftovers=tuple(self.core.leftovers.of(principal)) if left else None,
                    queue=tickets(self.core, principal) if queued else None,
                )
                for principal in principals
            }

    def snapshot(self, principal: Principal, server: str | None = None) -> Event:
        """Return everything as one event."""
        with self.lock:
            return Event(
                revision=self.books.revision,
                snapshot=True,
                devices=tuple(self.devices(server, viewer=principal)),
                environments=tuple(self.environments(principal)),
                usage=tuple(
                    usage_view(self.core, self.books.environments[environment])
                    for environment in self.books.grants
                    if may_see(self.books.environments[environment], principal)
                ),
                health=self.health(principal),
                notices=tuple(self.core.board.of(principal)),
                leftovers=tuple(self.core.leftovers.of(principal)),
                queue=tickets(self.core, principal),
                figures=self.figures(),
            )

    def pool_uuids(self, server: str | None, viewer: Principal | None = None) -> frozenset[str]:
        """Return the devices of a server's pool; all of them without a server."""
        with self.lock:
            return frozenset(self._uuids(server, viewer))

    def renew_wants(self, server: str, viewer: Principal | None = None) -> None:
        """Want again what a server has not confirmed: it may never have heard of it."""
        with self.lock:
            if self._may_hear(server, viewer):
                wants.renew(self.core, server)

    def take_wants(self, server: str, viewer: Principal | None = None) -> tuple[Want, ...]:
        """Return what the broker wants of a server, once, as things are now."""
        with self.lock:
            return wants.take(self.core, server) if self._may_hear(server, viewer) else ()

    def _may_hear(self, server: str, viewer: Principal | None) -> bool:
        """Say whether somebody may listen as a server: its id is a name, and no secret."""
        row = self.books.servers.get(server)
        return viewer is None or row is None or row.owner == viewer.key

    def _uuids(self, server: str | None, viewer: Principal | None = None) -> list[str]:
        row = None if server is None else self.books.servers.get(server)
        if server is not None and not self._may_hear(server, viewer):
            row = None
        if row is None or row.pool is None:
            known = [device.uuid for device in self.core.inventory.devices]
            return known + [uuid for uuid in self.books.slots if uuid not in known]
        return [uuid for uuid in self.core.pool(row.pool).uuids if uuid in self.books.slots]

    def _view(self, principal: Principal, row: EnvironmentRow) -> Environment:
        return views.environment_view(self.core, row, principal)
