"""The queue under all that happens to those who wait: places, turns, restarts, crashes.

``test_broker_stateful`` has the rest of life in it; here people mostly wait.
"""

from __future__ import annotations

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
from genv_jupyter.devices.source import ProcessReading
from genv_jupyter.errors import GpuError
from genv_jupyter.model import Request
from tests.unit.brokers import GIB
from tests.unit.stories import Story
from tests.unit.test_broker_stateful import Crash, requests
from tests.unit.world import Kernel

KERNELS = 4
who = st.integers(0, KERNELS - 1)
places = st.sampled_from(
    ("before_serve", "inside_reserve", "after_reserve", "inside_confirm", "after_serve")
)


class Waits(Story):
    """Two devices, four kernels, and never enough for all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.served = 0

    # -- what must hold after every step ----------------------------------------------------

    @invariant()
    def views_can_be_had(self) -> None:
        broker = self.bench.broker
        shown = broker.tickets(self.bench.me)
        assert len(shown) == len(broker.books.tickets)
        assert [it.position for it in shown if it.state == "waiting"] == list(
            range(1, len(broker.books.line()) + 1)
        )

    # -- what happens -----------------------------------------------------------------------

    @initialize(orders=st.permutations((0, 1, 2, 3)))
    def begin(self, orders: list[int]) -> None:
        for order in orders:
            self.kernels.append(self.launch(self.new_id(order)))
        self.waits(0, Request(gpus=1), 3600, leased=False)
        self.waits(1, Request(gpus=1), 3600, leased=True)
        self.waits(2, Request(gpus=1), 3600, leased=False)
        assert len(self.bench.broker.books.line()) == 1

    @rule(number=who, request=requests, wait=st.sampled_from((60, 3600)), leased=st.booleans())
    def waits(self, number: int, request: Request, wait: int, leased: bool) -> None:
        kernel = self.kernels[number % len(self.kernels)]
        before = self.everything()
        asked = msgspec.structs.replace(request, wait=wait, duration=3600 if leased else None)
        try:
            after = self.ask(kernel, asked, "process", restart=False)
        except GpuError as error:
            assert 400 <= error.status < 500 and self.everything() == before
            return
        if after.pending is not None:
            assert after.state == "waiting" and self.everything() == before
        else:
            self.check_really_free(kernel, before)
            self.apply(kernel, after.environ, by="process")

    @rule(number=who, request=requests)
    def does_not_wait(self, number: int, request: Request) -> None:
        """Whoever waits keeps their place, and nothing that was kept for others is given."""
        kernel = self.kernels[number % len(self.kernels)]
        before, line = self.everything(), self.bench.broker.books.line()
        try:
            after = self.ask(kernel, request, "process", restart=False)
        except GpuError:
            assert self.everything() == before and self.bench.broker.books.line() == line
            return
        assert self.bench.broker.books.line() == [it for it in line if it.environment != kernel.id]
        self.apply(kernel, after.environ, by="process")

    @rule(number=who)
    def gives_back(self, number: int) -> None:
        holders = [kernel for kernel in self.kernels if self.rows(kernel)]
        if holders:
            kernel = holders[number % len(holders)]
            after = self.bench.broker.detach(
                self.bench.me, kernel.id, cuda=kernel.state, peer_pid=kernel.process.pid
            )
            self.apply(kernel, after.environ, by="process")

    @rule(number=who, taken=st.booleans())
    def queue_goes_on(self, number: int, taken: bool) -> None:
        before, line = self.everything(), self.bench.broker.books.line()
        self.bench.broker.queue.round()
        left = {ticket.environment for ticket in self.bench.broker.books.line()}
        for ticket in line:
            kernel = self.named(ticket.environment)
            if ticket.environment not in left and kernel is not None:
                self.check_really_free(kernel, before)
                self.served += bool(self.rows(kernel))
                if taken:
                    self.apply(kernel, self.now(kernel).environ, by="process")
        self.bench.broker.queue.round()
        assert {it.environment for it in self.bench.broker.books.line()} == left, "it was settled"

    @rule(number=who, where=places)
    def broker_is_killed_while_it_serves(self, number: int, where: str) -> None:
        def reach(name: str) -> None:
            if name == where:
                raise Crash

        before = {kernel.id: self.granted(kernel) for kernel in self.kernels}
        with (
            mock.patch.object(failpoints, "reach", reach),
            mock.patch.object(attach, "undo", lambda *_: None),  # the dead undo nothing
        ):
            try:
                self.bench.broker.queue.round()
            except Crash:
                self.crash()
        for ticket in self.bench.broker.books.line():
            kernel = self.named(ticket.environment)
            assert kernel is None or self.granted(kernel) == before[kernel.id], (
                "whole or not at all"
            )

    @rule(number=who)
    def leaves(self, number: int) -> None:
        tickets = list(self.bench.broker.books.tickets.values())
        if tickets:
            ticket, before = tickets[number % len(tickets)], self.everything()
            self.bench.broker.queue.leave(self.bench.me, ticket.id)
            assert self.everything() == before
            assert ticket.environment not in self.bench.broker.books.tickets

    @rule(number=who)
    def kernel_is_restarted(self, number: int) -> None:
        """The cell that waited is gone, and with it the place, when the queue goes on."""
        kernel = self.kernels[number % len(self.kernels)]
        self.restart(kernel)
        self.bench.broker.queue.round()
        ticket = self.bench.broker.books.tickets.get(kernel.id)
        assert ticket is None or ticket.state == "granted"

    @rule(number=who)
    def notebook_gets_another_kernel(self, number: int) -> None:
        old = self.kernels[number % len(self.kernels)]
        ticket = self.bench.broker.books.tickets.get(old.id)
        kept = self.granted(old)
        new = self.launch(self.new_id(number), previous=old.id)
        self.kernels.append(new)
        self.handovers.append((old, new))
        self.die(old)
        self.bench.broker.end_kernel(self.bench.me, self.bench.server, old.id)
        self.forget(old)
        assert self.granted(new) == kept
        moved = self.bench.broker.books.tickets.get(new.id)
        assert ticket is None or (moved is not None and moved.number == ticket.number)

    @rule(seconds=st.sampled_from((1, 61, 301, 601)), crashed=st.booleans())
    def time_passes(self, seconds: int, crashed: bool) -> None:
        self.bench.tick(seconds)
        if crashed:
            self.crash()

    @rule(number=who)
    def device_is_used(self, number: int) -> None:
        ready = [kernel for kernel in self.kernels if kernel.cuda is None and kernel.sees]
        if ready:
            kernel = ready[number % len(ready)]
            kernel.cuda = set(kernel.sees)
            for name in kernel.cuda:
                self.use(name, ProcessReading(kernel.process.pid, GIB, "compute"))
            self.bench.tick()

    def named(self, environment: str) -> Kernel | None:
        return next((kernel for kernel in self.kernels if kernel.id == environment), None)


def test_queue_keeps_its_promises_whatever_happens() -> None:
    run_state_machine_as_test(
        Waits,
        settings=settings(
            max_examples=20,
            stateful_step_count=25,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        ),
    )
