"""The broker under everything that happens: real processes, devices that come and go, crashes.

After every step the books must be the ledger, nothing may be given twice, and what is used must be
counted.
"""

from __future__ import annotations

import os
import subprocess
from unittest import mock

import msgspec
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from genv_jupyter.broker import attach, failpoints
from genv_jupyter.broker.housekeeping import AGAIN
from genv_jupyter.broker.release import unconfirmed
from genv_jupyter.devices.simulated import SimulatedDevice, simulated_uuid
from genv_jupyter.devices.source import ProcessReading
from genv_jupyter.errors import Conflict, CudaInitialized, GpuError, NoCapacity, UnknownDevice
from genv_jupyter.isolation.environ import MARKER
from genv_jupyter.model import Request
from genv_jupyter.reserving import NewReservation
from tests.unit.brokers import GIB
from tests.unit.stories import Story
from tests.unit.world import POLICY

MOST_KERNELS, MOST_DEVICES = 5, 4
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


class Life(Story):
    """What happens, in any order."""

    # -- what must hold after every step ----------------------------------------------------

    @invariant()
    def what_is_reserved_for_servers_is_kept(self) -> None:
        self.check_reserved()

    @invariant()
    def places_in_the_queue_are_in_order(self) -> None:
        tickets = self.bench.broker.books.tickets
        assert tickets.keys() <= self.bench.broker.books.environments.keys()
        assert len({ticket.number for ticket in tickets.values()}) == len(tickets)

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

    @rule(number=who, told=st.booleans())
    def kernel_restarted(self, number: int, told: bool) -> None:
        """By hand (the server says so before), or by itself after the process was killed."""
        if kernel := self.kernel(number):
            self.restart(kernel, told)

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
        left = self.bench.broker.books.environments.values()
        assert all(row.kind == "server" and row.state == "reserved" for row in left)
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

    # -- reservations for servers -----------------------------------------------------------

    @rule(request=requests, order=st.integers(0, 3), told=st.booleans())
    def server_started_anew_with_a_reservation(
        self, request: Request, order: int, told: bool
    ) -> None:
        """Kernels of the server before it live on; it may not be told of what is reserved."""
        before = self.everything()
        try:
            made = self.bench.broker.reserve(
                self.bench.me, NewReservation(user=self.bench.me.name, request=request)
            )
        except GpuError as error:
            assert 400 <= error.status < 500
            assert self.everything() == before
            return
        self.move_to_a_new_server(order, made.id if told else None)

    @rule(request=requests, late=st.booleans())
    def server_started_and_drew_on_its_reservation(self, request: Request, late: bool) -> None:
        self.server_started_anew_with_a_reservation(request, 0, told=True)
        self.kernel_started(0)
        self.attach(len(self.kernels) - 1, request, "process", restart=False, late=late)

    @rule()
    def reservation_was_given_back(self) -> None:
        for row in list(self.bench.broker.books.environments.values()):
            if row.kind == "server":
                self.bench.broker.detach(self.bench.me, row.id)
                assert row.id not in self.bench.broker.books.environments

    # -- attach and detach ------------------------------------------------------------------

    @rule(number=who, request=requests, restart=st.booleans())
    def attached_by_magic(self, number: int, request: Request, restart: bool) -> None:
        self.attach(number, request, "process", restart)

    @rule(number=who, request=requests, served=st.booleans())
    def attached_by_sidebar(self, number: int, request: Request, served: bool) -> None:
        self.attach(number, request, "server", restart=False)
        if served:
            self.server_does_what_is_wanted()

    @rule(number=who, request=requests, caller=callers, restart=st.booleans(), late=st.booleans())
    def attach(
        self, number: int, request: Request, caller: str, restart: bool, late: bool = False
    ) -> None:
        kernel = self.kernel(number)
        if kernel is None:
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
            assert not self.leaves(kernel) or self.everything() == before
            self.check_really_free(kernel, before)
            if caller == "process" and not restart:
                self.apply(kernel, after.environ, by="process", late=late)
            given = self.rows(kernel)
            self.ask(kernel, request, caller, restart)
            assert self.rows(kernel) == given, "Run All"

    # -- the queue --------------------------------------------------------------------------

    @rule(number=who, request=requests, wait=st.sampled_from((30, 3600)), leased=st.booleans())
    def waited(self, number: int, request: Request, wait: int, leased: bool) -> None:
        kernel = self.kernel(number)
        if kernel is None:
            return
        before = self.everything()
        more = msgspec.structs.replace(request, wait=wait, duration=3600 if leased else None)
        try:
            after = self.ask(kernel, more, "server", restart=False)
        except GpuError as error:
            assert 400 <= error.status < 500
            assert self.everything() == before
            return
        self.check_really_free(kernel, before)
        waits = kernel.id in self.bench.broker.books.tickets
        assert waits == (after.state == "waiting") == (after.pending is not None)
        assert not waits or self.everything() == before

    @rule(served=st.booleans())
    def queue_went_on(self, served: bool) -> None:
        before = self.everything()
        self.bench.broker.queue.round()
        for kernel in self.kernels:
            self.check_really_free(kernel, before)
        if served:
            self.server_does_what_is_wanted()

    @rule(number=who, request=requests, others=st.integers(1, 3), served=st.booleans())
    def turn_came(self, number: int, request: Request, others: int, served: bool) -> None:
        """Somebody waits until enough others have given back what they had."""
        self.waited(number, request, 3600, leased=False)
        for _ in range(others):
            self.detached(number + 1, None, "process")
        self.bench.tick(1)
        self.queue_went_on(served)
        self.waited(number, request, 3600, leased=False)

    @rule(number=who)
    def queue_was_left(self, number: int) -> None:
        kernel = self.kernel(number)
        ticket = None if kernel is None else self.bench.broker.books.tickets.get(kernel.id)
        if ticket is not None:
            before = self.everything()
            self.bench.broker.queue.leave(self.bench.me, ticket.id)
            assert self.everything() == before
            assert ticket.environment not in self.bench.broker.books.tickets

    @rule(
        number=who,
        where=st.sampled_from((None, None, None, 0, 1, 2)),
        caller=callers,
        late=st.booleans(),
    )
    def detached(self, number: int, where: int | None, caller: str, late: bool = False) -> None:
        holders = [k for k in self.kernels if self.rows(k)]
        if not holders:
            return
        kernel = holders[number % len(holders)]
        device = None if where is None else self.device(where).uuid
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
        except Conflict:
            assert self.leaves(kernel)
        else:
            if caller == "process":
                self.apply(kernel, after.environ, by="process", late=late)
            left = [g for g in self.rows(kernel) if device in (None, g.device)]
            assert {g.state for g in left} <= {"draining"}
            assert after.id == kernel.id

    @rule(caller=callers)
    def released_and_attached_again(self, caller: str) -> None:
        for number, kernel in enumerate(self.kernels):
            if before := self.now(kernel).request:
                self.detached(number, None, caller)
                self.attach(number, before, caller, restart=False)

    @rule(late=st.booleans(), queued=st.booleans())
    def server_does_what_is_wanted(self, late: bool = False, queued: bool = False) -> None:
        for want in self.bench.broker.take_wants(self.bench.server):
            for kernel in [k for k in self.kernels if k.id == want.kernel]:
                assert want.environ is not None
                if queued:  # behind a long cell
                    self.queue.append((kernel, want.environ))
                else:
                    self.apply(kernel, want.environ, late=late)

    @rule(number=st.integers(0, 7), kept=st.booleans(), late=st.booleans())
    def variables_came_out_of_the_queue(self, number: int, kept: bool, late: bool) -> None:
        if self.queue:
            kernel, environ = self.queue[number % len(self.queue)]
            if not kept:
                self.queue.remove((kernel, environ))
            self.apply(kernel, environ, late=late)

    @rule(number=st.integers(0, 15))
    def a_report_came_late_or_again(self, number: int) -> None:
        if self.words:
            self.hear(self.words[-1 - number % len(self.words)])

    @rule(number=who, served=st.sampled_from(((True, True, False), (True, False, True))))
    def moved_to_and_fro(self, number: int, served: tuple[bool, ...]) -> None:
        """What is wanted is what was wanted before, and what is seen is something else."""
        for where, at_once in zip(("0", "1", "0"), served, strict=True):
            self.attach(number, Request(devices=(where,), memory=GIB), "server", restart=False)
            if at_once:
                self.server_does_what_is_wanted()
        self.all_reports_came_again(backwards=False)

    @rule(backwards=st.booleans())
    def all_reports_came_again(self, backwards: bool) -> None:
        recent = self.words[-20:]
        for word in reversed(recent) if backwards else recent:
            self.hear(word)

    @rule()
    def what_is_not_confirmed_is_wanted_again(self) -> None:
        """However reports were lost, nothing stays open for ever."""
        for _ in range(2):
            self.bench.tick(AGAIN)
        self.server_does_what_is_wanted()
        books = self.bench.broker.books
        for kernel in self.kernels:
            if kernel.process.poll() is None:
                assert not unconfirmed(books, books.environments[kernel.id])

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
            mock.patch.object(attach, "undo", lambda *_: None),  # the dead undo nothing
        ):
            try:
                self.ask(kernel, request, "process", restart=False)
            except Crash:
                self.crash()
            except GpuError:
                return
        if kernel.cuda is None:
            self.apply(kernel, self.now(kernel).environ)


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
