"""Kernels, their server and their devices as they are, whatever the broker believes of them.

What processes see and use is kept here. Against it, and against the ledger, the broker is checked.
"""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from genv_jupyter.broker.books import Books
from genv_jupyter.broker.rests import entitled
from genv_jupyter.devices.simulated import SimulatedDevice
from genv_jupyter.devices.source import ProcessReading
from genv_jupyter.errors import UnknownProcess
from genv_jupyter.isolation.environ import VISIBLE, revision_of
from genv_jupyter.ledger.rows import GrantRow
from genv_jupyter.model import (
    Applied,
    Cuda,
    Environment,
    EnvironmentPatch,
    KernelReport,
    Request,
)
from genv_jupyter.policy import Policy
from tests.unit.brokers import GIB, Bench, read_back
from tests.unit.ledgers import counters, sums

Environ = Mapping[str, str | None]
POLICY = Policy(compute_overcommit=12_000, memory_headroom=GIB)


@dataclass(eq=False)
class Kernel:
    """A kernel as it is: what its process sees, and where CUDA lives in it."""

    id: str
    process: subprocess.Popen[bytes]
    sees: set[str]
    revision: int
    launch: int
    cuda: set[str] | None = None
    believed: set[str] = field(default_factory=set)
    """Devices that the broker took back after quiet seconds: no more than watched from then on."""

    @property
    def state(self) -> Cuda:
        return "not_initialized" if self.cuda is None else "initialized"


@dataclass(eq=False)
class Word:
    """A report that was made in a kernel, by its server or (``PATCH``) by the process itself."""

    kernel: str
    report: KernelReport | EnvironmentPatch


