"""What comes between while an MPS daemon is prepared for a grant; NVIDIA's real control daemon."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import pytest

from genv_jupyter.devices.source import ProcessReading
from genv_jupyter.errors import CudaInitialized, GpuError, NoCapacity, UnknownEnvironment
from genv_jupyter.isolation import processes
from genv_jupyter.model import Request
from tests.integration.mps_bench import MpsBench
from tests.integration.test_mps_attach import MEMORY, desk, real
from tests.unit.brokers import GIB, HALF, Kernel

__all__ = ["desk", "real"]


class Aside(threading.Thread):
    """A verb that runs beside the test."""

    def __init__(self, verb: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self.verb = verb
        self.error: GpuError | None = None
        self.start()

    def run(self) -> None:
        try:
            self.verb()
        except GpuError as error:
            self.error = error

    def end(self) -> GpuError | None:
        self.join(60)
        assert not self.is_alive()
        return self.error


def fenced(desk: MpsBench, kernel: Kernel, request: Request) -> tuple[Aside, Callable[[], None]]:
    """Attach, and stop where the daemon is to be started; return also what lets it go on."""
    gate = desk.gate()
    attaching = Aside(lambda: kernel.attach(request))
    assert gate.reached.acquire(timeout=60)
    return attaching, gate.opened.set


def test_others_are_served_while_a_fence_is_prepared(desk: MpsBench) -> None:
    kernel, other = desk.kernel(), desk.kernel()
    attaching, go_on = fenced(desk, kernel, Request(devices=("0",), fraction=0.5))
    assert [grant.state for grant in kernel.now.grants] == ["reserved"]
    with pytest.raises(NoCapacity):
        other.attach(Request(devices=("0",), memory="13GiB", mps="off"))
    assert other.attach(Request(devices=("1",))).state == "granted"
    desk.tick()
    go_on()
    assert attaching.end() is None and kernel.now.state == "granted"


def test_a_detach_meanwhile_waits_and_then_detaches(desk: MpsBench) -> None:
    kernel = desk.kernel()
    attaching, go_on = fenced(desk, kernel, HALF)
    detaching = Aside(kernel.detach)
    detaching.join(0.2)
    assert detaching.is_alive(), "it waits for the attach on the same environment"
    go_on()
    assert (attaching.end(), detaching.end()) == (None, None)
    assert kernel.now.grants == () and kernel.now.state == "released"
    nothing_is_left(desk)


def test_a_second_attach_meanwhile_comes_after_the_first(desk: MpsBench) -> None:
    kernel = desk.kernel()
    attaching, go_on = fenced(desk, kernel, HALF)
    second = Aside(lambda: kernel.attach(Request(devices=("1",))))
    go_on()
    assert (attaching.end(), second.end()) == (None, None)
    assert kernel.devices == [desk.device(1)]
    assert desk.broker.core.mps.preparing == {}


def test_a_kernel_that_ends_meanwhile_holds_nothing(desk: MpsBench) -> None:
    kernel = desk.kernel()
    attaching, go_on = fenced(desk, kernel, HALF)
    desk.end(kernel.process)
    desk.broker.end_kernel(desk.me, desk.server, kernel.id)
    go_on()
    assert isinstance(attaching.end(), UnknownEnvironment)
    nothing_is_left(desk)


def test_a_kernel_that_restarts_meanwhile_gets_what_it_asked_for(desk: MpsBench) -> None:
    kernel = desk.kernel()
    kernel.attach(Request(memory="1GiB", mps="off"))
    attaching, go_on = fenced(desk, kernel, Request(memory="20GiB"))
    kernel.restart()  # the new process counts for its old cap: the growth is gone ...
    other = desk.kernel()
    other.attach(Request(devices=("0",), memory="22GiB", mps="off"))  # ... and given to another
    go_on()
    attaching.end()
    assert kernel.devices == [desk.device(1)]
    held = desk.broker.books.slots[desk.device(0)].granted
    assert held <= 24 * GIB


def test_cuda_that_comes_to_life_meanwhile_makes_it_too_late(desk: MpsBench) -> None:
    kernel = desk.kernel()
    before = kernel.attach(Request(memory="1GiB", mps="off"))
    attaching, go_on = fenced(desk, kernel, Request(memory="2GiB", mps="on"))
    kernel.use(0, GIB // 2)
    desk.tick()
    go_on()
    assert isinstance(attaching.end(), CudaInitialized)
    assert [(g.memory, g.limits) for g in kernel.now.grants] == [
        (g.memory, g.limits) for g in before.grants
    ]
    assert desk.broker.books.slots[desk.device(0)].granted == GIB


def test_two_on_one_device_at_once_have_one_daemon_with_the_larger_ceiling(
    desk: MpsBench,
) -> None:
    small, large = desk.kernel(), desk.kernel()
    gate = desk.gate()
    asides = [
        Aside(lambda: small.attach(Request(devices=("0",), memory="2GiB"))),
        Aside(lambda: large.attach(Request(devices=("0",), memory="6GiB"))),
    ]
    for _ in asides:
        assert gate.reached.acquire(timeout=60)
    gate.opened.set()
    assert [aside.end() for aside in asides] == [None, None]
    assert desk.daemon(0).ceiling() == "6G"


def test_a_daemon_that_dies_is_started_again_with_its_ceiling(desk: MpsBench) -> None:
    desk.kernel().attach(MEMORY)
    pid = desk.daemon(0).pid()
    assert pid is not None
    start = processes.start_of(pid)
    os.kill(pid, signal.SIGKILL)
    while processes.alive(pid, start):
        pass
    desk.broker.tick_mps()
    assert desk.daemon(0).pid() not in (None, pid) and desk.daemon(0).ceiling() == "4G"


def test_memory_of_our_own_servers_is_no_outsiders(desk: MpsBench) -> None:
    kernel = desk.kernel()
    kernel.attach(Request(devices=("0",), memory="4GiB"))
    pid = desk.daemon(0).pid()
    assert pid is not None
    used = desk.source.devices[0].processes
    assert used is not None
    used.append(ProcessReading(pid, GIB, "compute"))
    desk.tick()
    (device, _) = desk.broker.devices()
    assert (device.external_memory, device.unattributed_memory) == (0, 0)
    with pytest.raises(NoCapacity):
        desk.kernel().attach(Request(devices=("0",), memory="19.5GiB"))
    kernel.detach()
    assert desk.kernel().attach(Request(devices=("0",))).grants[0].memory == 24 * GIB


def nothing_is_left(desk: MpsBench) -> None:
    books = desk.broker.books
    assert not any(books.on_device.values())
    assert all(slot.granted == slot.shared == 0 for slot in books.slots.values())
    assert desk.broker.core.mps.preparing == {}
    assert desk.broker.core.loose_ends is False
