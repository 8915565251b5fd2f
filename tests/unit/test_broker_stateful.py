"""The broker under everything that happens: real processes, devices that come and go, crashes.

What processes see and use is kept here as it is, whatever the broker believes. After every step
the books must be the ledger, nothing may be given twice, and what is used must be counted.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from genv_jupyter.broker import attach, failpoints
from genv_jupyter.broker.books import Books
from genv_jupyter.devices.simulated import SimulatedDevice, simulated_uuid
from genv_jupyter.devices.source import ProcessReading
from genv_jupyter.errors import CudaInitialized, GpuError, NoCapacity, UnknownDevice
from genv_jupyter.isolation.environ import MARKER, VISIBLE
from genv_jupyter.ledger.rows import GrantRow
from genv_jupyter.model import Cuda, Environment, EnvironmentPatch, Request
from genv_jupyter.policy import Policy
from tests.unit.brokers import GIB, Bench
from tests.unit.ledgers import counters, sums

MOST_KERNELS, MOST_DEVICES = 5, 4
POLICY = Policy(compute_overcommit=12_000, memory_headroom=GIB)
OUTSIDER = 1  # a pid that is no child of ours

who = st.integers(0, MOST_KERNELS - 1)
which = st.integers(0, MOST_DEVICES - 1)
some_memory = st.integers(1, 12).map(lambda gib: gib * GIB)
first = st.sampled_from(("0", "1", "2")).map(lambda index: (index,))
requests = st.one_of(
    st.builds(Request, gpus=st.integers(1, 2)),
    st.builds(Request, fraction=st.sampled_from((0.25, 0.5, 0.75))),
    st.builds(Request, memory=some_memory),
    st.builds(Request, gpus=st.just(2), memory=some_memory),
    st.builds(Request, devices=first),
    st.builds(Request, devices=first, memory=some_memory),
)
callers = st.sampled_from(("process", "server", "stranger"))
places = st.sampled_from(("inside_reserve", "after_reserve", "inside_confirm", "after_confirm"))


class Crash(BaseException):
    """The broker ends here."""


@dataclass(eq=False)
class Kernel:
    """A kernel as it is: what its process sees, and where CUDA lives in it."""

    id: str
    process: subprocess.Popen[bytes]
    sees: set[str]
    cuda: set[str] | None = None
    believed: set[str] = field(default_factory=set)
    """Devices that the broker took back after quiet seconds: no more than watched from then on."""

    @property
    def state(self) -> Cuda:
        return "not_initialized" if self.cuda is None else "initialized"


class Life(RuleBasedStateMachine):
    """A server, its kernels, and their devices."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.numbers = 0
        path = Path(self.directory.name, "ledger.sqlite")
        self.bench = Bench(path, "2x24GiB", POLICY, server=self.new_id(0))
        self.lists = True  # whether the driver lists processes: not inside a container
        self.uses: dict[str, list[ProcessReading]] = {}
        self.kernels: list[Kernel] = []
        self.handovers: list[tuple[Kernel, Kernel]] = []
        self.family: list[subprocess.Popen[bytes]] = []

    def teardown(self) -> None:
        self.bench.close()
        self.directory.cleanup()

    def new_id(self, order: int) -> str:
        """Return an id that sorts before or after others, as chance has it, but repeatably."""
        self.numbers += 1
        return str(uuid.UUID(int=order << 64 | self.numbers))

    def kernel(self, number: int) -> Kernel | None:
        return self.kernels[number % len(self.kernels)] if self.kernels else None

    def device(self, number: int) -> SimulatedDevice:
        return self.bench.source.devices[number % len(self.bench.source.devices)]

    # -- kernels begin and end --------------------------------------------------------------

    @initialize(
        requests=st.lists(requests, min_size=2, max_size=3),
        orders=st.permutations((0, 1, 2)),
        cuda=st.booleans(),
        lists=st.sampled_from((True, True, False)),
    )
    def begin(self, requests: list[Request], orders: list[int], cuda: bool, lists: bool) -> None:
        self.lists = lists
        self.show()
        for number, request in enumerate(requests):
            self.kernel_started(orders[number])
            self.attach(number, request, "process", restart=False)
        if cuda:
            self.cuda_initialised(0, 1)

    @rule(order=st.integers(0, 3))
    def kernel_started(self, order: int) -> None:
        if len(self.kernels) < MOST_KERNELS:
            self.kernels.append(self.launch(self.new_id(order)))

    def launch(self, name: str, **fields: object) -> Kernel:
        environ = self.bench.tell(name, phase="starting", **fields).environ
        process = self.bench.process()
        self.bench.tell(name, phase="running", pid=process.pid)
        return Kernel(name, process, visible(environ))

    @rule(number=who, told=st.booleans())
    def kernel_restarted(self, number: int, told: bool) -> None:
        """By hand (the server says so before), or by itself after the process was killed."""
        if kernel := self.kernel(number):
            self.restart(kernel, told)

    def restart(self, kernel: Kernel, told: bool = True) -> None:
        held = self.granted(kernel)
        if told:
            self.bench.tell(kernel.id, phase="restarting")
        self.die(kernel)
        if not told:
            self.bench.tick()
        again = self.launch(kernel.id)
        kernel.process, kernel.sees, kernel.cuda = again.process, again.sees, None
        kernel.believed = set()
        assert kernel.sees == held or self.heir_of(kernel), "a restart keeps its environment"

    def heir_of(self, kernel: Kernel) -> bool:
        return any(new is kernel for _, new in self.handovers)

    @rule(number=who, before=st.booleans())
    def kernel_shut_down(self, number: int, before: bool) -> None:
        """The server says so after the process has ended, or while it still lives."""
        if kernel := self.kernel(number):
            if before:
                self.bench.broker.end_kernel(self.bench.me, self.bench.server, kernel.id)
                self.check_counted()
            self.die(kernel)
            self.bench.broker.end_kernel(self.bench.me, self.bench.server, kernel.id)
            self.bench.tick()
            self.forget(kernel)
            assert kernel.id not in self.bench.broker.books.environments

    @rule(number=who)
    def kernel_killed_and_never_restarted(self, number: int) -> None:
        if kernel := self.kernel(number):
            before = self.granted(kernel)
            self.die(kernel)
            self.bench.tick()
            assert self.granted(kernel) == before, "kept for a restart"
            self.bench.tick(POLICY.start_deadline + 1)
            self.bench.tick()
            self.forget(kernel)
            assert kernel.id not in self.bench.broker.books.environments

    @rule(order=st.integers(0, 3))
    def server_died_with_its_kernels(self, order: int) -> None:
        self.bench.end(self.bench.server_process)
        for kernel in self.kernels:
            self.die(kernel)
        for _ in range(3):  # an heir is looked at after the kernel whose grants it was to have
            self.bench.tick()
        self.kernels, self.handovers = [], []
        assert not self.bench.broker.books.environments
        self.bench.server = self.new_id(order)
        self.bench.server_process = self.bench.process()
        self.bench.register()

    @rule(number=who, order=st.integers(0, 3))
    def notebook_changes_its_kernel(self, number: int, order: int) -> None:
        old = self.kernel(number)
        if old and len(self.kernels) < MOST_KERNELS and not self.in_handover(old):
            new = self.launch(self.new_id(order), previous=old.id)
            assert new.sees == self.granted(old), "it starts with what it will take over"
            self.kernels.append(new)
            self.handovers.append((old, new))

    @rule(number=who, succeeded=st.booleans())
    def handover_ended(self, number: int, succeeded: bool) -> None:
        if not self.handovers:
            return
        old, new = self.handovers[number % len(self.handovers)]
        kept, own = self.granted(old), self.rows(new)
        gone, stays = (old, new) if succeeded else (new, old)
        self.die(gone)
        self.bench.broker.end_kernel(self.bench.me, self.bench.server, gone.id)
        self.forget(gone)
        if not succeeded or not own:
            assert self.granted(stays) == kept

    def in_handover(self, kernel: Kernel) -> bool:
        return any(kernel in pair for pair in self.handovers)

    def leaves(self, kernel: Kernel) -> bool:
        """Say whether another kernel has its notebook: it is shut down and asks for nothing."""
        return any(kernel is old for old, _ in self.handovers)

    def die(self, kernel: Kernel) -> None:
        self.bench.end(kernel.process)
        self.use_none(kernel.process.pid)
        kernel.cuda = None

    def forget(self, kernel: Kernel) -> None:
        self.kernels.remove(kernel)
        self.handovers = [pair for pair in self.handovers if kernel not in pair]

    # -- attach and detach ------------------------------------------------------------------

    @rule(number=who, request=requests, restart=st.booleans())
    def attached_by_magic(self, number: int, request: Request, restart: bool) -> None:
        self.attach(number, request, "process", restart)

    @rule(number=who, request=requests, served=st.booleans())
    def attached_by_sidebar(self, number: int, request: Request, served: bool) -> None:
        self.attach(number, request, "server", restart=False)
        if served:
            self.server_does_what_is_wanted()

    @rule(number=who, request=requests, caller=callers, restart=st.booleans())
    def attach(self, number: int, request: Request, caller: str, restart: bool) -> None:
        kernel = self.kernel(number)
        if kernel is None or self.leaves(kernel):
            return
        before = self.everything()
        try:
            after = self.ask(kernel, request, caller, restart)
        except NoCapacity as refusal:
            assert refusal.details["reasons"]
            assert self.everything() == before
        except CudaInitialized:
            assert kernel.cuda is not None and not restart
            assert self.everything() == before
        except GpuError as error:
            assert 400 <= error.status < 500
            assert self.everything() == before
        else:
            self.check_really_free(kernel, before)
            if caller == "process" and kernel.cuda is None and not restart:
                kernel.sees = visible(after.environ)
                body = EnvironmentPatch(applied="live", cuda="not_initialized")
                self.bench.broker.patch(self.bench.me, kernel.id, body)
            assert self.ask(kernel, request, caller, restart).grants == self.now(kernel).grants

    def ask(self, kernel: Kernel, request: Request, caller: str, restart: bool) -> Environment:
        return self.bench.broker.attach(
            self.bench.me,
            kernel.id,
            request,
            cuda="unknown" if caller == "stranger" else kernel.state,
            restart=restart,
            peer_pid=kernel.process.pid if caller == "process" else None,
        )

    @rule(number=who, where=st.sampled_from((None, None, None, 0, 1, 2)), caller=callers)
    def detached(self, number: int, where: int | None, caller: str) -> None:
        holders = [k for k in self.kernels if self.rows(k) and not self.leaves(k)]
        if not holders:
            return
        kernel = holders[number % len(holders)]
        device = None if where is None else self.device(where).uuid
        if caller != "stranger" and kernel.cuda is None:  # it lets go first
            kernel.sees -= {device} if device else kernel.sees
        try:
            after = self.bench.broker.detach(
                self.bench.me,
                kernel.id,
                device=device,
                cuda="unknown" if caller == "stranger" else kernel.state,
                peer_pid=kernel.process.pid if caller == "process" else None,
            )
        except UnknownDevice:
            assert device not in {g.device for g in self.rows(kernel)}
        else:
            left = [g for g in self.rows(kernel) if device in (None, g.device)]
            assert {g.state for g in left} <= {"draining"}
            assert after.id == kernel.id

    @rule(caller=callers)
    def released_and_attached_again(self, caller: str) -> None:
        for number, kernel in enumerate(self.kernels):
            if before := self.now(kernel).request:
                self.detached(number, None, caller)
                self.attach(number, before, caller, restart=False)

    @rule()
    def server_does_what_is_wanted(self) -> None:
        for want in self.bench.broker.take_wants(self.bench.server):
            for kernel in [k for k in self.kernels if k.id == want.kernel]:
                if want.action == "restart":
                    self.restart(kernel)
                else:
                    self.apply(kernel, want.environ)

    def apply(self, kernel: Kernel, environ: Mapping[str, str | None] | None) -> None:
        if kernel.cuda is None:
            kernel.sees = visible(environ)
            self.bench.tell(kernel.id, applied="live", cuda="not_initialized")
        else:
            same = kernel.sees == visible(environ)
            applied = "live" if same else "at_restart"
            self.bench.tell(kernel.id, applied=applied, cuda="initialized")

    @rule()
    def quiet_seconds_passed(self) -> None:
        """Nobody confirmed: the broker believes it, and a process may see more than it has."""
        self.bench.tick()
        draining = {(k.id, g.device) for k in self.kernels for g in self.rows(k)}
        for grant in self.bench.broker.books.quiet_since:
            self.bench.broker.books.quiet_since[grant] -= POLICY.confirm_seconds + 1
        self.bench.tick()
        for kernel in self.kernels:
            left = {g.device for g in self.rows(kernel)}
            kernel.believed |= {d for name, d in draining if name == kernel.id and d not in left}

    # -- devices are used, lost, found ------------------------------------------------------

    @rule(number=who, gib=st.sampled_from((1, 4, 20)))
    def cuda_initialised(self, number: int, gib: int) -> None:
        ready = [kernel for kernel in self.kernels if kernel.cuda is None and kernel.sees]
        if ready:
            kernel = ready[number % len(ready)]
            kernel.cuda = set(kernel.sees)
            for name in kernel.cuda:
                self.use(name, ProcessReading(kernel.process.pid, gib * GIB, "compute"))
            self.bench.tick()

    @rule(number=who, where=which)
    def family_appeared(self, number: int, where: int) -> None:
        """A process that the kernel started, and that will outlive it."""
        device = self.device(where)
        ready = [kernel for kernel in self.kernels if device.uuid in kernel.sees]
        if ready and self.lists:  # where nobody lists it, nobody can know of it
            kernel = ready[number % len(ready)]
            environ = {**os.environ, MARKER: kernel.id}
            child = subprocess.Popen(["sleep", "600"], env=environ)
            self.bench.children.append(child)
            self.family.append(child)
            self.use(device.uuid, ProcessReading(child.pid, 2 * GIB, "compute"))
            self.bench.tick()

    @rule(number=who)
    def family_ended(self, number: int) -> None:
        if self.family:
            child = self.family.pop(number % len(self.family))
            self.bench.end(child)
            self.use_none(child.pid)
            self.bench.tick()

    @rule(
        where=which,
        kind=st.sampled_from(("compute", "graphics")),
        mib=st.sampled_from((0, 30, 300, 10_000)),
    )
    def outsiders_came_or_left(self, where: int, kind: str, mib: int) -> None:
        name = self.device(where).uuid
        self.uses[name] = [use for use in self.uses.get(name, ()) if use.pid != OUTSIDER]
        if mib:
            self.use(name, ProcessReading(OUTSIDER, mib * 2**20, kind))  # type: ignore[arg-type]
        self.show()
        self.bench.tick()

    def use(self, device: str, use: ProcessReading) -> None:
        self.uses.setdefault(device, []).append(use)
        self.show()

    def use_none(self, pid: int) -> None:
        self.uses = {
            device: [use for use in uses if use.pid != pid] for device, uses in self.uses.items()
        }
        self.show()

    def show(self) -> None:
        """Let the driver tell what is used, as far as it does."""
        for device in self.bench.source.devices:
            uses = list(self.uses.get(device.uuid, ()))
            device.processes = uses if self.lists else None
            device.external_memory = 0 if self.lists else sum(use.memory or 0 for use in uses)

    @rule(where=which, lost=st.booleans())
    def device_lost_or_found(self, where: int, lost: bool) -> None:
        self.device(where).health = "lost" if lost else "ok"
        self.bench.tick()

    @rule(gib=st.sampled_from((8, 24)))
    def device_added(self, gib: int) -> None:
        number = len(self.bench.source.devices)
        if number < MOST_DEVICES:
            device = SimulatedDevice(simulated_uuid(number), number, gib * GIB)
            self.bench.source.devices.append(device)
            self.show()
            self.bench.tick()

    @rule(crashed=st.booleans())
    def driver_failed_and_came_back(self, crashed: bool) -> None:
        devices, self.bench.source.devices = self.bench.source.devices, []
        self.bench.source.trouble = "The driver does not answer."
        self.bench.tick()
        if crashed:
            self.bench.reopen()
        self.check_ledger()
        self.bench.source.devices, self.bench.source.trouble = devices, None
        self.bench.tick()

    @rule(seconds=st.sampled_from((0, 1, 59)), crashed=st.booleans())
    def time_passed(self, seconds: int, crashed: bool) -> None:
        self.bench.tick(seconds)
        if crashed:
            self.crash()

    # -- the broker crashes -----------------------------------------------------------------

    def crash(self) -> None:
        before = self.everything()
        self.bench.reopen()
        assert {row: g for row, g in before.items() if g.state != "reserved"}.keys() == (
            self.everything().keys()
        ), "what was answered is there"
        for kernel in self.kernels:  # the server tells all, and applies what is missing
            environment = self.bench.tell(kernel.id, kernel_state="idle")
            if environment.applied == "pending":
                self.apply(kernel, environment.environ)

    @rule(number=who, request=requests, where=places)
    def broker_crashed_in_an_attach(self, number: int, request: Request, where: str) -> None:
        kernel = self.kernel(number)
        if kernel is None or self.leaves(kernel):
            return

        def reach(name: str) -> None:
            if name == where:
                raise Crash

        with (
            mock.patch.object(failpoints, "reach", reach),
            mock.patch.object(attach, "_undo", lambda *_: None),  # the dead undo nothing
        ):
            try:
                self.ask(kernel, request, "process", restart=False)
            except Crash:
                self.crash()
            except GpuError:
                return
        if kernel.cuda is None:
            self.apply(kernel, self.now(kernel).environ)

    # -- what must hold after every step ----------------------------------------------------

    def now(self, kernel: Kernel) -> Environment:
        return self.bench.broker.environment(self.bench.me, kernel.id)

    def rows(self, kernel: Kernel) -> list[GrantRow]:
        return list(self.bench.broker.books.grants_of(kernel.id))

    def granted(self, kernel: Kernel) -> set[str]:
        return {grant.device for grant in self.rows(kernel) if grant.state == "granted"}

    def everything(self) -> dict[int, GrantRow]:
        return {
            row.id: row
            for rows in self.bench.broker.books.on_device.values()
            for row in rows.values()
        }

    @invariant()
    def nothing_is_given_twice(self) -> None:
        books = self.bench.broker.books
        for name, rows in books.on_device.items():
            grants = list(rows.values())
            if not grants:
                continue
            slot = books.slots[name]
            assert sum(g.counted_memory for g in grants) <= slot.capacity
            assert sum(g.counted_compute for g in grants) <= POLICY.compute_overcommit
            assert len(grants) == 1 or not any(g.counted_exclusive for g in grants)
            for grant in grants:
                assert grant.counted_memory >= grant.memory > 0
                assert grant.state in ("granted", "draining"), "no reservation is left"

    @invariant()
    def check_ledger(self) -> None:
        """Memory is what a start would load, and the counters are the sums of the rows."""
        books = self.bench.broker.books
        state = books.ledger.load()
        assert counters(books.ledger) == sums(state)
        fresh = Books(mock.Mock(load=lambda: state))
        fresh.load()
        for name in ("servers", "environments", "grants", "by_pid", "successors"):
            assert getattr(books, name) == getattr(fresh, name), name
        for name, slot in fresh.slots.items():
            loaded = (slot.granted, slot.exclusive, slot.shared, slot.compute, slot.owners)
            kept = books.slots.get(name)
            if kept is None:
                assert loaded == (0, 0, 0, {}, {})
            else:
                told = (kept.granted, kept.exclusive, kept.shared, kept.compute, kept.owners)
                assert loaded == told
                assert books.on_device[name] == fresh.on_device[name]

    @invariant()
    def check_counted(self) -> None:
        """Where CUDA lives the device is held: granted, or draining."""
        for kernel in self.kernels:
            lent = {
                g.device for old, new in self.handovers if new is kernel for g in self.rows(old)
            }
            held = {g.device for g in self.rows(kernel)} | kernel.believed | lent
            assert (kernel.cuda or set()) <= held

    def check_really_free(self, kernel: Kernel, before: dict[int, GrantRow]) -> None:
        """What was just given is not in use by anybody else."""
        books = self.bench.broker.books
        for grant in self.rows(kernel):
            old = before.get(grant.id)
            if old is not None and old.counted_memory >= grant.counted_memory:
                continue
            [device] = [d for d in self.bench.source.devices if d.uuid == grant.device]
            needed = {kernel.id: grant.counted_memory}
            for other in books.on_device[grant.device].values():
                if other is not grant:
                    needed[other.environment] = other.counted_memory
            for process in self.uses.get(grant.device, ()):
                owner = self.owner_of(process.pid)
                if owner != kernel.id:
                    rest = needed.get(owner, 0)
                    needed[owner] = max(rest, self.used(grant.device, owner))
            assert sum(needed.values()) <= books.slots[grant.device].capacity
            assert device.health == "ok"

    def owner_of(self, pid: int) -> str:
        for kernel in self.kernels:
            if kernel.process.pid == pid:
                return kernel.id
        return self.bench.broker.core.attribution.environment_of(pid) or "nobody"

    def used(self, device: str, owner: str) -> int:
        return sum(
            u.memory or 0 for u in self.uses.get(device, ()) if self.owner_of(u.pid) == owner
        )


def visible(environ: Mapping[str, str | None] | None) -> set[str]:
    """Return the devices that a process with these variables sees; those of a hidden one: none."""
    assert environ is not None
    return set((environ[VISIBLE] or "").split(",")) - {""}


def test_broker_keeps_its_promises_whatever_happens() -> None:
    run_state_machine_as_test(
        Life,
        settings=settings(
            max_examples=80,
            stateful_step_count=30,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        ),
    )