class World:
    """A server, its kernels, and their devices."""

    def __init__(self) -> None:
        self.directory = tempfile.TemporaryDirectory()
        self.numbers = 0
        path = Path(self.directory.name, "ledger.sqlite")
        self.bench = Bench(path, "2x24GiB", POLICY, server=self.new_id(0))
        self.lists = True  # whether the driver lists processes: not inside a container
        self.uses: dict[str, list[ProcessReading]] = {}
        self.kernels: list[Kernel] = []
        self.handovers: list[tuple[Kernel, Kernel]] = []
        self.family: list[subprocess.Popen[bytes]] = []
        self.words: list[Word] = []  # all that was ever told, and what has not come yet
        self.queue: list[tuple[Kernel, Environ]] = []  # variables on their way into a kernel
        self.launches = 0

    def close(self) -> None:
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

    # -- kernels ----------------------------------------------------------------------------

    def launch(self, name: str, **fields: object) -> Kernel:
        self.launches += 1
        launch = self.launches
        environ = self.bench.tell(name, phase="starting", launch=launch, **fields).environ
        process = self.bench.process()
        seen = read_back(environ)
        kernel = Kernel(name, process, visible(environ), revision_of(environ) or 0, launch)
        report = KernelReport(phase="running", pid=process.pid, launch=launch, **seen)
        self.say(Word(name, report))
        return kernel

    def restart(self, kernel: Kernel, told: bool = True) -> None:
        held = self.granted(kernel)
        if told:
            self.bench.tell(kernel.id, phase="restarting")
        self.die(kernel)
        if not told:
            self.bench.tick()
        again = self.launch(kernel.id)
        kernel.process, kernel.sees, kernel.cuda = again.process, again.sees, None
        kernel.revision, kernel.launch, kernel.believed = again.revision, again.launch, set()
        assert kernel.sees == held or self.heir_of(kernel), "a restart keeps its environment"

    def heir_of(self, kernel: Kernel) -> bool:
        return any(new is kernel for _, new in self.handovers)

    def in_handover(self, kernel: Kernel) -> bool:
        return any(kernel in pair for pair in self.handovers)

    def leaves(self, kernel: Kernel) -> bool:
        """Say whether another kernel has its notebook: it is shut down and asks for nothing."""
        return any(kernel is old for old, _ in self.handovers)

    def die(self, kernel: Kernel) -> None:
        self.bench.end(kernel.process)
        self.queue = [(other, environ) for other, environ in self.queue if other is not kernel]
        self.use_none(kernel.process.pid)
        kernel.cuda = None

    def forget(self, kernel: Kernel) -> None:
        self.kernels.remove(kernel)
        self.handovers = [pair for pair in self.handovers if kernel not in pair]

    # -- what they ask for, and what is done about it ------------------------------------------

    def ask(self, kernel: Kernel, request: Request, caller: str, restart: bool) -> Environment:
        return self.bench.broker.attach(
            self.bench.me,
            kernel.id,
            request,
            cuda="unknown" if caller == "stranger" else kernel.state,
            restart=restart,
            peer_pid=kernel.process.pid if caller == "process" else None,
        )

    def apply(
        self, kernel: Kernel, environ: Environ | None, *, by: str = "server", late: bool = False
    ) -> None:
        """Put variables into a kernel as ``live.apply_environ`` does; its word may be late."""
        assert environ is not None
        revision = revision_of(environ)
        assert revision is not None
        applied: Applied = "live"
        if revision < kernel.revision:
            revision = kernel.revision
        elif kernel.cuda is not None and kernel.sees != visible(environ):
            applied = "at_restart"
        else:
            kernel.sees, kernel.revision = visible(environ), revision
        word: dict[str, Any] = {
            "applied": applied,
            "cuda": kernel.state,
            "revision": revision,
            "visible": ",".join(sorted(kernel.sees)),
        }
        report = (
            EnvironmentPatch(**word)
            if by == "process"
            else KernelReport(launch=kernel.launch, **word)
        )
        self.say(Word(kernel.id, report), late=late)

    def say(self, word: Word, *, late: bool = False) -> None:
        """Tell the broker, now or some time; in any case it may hear it again."""
        self.words.append(word)
        if not late:
            self.hear(word)

    def hear(self, word: Word) -> None:
        """Let a report come, whenever it was made: none is wrong for being late."""
        bench = self.bench
        if word.kernel not in bench.broker.books.environments:
            return
        with contextlib.suppress(UnknownProcess):  # of a process that has ended since
            if isinstance(word.report, EnvironmentPatch):
                bench.broker.patch(bench.me, word.kernel, word.report)
            else:
                bench.broker.put_kernel(bench.me, bench.server, word.kernel, word.report)

    def move_to_a_new_server(self, order: int, reservation: str | None) -> None:
        """Another server adopts all kernels; what it was told of is reserved for it."""
        bench = self.bench
        bench.end(bench.server_process)
        bench.tick()
        bench.server, bench.server_process = self.new_id(order), bench.process()
        bench.register(reservation=reservation)
        for kernel in self.kernels:
            self.bench.tell(kernel.id, kernel_state="idle")

    def crash(self) -> None:
        before, waiting = self.everything(), dict(self.bench.broker.books.tickets)
        kept = {row for row, grant in before.items() if self.is_reserved(grant)}
        self.bench.reopen()
        assert self.bench.broker.books.tickets == waiting, "nobody loses their place"
        answered = {row for row, g in before.items() if g.state != "reserved"} - kept
        there = {row for row, g in self.everything().items() if not self.is_reserved(g)}
        assert answered == there, "what was answered is there"
        for kernel in self.kernels:  # the server tells all, and applies what is missing
            environment = self.bench.tell(kernel.id, kernel_state="idle")
            if environment.applied == "pending":
                self.apply(kernel, environment.environ)

    # -- use of devices -----------------------------------------------------------------------

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

    # -- what the broker believes -----------------------------------------------------------

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

    def is_reserved(self, grant: GrantRow) -> bool:
        """Say whether a grant is what is left of a server's reservation."""
        return self.bench.broker.books.environments[grant.environment].kind == "server"

    # -- what must hold ---------------------------------------------------------------------

    def check_devices(self) -> None:
        """Nothing is given twice, and no reservation is left."""
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

    def check_reserved(self) -> None:
        """What a server has reserved is what its kernels hold, and what is left of it."""
        books = self.bench.broker.books
        for row in books.environments.values():
            if row.kind != "server":
                assert row.entitled is None
                continue
            parts = entitled(row)
            left = books.grants.get(row.id, {})
            assert left.keys() <= parts.keys()
            for device, part in parts.items():
                drawn = [
                    grant
                    for grant in books.on_device[device].values()
                    if books.environments[grant.environment].reservation == row.id
                ]
                rest = left.get(device)
                memory = sum(grant.counted_memory for grant in drawn)
                whole = any(grant.counted_exclusive for grant in drawn)
                if rest is None:
                    assert whole or memory >= part.memory or memory >= books.slots[device].capacity
                elif not drawn:
                    assert rest.exclusive == part.exclusive
                    assert rest.memory == part.memory or part.exclusive
                else:
                    assert not rest.exclusive
                    assert rest.memory + memory == part.memory or part.exclusive
                if part.exclusive and books.slots[device].health != "lost":
                    strangers = {*books.on_device[device].values()} - {*drawn, rest}
                    assert not strangers, "a whole device is the server's alone"

    def check_ledger(self) -> None:
        """Memory is what a start would load, and the counters are the sums of the rows."""
        books = self.bench.broker.books
        state = books.ledger.load()
        assert counters(books.ledger) == sums(state)
        fresh = Books(mock.Mock(load=lambda: state))
        fresh.load()
        for name in (
            "servers",
            "environments",
            "grants",
            "tickets",
            "by_pid",
            "successors",
            "reserved",
        ):
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

    def check_counted(self) -> None:
        """What a living process sees, and where CUDA lives, is held: granted, or draining."""
        for kernel in self.kernels:
            lent = {
                g.device for old, new in self.handovers if new is kernel for g in self.rows(old)
            }
            held = {g.device for g in self.rows(kernel)} | kernel.believed | lent
            assert kernel.sees | (kernel.cuda or set()) <= held

    def check_really_free(self, kernel: Kernel, before: dict[int, GrantRow]) -> None:
        """What was just given is not in use by anybody else."""
        books = self.bench.broker.books
        for grant in self.rows(kernel):
            old = before.get(grant.id)
            if old is not None and old.counted_memory >= grant.counted_memory:
                continue
            [device] = [d for d in self.bench.source.devices if d.uuid == grant.device]
            needed = {kernel.id: grant.counted_memory}
            mine = books.environments[kernel.id].reservation
            for other in books.on_device[grant.device].values():
                if other is not grant and other.environment != mine:  # its own is in nobody's use
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
