"""From what the broker knows to what the rules judge. Used with the broker's lock held."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime

from genv_jupyter.broker.core import Core
from genv_jupyter.broker.rules import cap, foreign, idle, kernels, lease, outside, quota
from genv_jupyter.broker.rules.breaches import Breach, Key, Target
from genv_jupyter.broker.rules.protection import of_driver, spared
from genv_jupyter.broker.rules.quota import Holding, Quota
from genv_jupyter.broker.usage import DeviceUsage, Outsider
from genv_jupyter.broker.usage_view import used_now
from genv_jupyter.devices.source import ProcessKind
from genv_jupyter.ledger.rows import EnvironmentRow, GrantRow
from genv_jupyter.units import WHOLE

QuotaOf = Callable[[str], Quota | None]


class Scene:
    """Judges everything once.

    Parameters
    ----------
    me
        The uid whose processes a user's broker may act upon; a host's acts for each owner.
    quota_of
        Returns what an owner may hold; ``None`` where there is no quota.
    runs_cuda
        Says whether a process has CUDA: in a container the driver may mean another by its number.
    """

    def __init__(
        self, core: Core, me: int, quota_of: QuotaOf, runs_cuda: Callable[[int], bool]
    ) -> None:
        self.core = core
        self.me = me
        self.quota_of = quota_of
        self.runs_cuda = runs_cuda
        self._proved: set[tuple[int, int | None]] = set()

    def breaches(self, *, slack: int, idle_after: float) -> Iterator[Breach]:
        """Yield what is broken at this moment."""
        core = self.core
        outsiders = {(it.pid, it.start) for usage in core.usage.values() for it in usage.outside}
        self._proved &= outsiders
        for uuid, usage in core.usage.items():
            if not self._doubtful(uuid):
                yield from self._on_device(uuid, usage, slack)
        now = core.steady()
        core.idleness.observe(self._resting(), now)
        for environment in core.books.grants:
            yield from self._about(core.books.environments[environment], idle_after)
        yield from self._quotas()

    def stands(
        self, breach: Breach, target: Target | None, *, slack: int, idle_after: float
    ) -> bool:
        """Say whether a breach is still one, and a process still to go.

        Verbs may have come since it was judged: *keep*, an extension, a larger grant.
        """
        key = breach.key
        found: Iterable[Breach] = ()
        row = self.core.books.environments.get(key.environment)
        usage = self.core.usage.get(key.device)
        if usage is not None and not self._doubtful(key.device):
            if key.rule == "outside":
                found = self._strangers(key.device, self._label(key.device), usage)
            else:
                found = self._of(key.environment, key.device, usage, slack)
        elif key.rule == "quota":
            found = self._quotas()
        elif row is not None:
            found = self._about(row, idle_after)
        now = next((it for it in found if it.key == key), None)
        if now is None or target is None:
            return now is not None
        return any(it.identity == target.identity for it in now.targets)

    def unsure(self, key: Key) -> bool:
        """Say whether a device does not tell now what a breach on it would be judged by.

        Not of what cannot be one any more: the environment has ended, its grant was given back,
        or the device has been taken out of the host.
        """
        if not self._doubtful(key.device):
            return False
        grants = self.core.books.grants.get(key.environment, {})
        if key.rule == "cap" and (
            key.device not in grants or grants[key.device].state != "granted"
        ):
            return False
        known = not key.environment or key.environment in self.core.books.environments
        return known and key.device in self.core.books.slots

    def _doubtful(self, uuid: str) -> bool:
        if not uuid:
            return False
        usage = self.core.usage.get(uuid)
        return usage is None or not usage.known or usage.reading.health != "ok"

    def served(self, environment: str) -> bool:
        """Say whether an environment has a server that can restart it or shut it down."""
        row = self.core.books.environments.get(environment)
        return row is not None and row.server in self.core.books.servers

    def uid_of(self, row: EnvironmentRow) -> int | None:
        """Return the uid whose processes may be acted upon in an environment: its owner's."""
        if self.core.kind == "user":
            return self.me
        realm, _, name = row.owner.partition(":")
        if realm == "local" and name.isdigit():
            return int(name)
        return None if row.pid is None else self.core.attribution.uid_of(row.pid, row.start)

    # -- on devices -----------------------------------------------------------------------------

    def _on_device(self, uuid: str, usage: DeviceUsage, slack: int) -> Iterator[Breach]:
        for environment in usage.own:
            yield from self._of(environment, uuid, usage, slack)
        yield from self._strangers(uuid, self._label(uuid), usage)

    def _of(self, environment: str, uuid: str, usage: DeviceUsage, slack: int) -> Iterator[Breach]:
        """Judge what one environment uses of a device."""
        books, label = self.core.books, self._label(uuid)
        row = books.environments.get(environment)
        if row is None:
            return  # it has ended since that reading
        there = self._own(usage, row)
        grant = books.grants.get(environment, {}).get(uuid)
        allowed = grant is not None or self._may_be(row, uuid)
        found = foreign.judge(environment, uuid, label, allowed, there)
        if found is not None:
            yield found
        if grant is not None and grant.state == "granted":
            # What the running process started with counts, and stands in others' way.
            most = max(grant.memory, grant.counted_memory)
            over = cap.judge(environment, uuid, label, most, slack, there)
            if over is not None:
                yield over

    def _strangers(self, uuid: str, label: str, usage: DeviceUsage) -> Iterator[Breach]:
        """Judge outsiders, those of each user by themselves."""
        by_owner: dict[str, list[Target]] = {}
        for it in usage.outside:
            me = it.uid if self.core.kind == "host" else self.me
            if it.uid is None or me is None:
                continue
            why = spared(
                uid=it.uid,
                start=it.start,
                kind=_kind(usage, it.pid),
                name=self._believed(it.pid, it.name),
                member=False,
                me=me,
            )
            if why is None and not self._has_cuda(it):
                why = "it has no CUDA"
            target = Target(pid=it.pid, start=it.start, memory=it.memory, name=it.name, spared=why)
            by_owner.setdefault(f"local:{it.uid}", []).append(target)
        for owner, targets in by_owner.items():
            found = outside.judge(owner, uuid, label, targets)
            if found is not None:
                yield found

    def _believed(self, pid: int, name: str | None) -> str | None:
        """Return the name of a process, unless it only calls itself one of the driver's."""
        return name if not of_driver(name) or self.core.powers.of_driver(pid) else None

    def _has_cuda(self, it: Outsider) -> bool:
        """Say whether a process has CUDA; once seen it is not looked for again."""
        who = it.pid, it.start
        if who not in self._proved and self.runs_cuda(it.pid):
            self._proved.add(who)
        return who in self._proved

    def _own(self, usage: DeviceUsage, row: EnvironmentRow) -> list[Target]:
        me = self.uid_of(row)
        return [
            Target(
                pid=it.pid,
                start=it.start,
                memory=it.memory,
                name=it.name,
                kernel=(it.pid, it.start) == (row.pid, row.start),
                spared=spared(
                    uid=self.core.attribution.uid_of(it.pid, it.start),
                    start=it.start,
                    kind=_kind(usage, it.pid),
                    name=self._believed(it.pid, it.name),
                    member=True,
                    me=me,
                ),
            )
            for it in usage.own.get(row.id, ())
        ]

    def _may_be(self, row: EnvironmentRow, uuid: str) -> bool:
        """Say whether an environment without a grant there may be on a device all the same."""
        books = self.core.books
        if row.unattached == "all" and not books.grants.get(row.id):
            return True
        near = (row.previous, books.successors.get(row.id))  # while one takes over from another
        return any(uuid in books.grants.get(other, {}) for other in near if other is not None)

    # -- of environments ------------------------------------------------------------------------

    def _about(self, row: EnvironmentRow, idle_after: float) -> Iterator[Breach]:
        """Judge what one environment holds."""
        now = self.core.steady()
        seconds = self.core.idleness.seconds(row.id, now)
        if seconds is not None:  # of the many that work nothing more has to be known
            labels = [self._label(grant.device) for grant in self._granted(row)]
            rested = idle.judge(row.id, labels, seconds, idle_after)
            if rested is not None:
                yield rested
        owed = kernels.owed(row) == "lease"
        if owed or row.expires is not None:
            over = lease.judge(row.id, row.expires, now, self._everywhere(row), owed)
            if over is not None:
                yield over

    def _resting(self) -> dict[str, datetime | None]:
        core, found = self.core, {}
        for environment in core.books.grants:
            row, pulse = core.books.environments[environment], core.books.pulse(environment)
            # While it is being restarted somebody is at work with it.
            here = row.kind == "kernel" and row.state not in ("reserved", "held")
            state = pulse.state if here and self.served(environment) else None
            if state == "idle" and idle.rests(
                state, [self._load(grant) for grant in self._granted(row)]
            ):
                found[environment] = pulse.idle_since
        return found

    def _load(self, grant: GrantRow) -> idle.Load:
        usage = self.core.usage.get(grant.device)
        if usage is None or self._doubtful(grant.device):
            return idle.Load(None, None)
        used = used_now(usage, grant.environment)
        present = True if usage.own.get(grant.environment) else None if used is None else False
        return idle.Load(usage.reading.utilization, present)

    def _granted(self, row: EnvironmentRow) -> list[GrantRow]:
        return [it for it in self.core.books.grants_of(row.id) if it.state == "granted"]

    def _everywhere(self, row: EnvironmentRow) -> list[Target]:
        """Return an environment's processes on all that it holds, each once."""
        found: dict[object, Target] = {}
        for grant in self.core.books.grants_of(row.id):
            usage = self.core.usage.get(grant.device)
            for it in () if usage is None else self._own(usage, row):
                found.setdefault(it.identity, it)
        return list(found.values())

    def _quotas(self) -> Iterator[Breach]:
        books = self.core.books
        held: dict[str, list[EnvironmentRow]] = {}
        for environment in books.grants:
            row = books.environments[environment]
            held.setdefault(row.owner, []).append(row)
            if kernels.owed(row) == "quota":
                yield quota.owed(row.id, self._everywhere(row))
        for owner, rows in sorted(held.items()):
            most = self.quota_of(owner)
            if most is not None:
                yield from quota.judge([self._holding(row) for row in rows], most)

    def _holding(self, row: EnvironmentRow) -> Holding:
        grants = self._granted(row)
        return Holding(
            environment=row.id,
            devices=sum(self._share(grant) for grant in grants),
            memory=sum(grant.memory for grant in grants),
            since=max((grant.since for grant in grants), default=row.created),
            processes=tuple(self._everywhere(row)),
        )

    def _share(self, grant: GrantRow) -> int:
        """Return what part of a device a grant is, in hundredths of a percent."""
        if grant.exclusive:
            return WHOLE
        capacity = self.core.books.slots[grant.device].capacity
        memory = grant.memory * WHOLE // capacity if capacity else 0
        return max(memory, grant.compute or 0)

    def _label(self, uuid: str) -> str:
        return self.core.books.slots[uuid].label


def _kind(usage: DeviceUsage, pid: int) -> ProcessKind:
    listed: Iterable[ProcessKind] = (
        it.kind for it in usage.reading.processes or () if it.pid == pid
    )
    return next(iter(listed), "compute")
