"""The broker: one method for each verb, one at a time.

Every method may be called from any thread. What a method answered is in the ledger.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from genv_jupyter.broker import (
    claims,
    fence,
    kernels,
    leaving,
    release,
    reserving,
    smi,
    views,
    wants,
)
from genv_jupyter.broker.asking import Asking
from genv_jupyter.broker.books import Books
from genv_jupyter.broker.config import BrokerConfig
from genv_jupyter.broker.core import Core
from genv_jupyter.broker.discretion import hides_users
from genv_jupyter.broker.history import History
from genv_jupyter.broker.history_view import Past
from genv_jupyter.broker.housekeeping import Housekeeper
from genv_jupyter.broker.leftovers import recall
from genv_jupyter.broker.mps import Mps, needs
from genv_jupyter.broker.mps_settings import MpsDaemons
from genv_jupyter.broker.outlook import Outlook
from genv_jupyter.broker.queue import Queue
from genv_jupyter.broker.queue_view import QueueNews
from genv_jupyter.broker.quotas import Quotas
from genv_jupyter.broker.recording import recorder
from genv_jupyter.broker.rules.enforcer import Enforcer
from genv_jupyter.broker.tally import Tally
from genv_jupyter.broker.upkeep import Upkeep
from genv_jupyter.broker.usage_view import UsageNews
from genv_jupyter.devices.source import DeviceSource
from genv_jupyter.isolation.mps import Post
from genv_jupyter.isolation.mps_control import PROGRAM
from genv_jupyter.isolation.powers import Powers
from genv_jupyter.ledger.live import LiveLedger
from genv_jupyter.ledger.records import RecordsLedger
from genv_jupyter.leftovers import Leftover
from genv_jupyter.maintenance import DevicePatch
from genv_jupyter.model import (
    Cuda,
    Device,
    Environment,
    EnvironmentPatch,
    KernelReport,
    NewEnvironment,
    Principal,
    Request,
    ServerReport,
)
from genv_jupyter.policy import Policy
from genv_jupyter.quotas import QuotaLimits
from genv_jupyter.reserving import NewReservation

PAUSE = 0.0005
"""Seconds between two parts of a round: who lets go of a lock and takes it at once has it again
before those who wait for it have woken up."""


class Broker(Outlook):
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
    powers
        What may be done to others' processes; by default, what this process may.

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
        powers: Powers | None = None,
    ) -> None:
        self.lanes = fence.Lanes()
        self.lock = threading.RLock()
        self.records = records
        self.books = Books(ledger)
        config = config or BrokerConfig()
        policy = policy or config.policy()
        record = recorder(records, clock)
        self.core = core = Core(
            self.books, source, policy, record, clock, steady, config=config, powers=powers
        )
        if mps is not None:
            whose = config.of(MpsDaemons)
            needed = self._mps_needs
            core.mps = Mps(whose.daemons(mps, needed, mps_program, steady, core.powers))
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
        core.upkeep = Upkeep(core, self.lock, records)
        release.tie_up(self.core)
        self.housekeeper = Housekeeper(self.core)
        self.particulars = smi.Particulars()
        self.news = UsageNews(self.core)
        self.rules = Enforcer(self.core, self.lock, self.lanes, records)
        self.rules.recall()
        self.queue = Queue(self.core, self.lock, self.lanes, records)
        self.lines = QueueNews(self.core)
        self.asking = Asking(self.core, self.lock, self.books.notes)
        self.tally = Tally(steady)
        self.core.refresh()

    def obey(self, config: BrokerConfig) -> None:
        """Take over another configuration, for whatever is decided from now on."""
        with self.lock:
            self.core.obey(config)

    def learn_quotas(self, rules: Mapping[str, QuotaLimits]) -> None:
        """Take in what a JupyterHub says that its groups may have, by scope."""
        with self.lock:
            self.core.quotas.rules.learn(rules)

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

    # -- changing -------------------------------------------------------------------------------

    def patch_device(self, principal: Principal, device: str, body: DevicePatch) -> Device:
        """Drain a device for maintenance, or put it back; for administrators."""
        uuid = self.core.upkeep.patch(principal, device, body)
        with self.lock:
            return views.device_view(self.core, uuid, principal)

    def dismiss(self, principal: Principal, notice: str) -> None:
        """Do not show a notice any more."""
        with self.lock:
            self.core.board.dismiss(principal, notice)

    def create(self, principal: Principal, new: NewEnvironment) -> Environment:
        """Make an environment for a process that no server of ours started."""
        with self.lock:
            return self._view(principal, kernels.create(self.core, principal, new))

    def reserve(self, principal: Principal, new: NewReservation) -> Environment:
        """Reserve devices for a Jupyter server before it starts, on behalf of its owner."""
        owner = reserving.owner_of(self.core, principal, new)  # asks the host: without the lock
        with self.lock:
            return self._view(principal, reserving.reserve(self.core, principal, new, owner))

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
            cuda = self._seen(environment, cuda, peer_pid)
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
            cuda = self._seen(environment, cuda, peer_pid)
            row = release.detach(self.core, row, device=device, cuda=cuda, by_process=by_process)
            return self._view(principal, row)

    def patch(
        self,
        principal: Principal,
        environment: str,
        body: EnvironmentPatch,
        *,
        peer_pid: int | None = None,
    ) -> Environment:
        """Change the name, or take in what was applied inside the process."""
        with self.lock:
            row = self.core.environment(principal, environment)
            came = self.queue.came(row)
            row = kernels.patch(self.core, row, body, speaker=peer_pid)
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

    def set_quota(self, principal: Principal, scope: str, limits: QuotaLimits | None) -> None:
        """Set a rule, or forget it (``None``); without the lock, since it waits for a disk."""
        rules = self.core.quotas.rules
        if limits is None:
            rules.unset(principal, scope)
        else:
            rules.set(principal, scope, limits)

    # -- what servers tell ----------------------------------------------------------------------

    def put_server(
        self,
        principal: Principal,
        server: str,
        report: ServerReport,
        *,
        peer_pid: int | None = None,
    ) -> None:
        """Register a Jupyter server."""
        with self.lock:
            kernels.put_server(self.core, principal, server, report, speaker=peer_pid)

    def end_server(self, principal: Principal, server: str, *, peer_pid: int | None = None) -> None:
        """A server leaves, its kernels with it."""
        with self.lock:
            kernels.end_server(self.core, principal, server, speaker=peer_pid)

    def put_kernel(
        self,
        principal: Principal,
        server: str,
        kernel: str,
        report: KernelReport,
        *,
        peer_pid: int | None = None,
    ) -> Environment:
        """Take in what a server tells of a kernel."""
        with self.lock:
            row = kernels.put_kernel(self.core, principal, server, kernel, report, speaker=peer_pid)
            return self._view(principal, row)

    def end_kernel(
        self,
        principal: Principal,
        server: str,
        kernel: str,
        launch: int | None = None,
        *,
        peer_pid: int | None = None,
    ) -> None:
        """A kernel is gone for good; with ``launch``, unless it has been started again since."""
        with self.lock:
            kernels.end_kernel(self.core, principal, server, kernel, launch, speaker=peer_pid)

    # -- by itself ------------------------------------------------------------------------------

    def tick(self, *, read: bool = True) -> None:
        """Read the devices and look after the environments: called once a second."""
        recall(self.core, self.lock, self.records)
        # Outside the lock: a hanging driver stalls nobody.
        reading = self.core.read() if read else None
        if reading is not None:
            with self.lock:
                self.core.absorb(*reading)
        rounds = (self.core.leftovers.round, self.asking.round, self.core.board.sweep)
        for part in (*self.housekeeper.parts(), *rounds):
            _let_others_in()
            with self.lock:
                part()

    def tick_rules(self) -> None:
        """Judge the last reading and act: called once a second, beside ``tick``, as it may wait."""
        self.rules.round()
        with self.lock:
            due = self.core.leftovers.due()
        for who, devices in due:
            leaving.leave_one(self.core, devices, who[0])  # programs: without the lock
            with self.lock:
                self.core.leftovers.end_due(who)

    def tick_mps(self) -> None:
        """Look after MPS: called once a second, beside ``tick``, since its programs may hang."""
        self.core.mps.round(self.core, self.lock)

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

    def _seen(self, environment: str, cuda: Cuda, speaker: int | None) -> Cuda:
        """Return what is taken in of what somebody says of CUDA in a process."""
        with self.lock:
            row = self.books.environments.get(environment)
            known = row is not None and claims.speaks_for(self.books, row, speaker)
            return claims.seen(cuda, believed=known)

    def _mps_needs(self) -> dict[Post, int]:
        with self.lock:
            return needs(self.core)


def _let_others_in() -> None:
    time.sleep(PAUSE)
