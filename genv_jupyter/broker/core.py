"""What the verbs share: books, readings, policy and clock."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from genv_jupyter.broker import discretion
from genv_jupyter.broker.books import Books
from genv_jupyter.broker.contention import Contention
from genv_jupyter.broker.deaths import Deaths
from genv_jupyter.broker.identity import Access, Identities
from genv_jupyter.broker.leftovers import Leftovers
from genv_jupyter.broker.line import Line
from genv_jupyter.broker.meters import Meters
from genv_jupyter.broker.mps import Mps
from genv_jupyter.broker.noticeboard import Noticeboard
from genv_jupyter.broker.pools import Pools
from genv_jupyter.broker.rules.idle import Idleness
from genv_jupyter.broker.sensors import steadied
from genv_jupyter.broker.usage import Attribution, DeviceUsage, join
from genv_jupyter.devices.pool import Pool
from genv_jupyter.devices.source import DeviceReading, DeviceSource, Inventory
from genv_jupyter.errors import NoDriver, NotYours, UnknownEnvironment
from genv_jupyter.isolation.powers import Powers
from genv_jupyter.ledger.rows import DeviceRow, EnvironmentRow
from genv_jupyter.model import Health, Principal, Process
from genv_jupyter.policy import Policy
from genv_jupyter.slots import Slot
from genv_jupyter.units import WHOLE

if TYPE_CHECKING:
    from genv_jupyter.broker.config import BrokerConfig
    from genv_jupyter.broker.history import History
    from genv_jupyter.broker.quotas import Quotas
    from genv_jupyter.broker.upkeep import Upkeep

Record = Callable[..., None]
SLOW = 0.5
"""Seconds from which on a reading is one of a driver that hangs."""
CLOSE = 0.25
"""Seconds after a measured reading for which another need not be."""


class Core:
    """The state that one broker decides on.

    Parameters
    ----------
    books
        Loaded books.
    source
        Where readings come from.
    record
        Called with an event's name and its facts, for the records; must not block.
    clock
        Seconds since the epoch, for people.
    steady
        Seconds since the host was booted, for deadlines: they outlive a broker, and no step of
        the clock moves them.
    config
        What was configured: each part asks it for its own settings.
    powers
        What may be done to others' processes, by whom.

    Attributes
    ----------
    programs
        The directory with the environments' ``nvidia-smi``, where there is one.
    history
        Keeps what is read, where there are records.
    board
        What owners are told.
    line
        Who waits for devices.
    idleness
        Since when environments rest.
    leftovers
        Processes that outlived their kernels.
    contention
        Outsiders who came onto devices after they were granted.
    deaths
        Why processes died.
    unwatched
        Servers that listen for their kernels alone: nobody looks through them.
    """

    def __init__(
        self,
        books: Books,
        source: DeviceSource,
        policy: Policy,
        record: Record,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
        *,
        config: BrokerConfig,
        powers: Powers | None = None,
    ) -> None:
        self.books = books
        self.source = source
        self.policy = policy
        self.record = record
        self.clock = clock
        self.steady = steady
        self.config = config
        self.mps = Mps()
        self.powers = powers or Powers()
        self.attribution = Attribution(books, self.powers)
        self.meters = Meters()
        self.board = Noticeboard(books, record, clock, self.stamp)
        self.idleness = Idleness()
        self.leftovers = Leftovers(self)
        self.contention = Contention(self)
        self.deaths = Deaths(self)
        self.line = Line(self)
        self.history: History | None = None
        self.inventory = Inventory()
        self.usage: dict[str, DeviceUsage] = {}
        self.processes: dict[str, list[Process]] = {}
        self.notices: list[str] = []
        self.kind: Literal["user", "host"] = "user"
        self.identities = Identities(lambda: self.config.of(Access))
        self.quotas: Quotas  # made once the records are open
        self.upkeep: Upkeep  # likewise
        self.programs: str | None = None
        self.loose_ends = False
        self._slow = False
        self._last_ended = float("-inf")
        self._read_at = float("-inf")
        self._measured = float("-inf")
        self._pools = Pools(self)
        self._told: dict[str, DeviceUsage] = {}
        self._fitted: dict[str, DeviceRow] = {}
        self._clients: dict[str, dict[int, int]] = {}
        self.unwatched: set[str] = set()

    # -- who and what ---------------------------------------------------------------------------

    def environment(self, principal: Principal, environment: str) -> EnvironmentRow:
        """Return an environment that the caller may change.

        Raises
        ------
        UnknownEnvironment
            There is none of that id.
        NotYours
            It belongs to somebody else.
        """
        row = self.books.environments.get(environment)
        if row is None:
            raise UnknownEnvironment(
                f"There is no GPU environment {environment[:64]!r} (it may have ended).",
                hint="List them with `%gpu envs` or `jupyter gpu envs`.",
            )
        if row.owner != principal.key and not principal.admin:
            raise NotYours(
                f"This environment belongs to {discretion.seen(self, row, principal).user}.",
                hint="Ask its owner to change it.",
            )
        return row

    def pool_of(self, row: EnvironmentRow | None) -> Pool:
        """Return the devices an environment may use: its server's pool, narrowed by its own."""
        server = self.books.servers.get(row.server) if row is not None and row.server else None
        outer = self.pool(server.pool if server is not None else None)
        if row is None or row.pool is None:
            return outer
        inner = self.pool(row.pool)
        return Pool(
            uuids=tuple(uuid for uuid in inner.uuids if uuid in outer.uuids),
            notice=inner.notice or outer.notice,
        )

    def pool(self, value: str | None) -> Pool:
        """Read a ``CUDA_VISIBLE_DEVICES`` over the present devices."""
        return self._pools.of(value)

    def slots_of(self, pool: Pool, environment: str | None = None) -> list[Slot]:
        """Return the slots of a pool; what an environment uses too much stands not in its own way.

        Raises
        ------
        NoDriver
            There are none because the driver does not work.
        """
        if self.mps.modes is not None:
            self.mps.modes.mark()
        slots = [self.books.slots[uuid] for uuid in pool.uuids if uuid in self.books.slots]
        if not slots:
            cause = self.inventory.trouble or pool.notice or "No NVIDIA GPU was found on this host."
            raise NoDriver(cause, hint="`%gpu doctor` or `jupyter gpu doctor` says more.")
        return [self._without_own(slot, environment) for slot in slots]

    def _without_own(self, slot: Slot, environment: str | None) -> Slot:
        usage = self.usage.get(slot.uuid)
        if usage is None:
            return slot
        self._count_excess(slot, usage)  # grants may have changed since the last reading
        own = 0 if environment is None else self._over(usage, environment)
        if not own:
            return slot
        return dataclasses.replace(slot, external=slot.external - own, excess=slot.excess - own)

    def nothing_of(self, owner: str) -> EnvironmentRow:
        """Return an environment that is nowhere: for what an owner is told of no certain one."""
        return EnvironmentRow.nobody(owner, self.identities.last(owner).name)

    def stamp(self, at: float | None = None) -> datetime:
        """Turn the clock's seconds into a UTC time."""
        return datetime.fromtimestamp(self.clock() if at is None else at, UTC)

    def first_revision(self) -> int:
        """Return a revision after all that a process may have from an environment that is gone."""
        return int(self.steady() * 1000)

    # -- readings -------------------------------------------------------------------------------

    def refresh(self, max_age: float = 0.0) -> bool:
        """Read the devices unless a reading of that age (seconds) is at hand; say if one is now.

        While the driver hangs only the housekeeper waits for it: what verbs wait for, all wait for.
        """
        if time.monotonic() - self._read_at <= max_age:
            return True
        if self._slow:
            return False
        inventory, began, ended = self.read()
        self.absorb(inventory, began, ended, between=True)
        return True

    def read(self, *, details: bool = False) -> tuple[Inventory, float, float]:
        """Read the devices; return also when that began and ended, on the monotonic clock."""
        began = time.monotonic()
        inventory = self.source.read(details=True) if details else self.source.read()
        return inventory, began, time.monotonic()

    @property
    def last_reading(self) -> float:
        """When the last reading ended, on the monotonic clock: it tells one from the next."""
        return self._last_ended

    @property
    def hanging(self) -> bool:
        """Whether the driver let the last reading wait for long."""
        return self._slow

    def obey(self, config: BrokerConfig) -> None:
        """Take over another configuration; what can be granted follows, whatever is read next."""
        self.config, self.policy = config, config.policy()
        for device in self.inventory.devices:
            self._fit(device)
            self.books.touch_device(device.uuid)
        self.outdate()

    def outdate(self) -> None:
        """Say that the present reading no longer tells the truth."""
        self._read_at = float("-inf")

    def absorb(
        self, inventory: Inventory, began: float, ended: float, *, between: bool = False
    ) -> None:
        """Take in a reading: slots, health, external memory, and who uses what.

        One that began before the last that was taken in is older than what is known. One that a
        verb needs, ``between`` those of the round, is measured if it is not close to another: it
        would tell the history next to nothing, and take as long as looking at every grant does.
        """
        if began < self._last_ended:
            return
        self._read_at = self._last_ended = ended
        self._slow = ended - began > SLOW
        clients = self.mps.clients()
        same = not clients and clients == self._clients and inventory == self.inventory
        if same and not any(d.processes for d in inventory.devices):
            self._miss()
            self._measure(began, between=between)
            return
        if [d.uuid for d in inventory.devices] != [d.uuid for d in self.inventory.devices]:
            self._pools.forget()
        self.inventory = inventory
        self._clients = clients
        self.usage = join(self.attribution, inventory, lambda pid: self.mps.owns(pid), clients)
        self.processes = {}
        for usage in self.usage.values():
            for environment, seen in usage.own.items():
                self.processes.setdefault(environment, []).extend(seen)
        for device in inventory.devices:
            self._fit(device)
        self._miss()
        for uuid in self.usage.keys() | self._told.keys():
            self._compare(uuid, self._told.get(uuid), self.usage.get(uuid))
        self.contention.take(self.clock() - (time.monotonic() - began))
        self._measure(began, between=between)

    def _measure(self, began: float, *, between: bool) -> None:
        ago = time.monotonic() - began
        if between and began - self._measured < CLOSE:
            self.meters.read_at = self.stamp(self.clock() - ago)
            return
        self._measured = began
        grants = (grant for held in self.books.grants.values() for grant in held.values())
        steady, clock = self.steady() - ago, self.clock() - ago
        self.meters.take(self.usage, grants, steady=steady, clock=clock)
        if self.history is not None:
            self.history.take(self.usage, steady=steady, clock=clock)

    def usable(self, device: DeviceReading) -> int | None:
        """Return what of a device can be granted, in bytes."""
        if device.memory_total is None:
            return None
        reserved = device.memory_reserved or 0
        return max(0, device.memory_total - reserved - self.policy.memory_headroom)

    def _fit(self, device: DeviceReading) -> None:
        usable = self.usable(device) or 0
        capacity = usable * self.policy.memory_overcommit // WHOLE
        slot = self.books.slots.get(device.uuid)
        row = DeviceRow(
            uuid=device.uuid,
            memory_capacity=capacity,
            compute_capacity=self.policy.compute_overcommit,
        )
        if self._fitted.get(device.uuid) != row:
            with self.books.change() as change:
                change.put_device(row)
            self._fitted[device.uuid] = row
        if slot is None:
            slot = Slot(uuid=device.uuid, capacity=capacity)
            slot.closed = self.upkeep.words(device.uuid)
            self.books.add_slot(slot)
        usage = self.usage[device.uuid]
        slot.index, slot.name, slot.kind = device.index, device.name, device.kind
        slot.capacity = capacity
        self._set_health(slot, device.health)
        slot.graphics = usage.graphics
        slot.servers = usage.servers
        self._set_users(slot, usage.users)
        seen = (usage.external or 0) + (usage.unattributed or 0) + usage.servers
        slot.external, slot.excess = seen, 0
        self._count_excess(slot, usage)

    def _count_excess(self, slot: Slot, usage: DeviceUsage) -> None:
        """What environments use beyond what is counted for them is not free either."""
        excess = sum(self._over(usage, environment) for environment in usage.own)
        slot.external += excess - slot.excess
        slot.excess = excess

    def _over(self, usage: DeviceUsage, environment: str) -> int:
        grant = self.books.grants.get(environment, {}).get(usage.reading.uuid)
        counted = 0 if grant is None else grant.counted_memory
        return max(0, usage.used_by(environment) - counted)

    def _miss(self) -> None:
        """Keep a device that is no longer listed, lost, for as long as somebody holds it."""
        for uuid in self.books.slots.keys() - self.usage.keys():
            slot = self.books.slots[uuid]
            if self.books.on_device.get(uuid):
                # After a start without a working driver nothing is known; later it is lost.
                self._set_health(slot, "unknown" if self.inventory.trouble else "lost")
            elif not self.inventory.trouble:
                del self.books.slots[uuid]
                self.books.changed_devices.add(uuid)

    def _set_users(self, slot: Slot, users: frozenset[str]) -> None:
        if slot.users != users:
            slot.users = users
            self.books.touch_device(slot.uuid)

    def _set_health(self, slot: Slot, health: Health) -> None:
        if slot.health == health:
            return
        slot.health = health
        self.books.touch_device(slot.uuid)

    def _compare(self, uuid: str, old: DeviceUsage | None, new: DeviceUsage | None) -> None:
        """Note a device of which there is something to tell since it was told last."""
        if old == (None if new is None else steadied(old, new)):
            return
        if new is None:
            del self._told[uuid]
        else:
            self._told[uuid] = new
        self.books.changed_devices.add(uuid)
        before = {} if old is None else old.own
        after = {} if new is None else new.own
        for environment in before.keys() | after.keys():
            if before.get(environment) != after.get(environment):
                self.books.changed_environments.add(environment)
