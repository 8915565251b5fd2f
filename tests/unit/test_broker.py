"""The broker's verbs, in process: what is given, refused, kept, drained and freed."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from genv_jupyter.devices.source import ProcessReading
from genv_jupyter.errors import (
    AmbiguousDevice,
    BadRequest,
    CudaInitialized,
    NoCapacity,
    NotYours,
    OutOfRange,
    UnknownDevice,
    UnknownEnvironment,
    UnknownServer,
)
from genv_jupyter.model import EnvironmentPatch, NewEnvironment, Principal, Request, ServerReport
from tests.unit.brokers import GIB, HALF, WHOLE, Bench, bench

FOUR = Request(memory="4G")


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path) as made:
        yield made


def test_story_two_gpus_three_notebooks(desk: Bench) -> None:
    language, debug, view = desk.kernel("llm.ipynb"), desk.kernel("debug.ipynb"), desk.kernel("viz")
    language.attach(WHOLE)
    debug.attach(FOUR)
    view.attach(HALF)
    assert language.devices == [desk.device(0)]
    assert debug.devices == view.devices == [desk.device(1)]
    with pytest.raises(NoCapacity) as refusal:
        debug.attach(WHOLE)
    assert "llm.ipynb of" in refusal.value.message and "holds all of it since" in str(refusal.value)
    assert {h["name"] for h in refusal.value.details["holders"]} == {"llm.ipynb", "viz"}
    assert debug.now.grants[0].memory == 4_000_000_000
    language.use(0, 3 * GIB)
    assert language.detach(cuda="initialized").state == "draining"
    with pytest.raises(NoCapacity, match="draining"):
        debug.attach(WHOLE)
    language.restart()
    debug.attach(WHOLE)
    assert debug.devices == [desk.device(0)]
    assert len(debug.now.grants) == 1


def test_the_same_request_again_changes_nothing(desk: Bench) -> None:
    kernel = desk.kernel()
    first = kernel.attach(HALF)
    revision = desk.broker.snapshot(desk.me).revision
    desk.broker.changes(desk.me)
    again = kernel.attach(HALF, cuda="initialized")
    assert again.grants == first.grants
    assert desk.broker.snapshot(desk.me).revision == revision + 1


def test_a_resize_on_the_same_device_counts_once(desk: Bench) -> None:
    kernel, other = desk.kernel(), desk.kernel()
    kernel.attach(Request(fraction=0.6))
    kernel.attach(Request(fraction=0.9))
    other.attach(Request(fraction=0.1))
    assert kernel.devices == other.devices == [desk.device(0)]


def test_a_smaller_cap_counts_the_old_one_until_the_restart(desk: Bench) -> None:
    kernel, other = desk.kernel(), desk.kernel()
    kernel.attach(Request(devices=(desk.device(0),), memory="20G"))
    kernel.attach(Request(devices=(desk.device(0),), memory="1G"), cuda="initialized")
    assert kernel.now.grants[0].memory == 10**9
    with pytest.raises(NoCapacity):
        other.attach(Request(devices=("0",), memory="10G"))
    kernel.restart()
    other.attach(Request(devices=("0",), memory="10G"))


def test_too_late_is_said_after_capacity(desk: Bench) -> None:
    kernel, other = desk.kernel(), desk.kernel()
    kernel.attach(FOUR)
    other.attach(WHOLE)
    with pytest.raises(NoCapacity):
        kernel.attach(Request(gpus=2), cuda="initialized")
    other.detach()
    with pytest.raises(CudaInitialized, match="--restart") as late:
        kernel.attach(Request(devices=("1",)), cuda="initialized")
    assert late.value.status == 409
    assert kernel.devices == [desk.device(0)]


def test_restart_with_a_grant_drains_the_old_device(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(Request(devices=("0",)))
    kernel.use(0, GIB)
    after = kernel.attach(Request(devices=("1",)), cuda="initialized", restart=True)
    assert {g.device: (g.state, g.applied) for g in after.grants} == {
        desk.device(0): ("draining", "live"),
        desk.device(1): ("granted", "at_restart"),
    }
    kernel.restart()
    assert [(g.device, g.state, g.applied) for g in kernel.now.grants] == [
        (desk.device(1), "granted", "live")
    ]


def test_attaching_again_where_it_drains_undrains(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(WHOLE)
    kernel.use(0, GIB)
    assert kernel.detach(cuda="initialized").state == "draining"
    assert kernel.attach(WHOLE, cuda="initialized").state == "active"


def test_a_child_on_the_device_keeps_it_draining(desk: Bench) -> None:
    parent = subprocess.Popen(
        ["sh", "-c", "sleep 600 & echo $!; read forever"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    desk.children.append(parent)
    kernel, other = desk.kernel(process=parent), desk.kernel()
    kernel.attach(WHOLE)
    on_device = desk.source.devices[0].processes
    assert on_device is not None
    on_device.append(ProcessReading(child, GIB, "compute"))
    try:
        # The kernel itself truly says that it never began.
        assert kernel.detach().state == "draining"
        with pytest.raises(NoCapacity):
            other.attach(Request(devices=("0",)))
    finally:
        os.kill(child, signal.SIGKILL)
    on_device.clear()
    desk.tick()
    assert kernel.now.state == "released"
    other.attach(Request(devices=("0",)))
    parent.communicate()


def test_an_unconfirmed_release_is_believed_after_quiet_seconds(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(WHOLE)
    assert desk.broker.detach(desk.me, kernel.id).state == "draining"
    wants = desk.broker.take_wants(desk.server)
    assert [(w.kernel, w.action) for w in wants] == [(kernel.id, "apply")]
    assert wants[0].environ is not None and wants[0].environ["CUDA_VISIBLE_DEVICES"] == ""
    desk.tick()
    assert kernel.now.state == "draining"
    for grant in desk.broker.books.quiet_since:
        desk.broker.books.quiet_since[grant] -= 10
    desk.tick()
    assert kernel.now.state == "released"


def test_a_confirmed_release_is_free_at_once(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(WHOLE)
    desk.broker.detach(desk.me, kernel.id)
    assert desk.applied(kernel.id).state == "released"


def test_a_dead_kernel_is_held_for_its_restart_and_then_freed(desk: Bench) -> None:
    kernel, other = desk.kernel(), desk.kernel()
    kernel.attach(WHOLE)
    desk.end(kernel.process)
    desk.tick()
    assert kernel.now.state == "held"
    with pytest.raises(NoCapacity):
        other.attach(Request(devices=("0",)))
    desk.tick(59)
    assert kernel.now.state == "held"
    desk.tick(2)
    with pytest.raises(UnknownEnvironment):
        _ = kernel.now
    other.attach(Request(devices=("0",)))


def test_an_automatic_restart_finds_its_grant(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(WHOLE)
    desk.end(kernel.process)
    desk.tick(3)
    environ = desk.tell(kernel.id, phase="starting").environ
    assert environ is not None and environ["CUDA_VISIBLE_DEVICES"] == desk.device(0)


def test_a_kernel_that_died_with_its_server_is_freed(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(WHOLE)
    desk.end(kernel.process)
    desk.end(desk.server_process)
    desk.tick()
    assert desk.broker.environments(desk.me) == []


def test_a_kernel_that_outlives_its_server_keeps_its_grant(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(WHOLE)
    desk.end(desk.server_process)
    desk.tick()
    assert kernel.devices == [desk.device(0)]
    assert "server is gone" in (kernel.now.reason or "")
    desk.end(kernel.process)
    desk.tick()
    assert desk.broker.environments(desk.me) == []


def test_a_launch_that_never_comes_ends_by_its_deadline(desk: Bench) -> None:
    kernel = desk.starting()
    desk.broker.attach(desk.me, kernel, WHOLE)
    desk.tick(59)
    assert desk.broker.environment(desk.me, kernel).state == "reserved"
    desk.tick(2)
    assert desk.broker.environments(desk.me) == []


def test_shutting_a_kernel_down_frees_it(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(WHOLE)
    desk.end(kernel.process)
    desk.broker.end_kernel(desk.me, desk.server, kernel.id)
    assert desk.broker.environments(desk.me) == []
    assert desk.broker.devices()[0].grants == ()
    desk.broker.end_kernel(desk.me, desk.server, kernel.id)  # nbclient says it twice


def test_an_ended_kernel_whose_process_lives_is_waited_for(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(WHOLE)
    desk.broker.end_kernel(desk.me, desk.server, kernel.id)
    desk.tick()
    assert kernel.devices == [desk.device(0)]
    desk.end(kernel.process)
    desk.tick()
    assert desk.broker.environments(desk.me) == []


def test_changing_the_kernel_hands_over_in_two_steps(desk: Bench) -> None:
    old = desk.kernel()
    old.attach(WHOLE)
    new = desk.starting(previous=old.id)
    environ = desk.broker.environment(desk.me, new).environ
    assert environ is not None and environ["CUDA_VISIBLE_DEVICES"] == desk.device(0)
    assert old.devices == [desk.device(0)]
    process = desk.process()
    desk.tell(new, phase="running", pid=process.pid)
    desk.end(old.process)
    desk.broker.end_kernel(desk.me, desk.server, old.id)
    after = desk.broker.environment(desk.me, new)
    assert [(g.device, g.applied) for g in after.grants] == [(desk.device(0), "live")]
    assert after.request == WHOLE


def test_a_handover_is_undone_when_the_new_kernel_fails(desk: Bench) -> None:
    old = desk.kernel()
    old.attach(WHOLE)
    new = desk.starting(previous=old.id)
    desk.broker.end_kernel(desk.me, desk.server, new)
    assert old.devices == [desk.device(0)]
    desk.end(old.process)
    desk.broker.end_kernel(desk.me, desk.server, old.id)
    assert desk.broker.devices()[0].grants == ()


def test_a_crash_keeps_what_was_answered(desk: Bench) -> None:
    kernel = desk.kernel()
    before = kernel.attach(HALF)
    desk.reopen()
    assert kernel.now.grants == before.grants
    with pytest.raises(NoCapacity):
        desk.kernel().attach(Request(fraction=0.6, devices=("0",)))


def test_external_memory_counts_and_the_desktop_is_tolerated(desk: Bench) -> None:
    desk.source.devices[0].processes = [ProcessReading(1, 500 * 2**20, "graphics", "Xorg")]
    desk.source.devices[1].processes = [ProcessReading(1, 10 * GIB, "compute", "outsider")]
    desk.tick()
    kernel, other = desk.kernel(), desk.kernel()
    kernel.attach(WHOLE)
    assert kernel.devices == [desk.device(0)]
    assert kernel.now.grants[0].memory == 24 * GIB - 500 * 2**20
    with pytest.raises(NoCapacity):
        other.attach(WHOLE)
    with pytest.raises(NoCapacity):
        other.attach(Request(memory="16Gi"))
    other.attach(Request(memory="14Gi"))


def test_the_pool_of_a_server_and_of_a_kernelspec(desk: Bench) -> None:
    desk.register(pool=desk.device(1))
    kernel = desk.kernel()
    kernel.attach(WHOLE)
    assert kernel.devices == [desk.device(1)]
    assert [d.uuid for d in desk.broker.devices(desk.server)] == [desk.device(1)]
    with pytest.raises(UnknownDevice):
        desk.kernel().attach(Request(devices=(desk.device(0),)))
    desk.register(pool=None)
    narrow = desk.kernel(pool="0")
    with pytest.raises(OutOfRange):
        narrow.attach(Request(gpus=2))


def test_a_lost_device_is_shown_and_never_given(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(WHOLE)
    desk.source.devices[0].health = "lost"
    desk.tick()
    assert [g.state for g in kernel.now.grants] == ["lost"]
    with pytest.raises(NoCapacity):
        desk.kernel().attach(Request(devices=(desk.device(0),), memory="1G"))


@pytest.mark.parametrize(
    ("request_", "kind"),
    [
        (Request(), BadRequest),
        (Request(gpus=0), OutOfRange),
        (Request(gpus=-1), OutOfRange),
        (Request(gpus=1.5), OutOfRange),
        (Request(gpus=float("nan")), OutOfRange),
        (Request(memory="4X"), BadRequest),
        (Request(memory=10**30), OutOfRange),
        (Request(memory="100G"), OutOfRange),
        (Request(devices=("GPU-none",)), UnknownDevice),
        (Request(devices=("GPU-51b",)), AmbiguousDevice),
        (Request(devices=("GPU-",)), UnknownDevice),
        (Request(gpus=3), OutOfRange),
        (Request(gpus=1, mps="on"), BadRequest),
    ],
)
def test_bad_requests_are_refused_and_change_nothing(
    desk: Bench, request_: Request, kind: type[Exception]
) -> None:
    kernel = desk.kernel()
    before = kernel.attach(HALF)
    with pytest.raises(kind) as refusal:
        kernel.attach(request_)
    assert refusal.value.code and 400 <= refusal.value.status < 500  # type: ignore[attr-defined]
    assert kernel.now == before


def test_what_belongs_to_somebody_else_is_left_alone(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(HALF)
    other = Principal(realm="local", id="4242", name="other")
    with pytest.raises(NotYours):
        desk.broker.attach(other, kernel.id, WHOLE)
    with pytest.raises(NotYours):
        desk.broker.detach(other, kernel.id)
    with pytest.raises(NotYours):
        desk.broker.patch(other, kernel.id, EnvironmentPatch(name="mine"))
    with pytest.raises(UnknownServer):
        desk.broker.end_kernel(other, desk.server, kernel.id)
    with pytest.raises(NotYours):
        desk.broker.put_server(other, desk.server, ServerReport(pid=1, version="0"))
    with pytest.raises(NotYours):
        desk.broker.create(other, NewEnvironment(kind="shell", pid=kernel.process.pid))
    assert kernel.devices == [desk.device(0)]


def test_kernel_ids_chosen_by_clients_lead_nowhere(desk: Bench) -> None:
    with pytest.raises(BadRequest):
        desk.starting("../../etc")
    with pytest.raises(UnknownEnvironment):
        desk.broker.attach(desk.me, "no-such-kernel", WHOLE)


def test_a_device_in_use_is_no_device_to_come(desk: Bench) -> None:
    """Some drivers list no processes: what is known of a grant is all that there is."""
    for device in desk.source.devices:
        device.processes = None
    kernel = desk.kernel()
    kernel.attach(Request(devices=("0",), memory="1G"))
    desk.broker.attach(desk.me, kernel.id, Request(gpus=2, memory="1G"))
    seen = desk.seen(kernel.id) | {"visible": desk.device(0)}
    after = desk.tell(kernel.id, applied="at_restart", cuda="initialized", **seen)
    assert [(g.device, g.applied) for g in after.grants] == [
        (desk.device(0), "live"),
        (desk.device(1), "at_restart"),
    ]
    kernel.detach(cuda="initialized")
    assert [(g.device, g.state) for g in kernel.now.grants] == [(desk.device(0), "draining")]


def test_what_is_seen_until_a_restart_is_not_free_before_it(desk: Bench) -> None:
    kernel, other = desk.kernel(), desk.kernel()
    kernel.attach(Request(devices=("0",)))
    kernel.attach(Request(devices=("1",)), restart=True)
    assert {g.device: g.state for g in kernel.now.grants} == {
        desk.device(0): "draining",
        desk.device(1): "granted",
    }
    with pytest.raises(NoCapacity):
        other.attach(Request(devices=("0",)))
    kernel.restart()
    other.attach(Request(devices=("0",)))


@pytest.mark.parametrize("first", ["00000000", "ffffffff"], ids=["before", "after"])
def test_a_takeover_under_way_survives_a_crash(desk: Bench, first: str) -> None:
    """Whether the heir stands in the ledger before or after the one it takes over from."""
    old = desk.kernel()
    old.attach(WHOLE)
    new = desk.starting(first + old.id[8:], previous=old.id)
    desk.reopen()
    desk.end(old.process)
    desk.broker.end_kernel(desk.me, desk.server, old.id)
    after = desk.broker.environment(desk.me, new)
    assert [g.device for g in after.grants] == [desk.device(0)]
