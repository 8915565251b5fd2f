"""What is told of a process, too late, twice, or by halves: nothing that it sees becomes free."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from genv_jupyter.broker.housekeeping import AGAIN
from genv_jupyter.errors import Conflict, NoCapacity, UnknownEnvironment
from genv_jupyter.model import EnvironmentPatch, NewEnvironment, Request
from tests.unit.brokers import GIB, WHOLE, Bench, Kernel, bench, read_back

FIRST, SECOND = Request(devices=("0",)), Request(devices=("1",))


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path) as made:
        yield made


def ask(kernel: Kernel, request: Request) -> Mapping[str, str | None]:
    """Attach from a sidebar; return the variables that are now on their way."""
    desk = kernel.bench
    after = desk.broker.attach(desk.me, kernel.id, request, cuda="not_initialized")
    assert after.environ is not None
    return after.environ


def tell(kernel: Kernel, environ: Mapping[str, str | None], **fields: object) -> None:
    """Tell that variables are in the process."""
    seen = {"applied": "live", "cuda": "not_initialized", **read_back(environ), **fields}
    kernel.bench.tell(kernel.id, **seen)


def held(kernel: Kernel) -> dict[int, str]:
    """What a kernel holds: the state of its grant on each device, by number."""
    numbers = {device.uuid: device.index for device in kernel.bench.source.devices}
    return {numbers[grant.device]: grant.state for grant in kernel.now.grants}


def wanted(desk: Bench) -> list[tuple[str, str]]:
    return [(want.kernel, want.action) for want in desk.broker.take_wants(desk.server)]


# -- a report speaks of the variables that were applied -------------------------------------------


def test_a_late_report_of_the_first_attach_frees_nothing_that_the_second_replaces(
    desk: Bench,
) -> None:
    kernel, other = desk.kernel(), desk.kernel("b.ipynb")
    first = ask(kernel, FIRST)  # applied in the kernel; the report is slow
    ask(kernel, SECOND)
    tell(kernel, first)
    assert held(kernel) == {0: "draining", 1: "granted"}
    assert kernel.now.applied == "pending"
    with pytest.raises(NoCapacity):
        other.attach(FIRST)
    desk.applied(kernel.id)
    other.attach(FIRST)
    assert kernel.now.applied == "live"


def test_a_report_of_the_same_devices_from_before_frees_nothing(desk: Bench) -> None:
    """First, second, and first again: the process still sees the second."""
    kernel = desk.kernel()
    first = ask(kernel, FIRST)
    tell(kernel, first)
    tell(kernel, ask(kernel, SECOND))
    ask(kernel, FIRST)
    tell(kernel, first)  # once more
    assert held(kernel) == {0: "granted", 1: "draining"}
    assert kernel.now.applied == "pending"
    desk.applied(kernel.id)
    assert held(kernel) == {0: "granted"}


def test_a_release_is_not_confirmed_by_what_was_seen_before_it(desk: Bench) -> None:
    kernel = desk.kernel()
    hidden = desk.broker.environment(desk.me, kernel.id).environ
    assert hidden is not None
    tell(kernel, ask(kernel, FIRST))
    desk.broker.detach(desk.me, kernel.id, cuda="not_initialized")
    tell(kernel, hidden)  # truly hidden, before the attach
    assert held(kernel) == {0: "draining"}
    desk.applied(kernel.id)
    assert held(kernel) == {}


def test_who_looked_before_a_release_frees_nothing(desk: Bench) -> None:
    """Not even the process itself, while its server may put variables into it."""
    kernel = desk.kernel()
    kernel.attach(FIRST)
    pid = kernel.process.pid
    desk.broker.detach(desk.me, kernel.id, cuda="not_initialized", peer_pid=pid)
    assert held(kernel) == {0: "draining"}


def test_a_process_without_a_server_is_believed_that_it_has_let_go(desk: Bench) -> None:
    pid = desk.process().pid
    own = desk.broker.create(desk.me, NewEnvironment(kind="shell", pid=pid))
    desk.broker.attach(desk.me, own.id, WHOLE, cuda="not_initialized", peer_pid=pid)
    after = desk.broker.detach(desk.me, own.id, cuda="not_initialized", peer_pid=pid)
    assert after.state == "released"


@pytest.mark.parametrize("lost", ["revision", "visible"])
def test_half_a_report_frees_nothing(desk: Bench, lost: str) -> None:
    kernel = desk.kernel()
    tell(kernel, ask(kernel, FIRST))
    seen = read_back(ask(kernel, SECOND))
    del seen[lost]
    desk.tell(kernel.id, applied="live", cuda="not_initialized", **seen)
    assert held(kernel) == {0: "draining", 1: "granted"}


def test_a_report_without_variables_is_shown_and_frees_nothing(desk: Bench) -> None:
    kernel = desk.kernel()
    tell(kernel, ask(kernel, FIRST))
    ask(kernel, SECOND)
    body = EnvironmentPatch(applied="live", cuda="not_initialized")
    after = desk.broker.patch(desk.me, kernel.id, body)
    assert after.applied == "live"
    assert held(kernel) == {0: "draining", 1: "granted"}


def test_a_process_that_shows_something_else_has_not_let_go(desk: Bench) -> None:
    kernel = desk.kernel()
    tell(kernel, ask(kernel, FIRST))
    second = ask(kernel, SECOND)
    tell(kernel, second, visible=None)  # unset: it sees all
    tell(kernel, second, visible=desk.device(0))
    assert held(kernel) == {0: "draining", 1: "granted"}


def test_where_nothing_is_hidden_null_is_what_is_wanted(desk: Bench) -> None:
    kernel = desk.kernel(unattached="all")
    tell(kernel, ask(kernel, FIRST))
    after = desk.broker.detach(desk.me, kernel.id)
    assert after.environ is not None and after.environ["CUDA_VISIBLE_DEVICES"] is None
    desk.tell(
        kernel.id,
        applied="live",
        cuda="not_initialized",
        revision=int(after.environ["GENV_JUPYTER_REVISION"] or ""),
    )
    assert held(kernel) == {0: "draining"}, "left out is not null"
    tell(kernel, after.environ)
    assert held(kernel) == {}


def test_what_was_not_confirmed_is_wanted_again(desk: Bench) -> None:
    kernel = desk.kernel()
    first = ask(kernel, FIRST)
    ask(kernel, SECOND)
    assert wanted(desk) == [(kernel.id, "apply")]
    tell(kernel, first)
    assert wanted(desk) == [(kernel.id, "apply")]
    desk.applied(kernel.id)
    assert wanted(desk) == []


def test_what_nobody_ever_confirms_is_wanted_again_after_a_while(desk: Bench) -> None:
    kernel = desk.kernel()
    pid = kernel.process.pid
    desk.broker.attach(desk.me, kernel.id, FIRST, cuda="not_initialized", peer_pid=pid)
    desk.tick()
    assert wanted(desk) == [], "the process itself is about to apply it"
    desk.tick(AGAIN)
    desk.tick(AGAIN)
    assert wanted(desk) == [(kernel.id, "apply")]
    desk.applied(kernel.id)
    desk.tick(AGAIN)
    desk.tick(AGAIN)
    assert wanted(desk) == []


def test_a_late_word_that_it_comes_at_the_restart_frees_nothing(desk: Bench) -> None:
    for device in desk.source.devices:
        device.processes = None  # nobody lists who is where
    kernel, other = desk.kernel(), desk.kernel("b.ipynb")
    first = ask(kernel, FIRST)
    second = ask(kernel, Request(gpus=2, memory="1G"))  # applied; CUDA then begins there
    tell(kernel, first, applied="at_restart", cuda="initialized", visible="")
    assert kernel.now.applied == "pending"
    tell(kernel, second, applied="at_restart", cuda="initialized")
    assert kernel.now.applied == "live", "it has been there before"
    desk.broker.detach(desk.me, kernel.id)
    assert held(kernel) == {0: "draining", 1: "draining"}
    with pytest.raises(NoCapacity):
        other.attach(WHOLE)


def test_cuda_is_never_uninitialised_by_an_older_look(desk: Bench) -> None:
    kernel = desk.kernel()
    tell(kernel, ask(kernel, FIRST))
    desk.tell(kernel.id, cuda="initialized")
    desk.tell(kernel.id, cuda="not_initialized")
    assert kernel.now.cuda == "initialized"
    desk.broker.detach(desk.me, kernel.id, cuda="not_initialized")
    assert "restart" in (kernel.now.reason or "")


# -- a start under way ----------------------------------------------------------------------------


def test_what_a_start_was_told_of_is_not_free_before_the_process_is_seen(desk: Bench) -> None:
    other = desk.kernel("b.ipynb")
    kernel = desk.starting()
    told = desk.broker.attach(desk.me, kernel, FIRST, cuda="not_initialized").environ
    assert desk.broker.detach(desk.me, kernel).state == "reserved"
    with pytest.raises(NoCapacity):
        other.attach(FIRST)
    process = desk.process()
    after = desk.tell(kernel, phase="running", pid=process.pid, **read_back(told))
    assert after.state == "draining"
    assert wanted(desk) == [(kernel, "apply")]
    assert desk.applied(kernel).state == "released"
    other.attach(FIRST)


def test_a_kernel_that_started_with_older_variables_is_put_right(desk: Bench) -> None:
    """Its server could not ask: it started with what the process before had."""
    kernel = desk.kernel()
    tell(kernel, before := ask(kernel, FIRST))
    ask(kernel, SECOND)
    desk.end(kernel.process)
    kernel.process = desk.process()
    desk.tell(kernel.id, phase="running", pid=kernel.process.pid, **read_back(before))
    assert held(kernel) == {0: "draining", 1: "granted"}
    assert kernel.now.applied == "pending"
    desk.applied(kernel.id)
    assert held(kernel) == {1: "granted"}


def test_no_report_of_an_earlier_process_speaks_of_a_later_one(desk: Bench) -> None:
    kernel = desk.kernel()
    tell(kernel, first := ask(kernel, FIRST))
    desk.tell(kernel.id, phase="restarting")
    desk.end(kernel.process)
    desk.tell(kernel.id, phase="starting")
    kernel.process = desk.process()
    desk.tell(kernel.id, phase="running", pid=kernel.process.pid, revision=1, visible="")
    desk.broker.patch(
        desk.me,
        kernel.id,
        EnvironmentPatch(applied="live", cuda="not_initialized", **read_back(first)),
    )
    assert kernel.now.applied == "pending"


def test_cuda_of_an_earlier_process_is_not_that_of_a_later_one(desk: Bench) -> None:
    kernel = desk.kernel()
    first = ask(kernel, FIRST)
    tell(kernel, first)
    kernel.restart()
    seen = {"applied": "at_restart", "cuda": "initialized", **read_back(first)}
    desk.broker.patch(desk.me, kernel.id, EnvironmentPatch(**seen))  # late
    assert kernel.now.cuda == "not_initialized"
    desk.broker.attach(desk.me, kernel.id, SECOND)


def test_an_environment_that_is_made_anew_counts_on(desk: Bench) -> None:
    """A process may live on while its environment is lost, and refuses what seems older."""
    kernel = desk.kernel()
    before = read_back(ask(kernel, FIRST))["revision"]
    desk.broker.end_kernel(desk.me, desk.server, kernel.id)
    desk.end(kernel.process)
    desk.tick(1)
    with pytest.raises(UnknownEnvironment):
        _ = kernel.now
    after = desk.seen(desk.starting(kernel.id))["revision"]
    assert isinstance(before, int) and isinstance(after, int) and after > before


# -- a notebook changes its kernel ----------------------------------------------------------------


def handover(desk: Bench) -> tuple[Kernel, Kernel]:
    old = desk.kernel("old.ipynb")
    old.attach(FIRST)
    new = desk.kernel("new.ipynb", previous=old.id)
    assert desk.seen(new.id)["visible"] == desk.device(0)
    return old, new


def test_what_the_new_kernel_sees_is_not_freed_by_the_old_one(desk: Bench) -> None:
    old, new = handover(desk)
    pid = old.process.pid
    with pytest.raises(Conflict, match="another kernel"):
        desk.broker.detach(desk.me, old.id, cuda="not_initialized", peer_pid=pid)
    with pytest.raises(Conflict, match="another kernel"):
        desk.broker.attach(desk.me, old.id, SECOND, cuda="not_initialized", peer_pid=pid)
    desk.broker.attach(desk.me, old.id, FIRST)  # nothing changes
    assert held(old) == {0: "granted"}
    desk.end(old.process)
    desk.broker.end_kernel(desk.me, desk.server, old.id)
    assert held(new) == {0: "granted"}
    new.detach()
    assert held(new) == {}


def test_a_release_in_the_new_kernel_is_not_lost_in_silence(desk: Bench) -> None:
    old, new = handover(desk)
    with pytest.raises(Conflict, match="taking over"):
        desk.broker.detach(desk.me, new.id)
    assert held(old) == {0: "granted"}


def test_an_old_kernel_is_its_own_again_when_the_new_one_is_gone(desk: Bench) -> None:
    old, new = handover(desk)
    desk.end(new.process)
    desk.broker.end_kernel(desk.me, desk.server, new.id)
    old.detach()
    assert held(old) == {}


@pytest.mark.parametrize("confirmed", [True, False])
def test_what_the_new_kernel_was_lent_is_free_only_when_it_sees_its_own(
    desk: Bench, confirmed: bool
) -> None:
    old, new = handover(desk)
    ask(new, SECOND)
    if confirmed:
        desk.applied(new.id)
    desk.end(old.process)
    desk.broker.end_kernel(desk.me, desk.server, old.id)
    assert held(new) == ({1: "granted"} if confirmed else {0: "draining", 1: "granted"})
    desk.applied(new.id)
    assert held(new) == {1: "granted"}
    assert new.now.previous is None


# -- ends and restarts ----------------------------------------------------------------------------


def test_the_end_of_an_earlier_launch_ends_nothing(desk: Bench) -> None:
    kernel = desk.kernel(launch=7)
    kernel.attach(WHOLE)
    desk.end(kernel.process)
    desk.tell(kernel.id, phase="starting", launch=8)
    desk.broker.end_kernel(desk.me, desk.server, kernel.id, 7)
    assert kernel.devices == [desk.device(0)]
    desk.broker.end_kernel(desk.me, desk.server, kernel.id, 8)
    assert desk.broker.environments(desk.me) == []


def test_a_restart_that_was_promised_outlives_the_broker(desk: Bench) -> None:
    kernel = desk.kernel(launch=7)
    kernel.attach(Request(memory=GIB))
    desk.broker.restart(desk.me, kernel.id)
    desk.reopen()
    desk.broker.renew_wants(desk.server)
    (want,) = desk.broker.take_wants(desk.server)
    assert (want.kernel, want.action, want.launch) == (kernel.id, "restart", 7)
    desk.tell(kernel.id, phase="restarting", launch=7)
    desk.reopen()
    desk.broker.renew_wants(desk.server)
    assert desk.broker.take_wants(desk.server) == ()


@pytest.mark.parametrize("phase", ["starting", "running"])
def test_a_restart_that_came_while_the_broker_was_gone_is_not_wanted_again(
    desk: Bench, phase: str
) -> None:
    kernel = desk.kernel(launch=7)
    desk.broker.restart(desk.me, kernel.id)
    desk.reopen()
    desk.end(kernel.process)
    pid = desk.process().pid if phase == "running" else None
    desk.tell(kernel.id, phase=phase, launch=8, pid=pid)
    desk.broker.renew_wants(desk.server)
    assert wanted(desk) == []


def test_a_restart_that_nobody_did_is_not_wanted_for_ever(desk: Bench) -> None:
    kernel = desk.kernel()
    desk.broker.restart(desk.me, kernel.id)
    desk.pass_time(61)
    desk.reopen()
    desk.broker.renew_wants(desk.server)
    assert wanted(desk) == []
