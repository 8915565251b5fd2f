"""The broker: one method for each verb, one at a time.

Every method may be called from any thread. What a method answered is in the ledger.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from genv_jupyter.broker import attach, audit, fence, kernels, leaving, release, smi, views, wants
from genv_jupyter.broker.asking import Asking
from genv_jupyter.broker.books import Books
from genv_jupyter.broker.config import BrokerConfig
from genv_jupyter.broker.core import Core
from genv_jupyter.broker.discretion import hides_users, owner_of, seen
from genv_jupyter.broker.history import History
from genv_jupyter.broker.history_view import Past
from genv_jupyter.broker.housekeeping import Housekeeper
from genv_jupyter.broker.leftovers import recall
from genv_jupyter.broker.mps import Mps, needs
from genv_jupyter.broker.mps_settings import MpsDaemons
from genv_jupyter.broker.queue import Queue
from genv_jupyter.broker.queue_view import QueueNews, tickets
from genv_jupyter.broker.quotas import Quotas
from genv_jupyter.broker.rules.enforcer import Enforcer
from genv_jupyter.broker.tally import Tally
from genv_jupyter.broker.usage_view import UsageNews, may_see, usage_view
from genv_jupyter.devices.source import DeviceSource
from genv_jupyter.isolation.mps import Post
from genv_jupyter.isolation.mps_control import PROGRAM
from genv_jupyter.isolation.smi.report import SmiAnswer, SmiCall
from genv_jupyter.ledger.live import LiveLedger
from genv_jupyter.ledger.records import Record, RecordsLedger
from genv_jupyter.ledger.rows import EnvironmentRow
from genv_jupyter.leftovers import Leftover
from genv_jupyter.model import (
    AuditEntry,
    BrokerHealth,
    Cuda,
    Device,
    DryRun,
    Environment,
    EnvironmentPatch,
    EnvironmentUsage,
    Event,
    Figures,
    KernelReport,
    NewEnvironment,
    Principal,
    QueueTicket,
    Request,
    ServerReport,
    Want,
)
from genv_jupyter.notices import Notice
from genv_jupyter.policy import Policy
from genv_jupyter.quotas import QuotaLimits, QuotaRule, QuotaView


class Broker:
    """Decides who gets which device, and keeps the ledger.

    Parameters
    ----------
    ledger
        The live ledger; opened here.
    source
        Where device readings come from.
    policy
        The rules.
    records
        Where events are written for good; ``None`` keeps none.
    clock
        Seconds since the epoch; tests turn it.
    steady
        Seconds since the host was booted; tests turn it.
    mps
        A private directory for MPS daemons; ``None`` runs none.
    mps_program
        The program of the daemons.
    config
        What was configured; ``policy``, where it is given, comes before it.

    Raises
    ------
    LedgerNewer
        The ledger belongs to a newer version.
    """

    def __init__(
        self,
        ledger: LiveLedger,
        source: DeviceSource,
        policy: Policy | None = None,
        *,
        records: RecordsLedger | None = None,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
        mps: Path | None = None,
        mps_program: str = PROGRAM,
        config: BrokerConfig | None = None,
    ) -> None:
        self.lanes = fence.Lanes()
        self.lock = threading.RLock()
        self.records = records
        self.books = Books(ledger)
        config = config or BrokerConfig()
        policy = policy or config.policy()
        self.core = Core(self.books, source, policy, self._record, clock, steady, config=config)
        if mps is not None:
            whose = config.of(MpsDaemons)
            self.core.mps = Mps(whose.daemons(mps, self._mps_needs, mps_program, steady))
        core = self.core
        if records is not None:
            core.history = History(records, self.books, core.usable, core.notices)
        core.quotas = Quotas(core, records)
        self.past = Past(
            core.history,
            clock,
            self.books.slots,
            lambda: core.inventory.simulated,
            lambda: hides_users(core),
        )
        core.notices.extend(ledger.open())
        self.books.load()
        release.tie_up(self.core)
        self.housekeeper = Housekeeper(self.core)
        self.particulars = smi.Particulars()
        self.news = UsageNews(self.core)
        self.rules = Enforcer(self.core, self.lock, self.lanes, records)
        self.rules.recall()
        self.queue = Queue(self.core, self.lock, self.lanes, records)
        self.lines = QueueNews(self.core)
        self.asking = Asking(self.core, self.lock)
        self.tally = Tally(steady)
        self._told_trouble: str | None = None
        self.core.refresh()

    def obey(self, config: BrokerConfig) -> None:
        """Take over another configuration, for whatever is decided from now on."""
        with self.lock:
            self.core.config, self.core.policy = config, config.policy()
            self.core.outdate()

    def close(self) -> None:
        """Close source and ledgers, and end idle MPS daemons; grants stay as they are."""
        self.core.mps.close()
        self.core.quotas.close()
        with self.lock:
            self.core.source.close()
            self.books.ledger.close()
            if self.core.history is not None:
                self.core.history.close(self.core.clock())
            if self.records is not None:
                self.records.close()

    # -- reading --------------------------------------------------------------------------------

    def health(self) -> BrokerHealth:
        """Say how the broker and the driver are."""
        with self.lock:
            return views.health_view(self.core)

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
        with self.lock:
            return self.core.quotas.view(self.core.quotas.whose(principal, user))

    def audit(self, principal: Principal, search: str | None, limit: int) -> list[AuditEntry]:
        """Return the newest of the audit log; without the lock, since it waits for a disk."""
        return audit.entries(self.core, self.records, principal, search, limit)

    def quotas(self, principal: Principal) -> list[QuotaRule]:
        """List all rules."""
        with self.lock:
            return self.core.quotas.rules.listed(principal)

    def set_quota(self, principal: Principal, scope: str, limits: QuotaLimits | None) -> None:
        """Set a rule, or forget it (``None``); without the lock, since it waits for a disk."""
        rules = self.core.quotas.rules
        if limits is None:
            rules.unset(principal, scope)
        else:
            rules.set(principal, scope, limits)

    # -- changing -------------------------------------------------------------------------------

    def dismiss(self, principal: Principal, notice: str) -> None:
        """Do not show a notice any more."""
        with self.lock:
            self.core.board.dismiss(principal, notice)

    def create(self, principal: Principal, new: NewEnvironment) -> Environment:
        """Make an environment for a process that no server of ours started."""
        with self.lock:
            return self._view(principal, kernels.create(self.core, principal, new))

    def attach(
        self,
        principal: Principal,
        environment: str,
        request: Request,
        *,
        cuda: Cuda = "unknown",
        restart: bool = False,
        peer_pid: int | None = None,
    ) -> Environment:
        """Give an environment what it asks for, or a place in the queue if it would wait.

        On refusal it keeps what it has.
        """
        with self.tally.attach(), self.lanes.of(environment):
            row = self.queue.attach(
                principal, environment, request, cuda=cuda, restart=restart, peer_pid=peer_pid
            )
            with self.lock:
                return self._view(principal, row)

    def detach(
        self,
        principal: Principal,
        environment: str,
        *,
        device: str | None = None,
        cuda: Cuda = "unknown",
        peer_pid: int | None = None,
    ) -> Environment:
        """Take back everything, or one device."""
        with self.lanes.of(environment), self.lock:
            row = self.core.environment(principal, environment)
            by_process = peer_pid is not None and peer_pid == row.pid
            row = release.detach(self.core, row, device=device, cuda=cuda, by_process=by_process)
            return self._view(principal, row)

    def patch(self, principal: Principal, environment: str, body: EnvironmentPatch) -> Environment:
        """Change the name, or take in what was applied inside the process."""
        with self.lock:
            row = self.core.environment(principal, environment)
            came = self.queue.came(row)
            row = kernels.patch(self.core, row, body)
            if came:
                self.core.board.withdraw(row, "queue")
            return self._view(principal, row)

    def restart(self, principal: Principal, environment: str) -> Environment:
        """Have the server restart the kernel; its grants are kept."""
        with self.lock:
            row = self.core.environment(principal, environment)
            return self._view(principal, wants.restart(self.core, row))

    def leave(self, principal: Principal, environment: str) -> Environment:
        """Take the processes of an environment off MPS, before they are ended."""
        with self.lock:
            row = self.core.environment(principal, environment)
        leaving.leave(self.core, self.lock, row)  # programs: without the lock
        with self.lock:
            return self._view(principal, self.core.environment(principal, environment))

    def end_process(self, principal: Principal, pid: int, start: int) -> Leftover:
        """Have a process end that a kernel of the caller has left behind."""
        with self.lock:
            devices = self.core.leftovers.devices_of(principal, pid, start)
        leaving.leave_one(self.core, devices, pid)  # programs: without the lock
        with self.lock:
            return self.core.leftovers.end(principal, pid, start)

    # -- what servers tell ----------------------------------------------------------------------

    def put_server(self, principal: Principal, server: str, report: ServerReport) -> None:
        """Register a Jupyter server."""
        with self.lock:
            kernels.put_server(self.core, principal, server, report)

    def end_server(self, principal: Principal, server: str) -> None:
        """A server leaves, its kernels with it."""
        with self.lock:
            kernels.end_server(self.core, principal, server)

    def put_kernel(
        self, principal: Principal, server: str, kernel: str, report: KernelReport
    ) -> Environment:
        """Take in what a server tells of a kernel."""
        with self.lock:
            row = kernels.put_kernel(self.core, principal, server, kernel, report)
            return self._view(principal, row)

    def end_kernel(
        self, principal: Principal, server: str, kernel: str, launch: int | None = None
    ) -> None:
        """A kernel is gone for good; with ``launch``, unless it has been started again since."""
        with self.lock:
            kernels.end_kernel(self.core, principal, server, kernel, launch)

    # -- by itself ------------------------------------------------------------------------------

    def tick(self, *, read: bool = True) -> None:
        """Read the devices and look after the environments: called once a second."""
        recall(self.core, self.lock, self.records)
        # Outside the lock: a hanging driver stalls nobody.
        reading = self.core.read() if read else None
        with self.lock:
            if reading is not None:
                self.core.absorb(*reading)
            self.housekeeper.round()
            self.core.leftovers.round()
            self.asking.round()
            self.core.board.sweep()

    def tick_rules(self) -> None:
        """Judge the last reading and act: called once a second, beside ``tick``, as it may wait."""
        self.rules.round()

    def tick_mps(self) -> None:
        """Look after MPS: called once a second, beside ``tick``, since its programs may hang."""
        self.core.mps.round(self.core, self.lock)

    def changes(self, principal: Principal) -> Event | None:
        """Return what has changed since the last call, as one event; ``None`` for nothing."""
        return self.changes_for([principal]).get(principal)

    def changes_for(self, principals: Iterable[Principal]) -> dict[Principal, Event]:
        """Return what has changed since the last call, as each of these may see it."""
        with self.lock:
            books = self.books
            devices, environments = books.changed_devices, books.changed_environments
            trouble, self._told_trouble = self._told_trouble, self.core.inventory.trouble
            health = self.health() if trouble != self._told_trouble else None
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
                    health=health,
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
                health=self.health(),
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

    @property
    def fences(self) -> bool:
        """Whether an attach may have to wait for a program."""
        return self.core.mps.daemons is not None and not self.core.inventory.simulated

    def matters(self) -> bool:
        """Say whether it matters to somebody what the devices do now."""
        books = self.books
        return bool(books.grants or books.tickets or self.core.leftovers)

    def idle(self) -> bool:
        """Say whether nobody needs this broker now."""
        with self.lock:
            return not self.books.environments and not self.books.servers

    def _mps_needs(self) -> dict[Post, int]:
        with self.lock:
            return needs(self.core)

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

    def _record(
        self,
        event: str,
        row: EnvironmentRow,
        *,
        device: str | None = None,
        memory: int | None = None,
        compute: int | None = None,
        reason: str | None = None,
    ) -> None:
        if self.records is not None:
            self.records.enqueue(
                Record(
                    at=self.core.clock(),
                    event=event,
                    owner=row.owner,
                    environment=row.id or None,
                    device=device,
                    memory=memory,
                    compute=compute,
                    reason=reason,
                )
            )
