"""Each rule over simulated devices with real processes, on a clock that the test turns."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from genv_jupyter.broker.rules import enforcer
from genv_jupyter.broker.rules.breaches import Key
from genv_jupyter.model import EnvironmentPatch, Principal, Request
from tests.unit.brokers import GIB, HALF, WHOLE, Kernel
from tests.unit.ruled import (
    CHILD,
    DEAF,
    GRACE,
    PAUSE,
    SLEEP,
    STUBBORN,
    Ruled,
    child_of,
    gone,
    wait_for,
)

MakeRuled = Callable[..., Ruled]


@pytest.fixture
def ruled(tmp_path: Path) -> Iterator[MakeRuled]:
    made: list[Ruled] = []

    def make(**rules: Any) -> Ruled:
        made.append(Ruled(tmp_path, **rules))
        return made[-1]

    yield make
    for desk in made:
        desk.close()


@pytest.fixture
def hungry(ruled: MakeRuled) -> Callable[..., tuple[Ruled, Kernel, int]]:
    """A kernel whose child uses more than the half of a device that was granted."""

    def make(**rules: Any) -> tuple[Ruled, Kernel, int]:
        desk = ruled(cap_grace=GRACE, **rules)
        kernel = desk.kernel(process=desk.script(CHILD))
        kernel.attach(HALF)
        child = child_of(kernel.process)
        desk.uses(0, kernel.process.pid, GIB)
        desk.uses(0, child, 20 * GIB)
        return desk, kernel, child

    return make


# -- over the cap: the ladder ----------------------------------------------------------------------


def test_a_single_users_default_warns_and_nothing_is_done(
    hungry: Callable[..., tuple[Ruled, Kernel, int]],
) -> None:
    desk, kernel, child = hungry()
    desk.pass_(GRACE * 3)
    (notice,) = desk.notices()
    assert (notice.kind, notice.level, notice.until) == ("cap", "warning", None)
    assert notice.environment == kernel.id
    assert notice.message == "21 GiB of GPU 0 are used here, and 12 GiB granted."
    assert notice.actions == ("restart", "release", "dismiss")
    assert not gone(child) and desk.acted() == [] and desk.wants() == []


def test_off_says_nothing(hungry: Callable[..., tuple[Ruled, Kernel, int]]) -> None:
    desk, _, child = hungry(cap="off")
    desk.pass_(GRACE * 3)
    assert desk.notices() == [] and not gone(child)


def test_the_child_that_is_over_goes_and_the_kernel_stays(
    hungry: Callable[..., tuple[Ruled, Kernel, int]],
) -> None:
    desk, kernel, child = hungry(cap="act")
    desk.pass_(1)
    (notice,) = desk.notices()
    assert notice.level == "error" and notice.until is not None
    assert (notice.until - notice.since).total_seconds() == GRACE
    assert f"Otherwise process {child} (" in notice.message
    assert notice.message.endswith(") is interrupted, then ended.")
    desk.pass_(GRACE - 1)
    assert not gone(child) and desk.acted() == []
    desk.pass_(PAUSE + 1)  # Python makes an end of what SIGINT leaves
    wait_for(lambda: gone(child))
    assert not gone(kernel.process.pid)
    assert (
        f"process {child}" in desk.acted()[0].lower() and "is interrupted (cap)" in desk.acted()[0]
    )
    counted = {it.action: it.count for it in desk.broker.figures().rules if it.rule == "cap"}
    assert counted == {"interrupt": 1, "terminate": 0, "kill": 0}
    desk.source.devices[0].processes = []
    desk.pass_(2)
    assert desk.notices("cap") == []


def test_who_does_not_heed_is_terminated_and_then_killed_and_the_owner_is_told(
    ruled: MakeRuled,
) -> None:
    desk = ruled(cap="act", cap_grace=0)
    kernel = desk.kernel(process=desk.script(DEAF))
    kernel.attach(HALF)
    desk.uses(0, kernel.process.pid, 20 * GIB)
    desk.pass_(1)
    assert [it.action for it in desk.wants()] == ["interrupt"], "its server knows how"
    desk.pass_(PAUSE)
    assert len(desk.acted()) == 2 and not gone(kernel.process.pid)
    (ended,) = desk.notices("ended")
    assert "is terminated (cap): 20 GiB of GPU 0 are used here" in ended.message
    desk.pass_(PAUSE)
    wait_for(lambda: gone(kernel.process.pid))
    (ended,) = desk.notices("ended")
    assert "is killed (cap)" in ended.message and ended.level == "error"
    assert [reason.split(" (")[-2].split(") ")[-1] for reason in desk.acted()] == [
        "is interrupted",
        "is terminated",
        "is killed",
    ]
    assert all(
        it.environment == kernel.id for it in desk.records.history() if it.event == "RuleActed"
    )


def test_a_dry_run_records_and_does_nothing(
    hungry: Callable[..., tuple[Ruled, Kernel, int]],
) -> None:
    desk, _, child = hungry(cap="act", dry_run=["cap"])
    desk.pass_(GRACE + 5 * PAUSE)
    assert not gone(child) and desk.acted() == []
    (notice,) = desk.notices()
    assert notice.until is None and notice.message.endswith("(A dry run: nothing is done.)")
    desk.records.close()
    desk.records.open()
    would = [it.reason for it in desk.records.history() if it.event == enforcer.WOULD]
    assert len(would) == 3 and all(str(child) in (reason or "") for reason in would)


def test_what_came_to_its_senses_is_left_alone(
    hungry: Callable[..., tuple[Ruled, Kernel, int]],
) -> None:
    desk, _, child = hungry(cap="act")
    desk.pass_(GRACE - 1)
    desk.uses(0, child, GIB)
    desk.pass_(1)
    assert desk.notices() == []
    desk.uses(0, child, 20 * GIB)
    desk.pass_(GRACE - 1)
    assert not gone(child) and desk.acted() == []


def test_an_unreliable_device_is_no_ground_for_anything(
    hungry: Callable[..., tuple[Ruled, Kernel, int]],
) -> None:
    desk, _, child = hungry(cap="act")
    desk.source.devices[0].health = "unreliable"
    desk.pass_(GRACE * 2)
    assert desk.notices() == [] and not gone(child)


# -- who is never touched --------------------------------------------------------------------------


@pytest.mark.parametrize("doubt", ["strangers", "without_cuda"])
def test_what_is_not_proved_to_be_the_process_is_never_signalled(
    hungry: Callable[..., tuple[Ruled, Kernel, int]],
    doubt: str,
) -> None:
    desk, kernel, child = hungry(cap="act")
    getattr(desk.proof, doubt).add(child)
    desk.pass_(GRACE + 5 * PAUSE)
    assert not gone(child) and not gone(kernel.process.pid) and desk.acted() == []


@pytest.mark.parametrize("changed", ["start", "environment", "spared"])
@pytest.mark.parametrize("step", ["interrupt", "terminate", "kill"])
def test_whoever_has_that_pid_by_then_is_not_signalled(
    hungry: Callable[..., tuple[Ruled, Kernel, int]], changed: str, step: Any
) -> None:
    """The judgement is older than the signal: another may have the pid, or have come to it."""
    desk, _, child = hungry(cap="act")
    desk.pass_(1)
    (rung,) = desk.broker.rules.rungs.values()
    (target,) = rung.breach.targets
    breach = rung.breach
    if changed == "start":
        target = msgspec.structs.replace(target, start=(target.start or 0) + 1)
    elif changed == "spared":
        target = msgspec.structs.replace(target, spared="it draws on a screen")
    else:
        other = desk.kernel("other.ipynb")
        breach = msgspec.structs.replace(breach, key=Key("cap", other.id, breach.key.device))
    desk.broker.rules._take(enforcer.Order(step=step, breach=breach, target=target))
    assert not gone(child) and desk.acted() == [] and desk.notices("ended") == []


def test_a_bystander_is_never_touched_whatever_rule_acts(ruled: MakeRuled) -> None:
    rules = dict.fromkeys(("cap", "foreign_device", "idle", "lease", "quota"), "act")
    desk = ruled(cap_grace=0, foreign_device_grace=0, **rules)
    kernel = desk.kernel(process=desk.script(STUBBORN))
    kernel.attach(HALF)
    bystander = desk.process()
    desk.uses(0, kernel.process.pid, 20 * GIB)
    desk.uses(0, bystander.pid, 20 * GIB)
    desk.uses(1, bystander.pid, 20 * GIB)
    desk.pass_(5 * PAUSE)
    wait_for(lambda: gone(kernel.process.pid))
    assert not gone(bystander.pid)
    assert not any(str(bystander.pid) in reason for reason in desk.acted())


# -- a device that is not in the environment -------------------------------------------------------


def test_whoever_uses_a_device_that_was_not_granted_is_ended(ruled: MakeRuled) -> None:
    desk = ruled(foreign_device="act", foreign_device_grace=GRACE)
    kernel = desk.kernel(process=desk.script(CHILD))
    kernel.attach(Request(fraction=0.5, devices=("0",)))
    child = child_of(kernel.process)
    desk.uses(0, kernel.process.pid, GIB)
    desk.uses(1, child, GIB)
    desk.pass_(1)
    (notice,) = desk.notices("foreign_device")
    assert f"GPU 1 is used here by process {child}" in notice.message
    desk.pass_(GRACE + PAUSE)
    wait_for(lambda: gone(child))
    assert not gone(kernel.process.pid)


def test_a_grant_that_drains_and_a_kernel_that_nothing_is_hidden_from_are_no_breach(
    ruled: MakeRuled,
) -> None:
    desk = ruled(foreign_device="act", foreign_device_grace=0)
    draining = desk.kernel("draining.ipynb")
    draining.attach(WHOLE)
    draining.use(0, GIB)
    desk.pass_(1)
    draining.detach(cuda="initialized")
    free = desk.kernel("free.ipynb", unattached="all")
    free.use(1, GIB)
    desk.pass_(5)
    assert [it.state for it in draining.now.grants] == ["draining"]
    assert desk.notices("foreign_device") == []
    hidden = desk.kernel("hidden.ipynb")
    hidden.use(1, GIB)
    desk.pass_(1)
    assert [it.environment for it in desk.notices("foreign_device")] == [hidden.id]


# -- outside any environment -----------------------------------------------------------------------


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be an ordinary user, also where the tests are run by root."""
    monkeypatch.setattr("genv_jupyter.broker.rules.protection.FIRST_USER", 0)


def test_a_process_outside_is_told_of_and_ended_where_that_is_configured(
    ruled: MakeRuled, user: None
) -> None:
    desk = ruled(outside="act", outside_grace=GRACE)
    stranger = desk.process()
    desk.uses(0, stranger.pid, 3 * GIB)
    desk.pass_(1)
    (notice,) = desk.notices()
    assert notice.kind == "outside" and notice.environment is None
    assert f"process {stranger.pid} (sleep) with 3 GiB" in notice.message
    desk.pass_(GRACE)
    assert stranger.wait() == -signal.SIGINT
    desk.source.devices[0].processes = []
    desk.pass_(2)
    assert desk.notices("outside") == []


@pytest.mark.parametrize("why", ["graphics", "claimants", "without_cuda", "strangers", "system"])
def test_outsiders_that_may_be_somebodys_are_not_ended(
    ruled: MakeRuled, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = 10**9 if why == "system" else 0
    monkeypatch.setattr("genv_jupyter.broker.rules.protection.FIRST_USER", first)
    desk = ruled(outside="act", outside_grace=0)
    stranger = desk.process()
    desk.uses(0, stranger.pid, 3 * GIB, "graphics" if why == "graphics" else "compute")
    if why not in ("graphics", "system"):
        getattr(desk.proof, why).add(stranger.pid)
    desk.pass_(5 * PAUSE)
    assert not gone(stranger.pid) and desk.acted() == []
    if why in ("graphics", "without_cuda", "system"):
        assert desk.notices() == [], "nor is it blamed"


def test_a_name_of_the_driver_s_spares_nobody_who_only_took_it(
    ruled: MakeRuled, user: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = ruled(outside="act", outside_grace=0, cap="act", cap_grace=0)
    kernel = desk.kernel(process=desk.script(CHILD))
    kernel.attach(HALF)
    stranger, child, part = desk.process(), child_of(kernel.process), desk.process()
    for pid in (stranger.pid, child, part.pid):
        desk.uses(0, pid, 20 * GIB, name="nvidia-forged")
    powers, real = desk.broker.core.powers, desk.broker.core.powers.of_driver
    monkeypatch.setattr(powers, "of_driver", lambda pid: pid == part.pid or real(pid))
    desk.pass_(1)
    assert stranger.wait(30) == -signal.SIGINT
    wait_for(lambda: gone(child))
    assert not gone(part.pid)
    assert not any(str(part.pid) in it.message for it in desk.notices())


def test_a_host_acts_for_each_owner_and_never_for_root(
    ruled: MakeRuled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon of a host has everybody's rights, and uses them on what is each owner's alone."""
    desk = ruled(outside="act", outside_grace=0)
    core = desk.broker.core
    core.kind = "host"
    member, root = desk.process(), desk.process()
    monkeypatch.setattr(
        core.attribution, "uid_of", lambda pid, start: 1000 if pid == member.pid else 0
    )
    monkeypatch.setattr(desk.proof, "uids", lambda pid: (1000 if pid == member.pid else 0,) * 4)
    for process in (member, root):
        desk.uses(0, process.pid, GIB)
    desk.pass_(1)
    assert member.wait() == -signal.SIGINT and not gone(root.pid)
    whose = Principal(realm="local", id="1000", name="member")
    (notice,) = desk.broker.notices(whose)
    assert f"process {member.pid}" in notice.message
    assert desk.notices() == [] or desk.me.id == "1000", "nobody else is told"
    assert {it.owner for it in desk.records.history() if it.event == enforcer.ACTED} == {
        "local:1000"
    }


# -- idle ------------------------------------------------------------------------------------------

AFTER = 300


@pytest.fixture
def sleepy(ruled: MakeRuled) -> Callable[..., tuple[Ruled, Kernel]]:
    """A kernel that executes nothing and holds a device, on which it has memory."""

    def make(**rules: Any) -> tuple[Ruled, Kernel]:
        desk = ruled(idle_after=AFTER, idle_grace=GRACE, **rules)
        kernel = desk.kernel()
        kernel.attach(WHOLE)
        kernel.use(0, GIB)
        desk.source.devices[0].utilization = 0
        desk.tell(kernel.id, kernel_state="idle", idle_since=desk.broker.core.stamp())
        return desk, kernel

    return make


def test_idle_is_told_after_a_while_with_a_countdown_and_a_button_to_keep(
    sleepy: Callable[..., tuple[Ruled, Kernel]],
) -> None:
    desk, kernel = sleepy(idle="act")
    desk.pass_(AFTER)
    assert desk.notices() == []
    desk.pass_(1)
    (notice,) = desk.notices()
    assert notice.kind == "idle" and notice.actions == ("keep", "release", "dismiss")
    assert notice.until is not None
    assert (notice.until - notice.since).total_seconds() == GRACE
    desk.broker.patch(desk.me, kernel.id, EnvironmentPatch(keep=True))
    desk.pass_(1)
    assert desk.notices() == []
    desk.pass_(AFTER - 2)
    assert desk.notices() == [] and desk.wants() == []


def test_an_idle_kernel_gives_back_its_device_and_is_restarted(
    sleepy: Callable[..., tuple[Ruled, Kernel]],
) -> None:
    desk, kernel = sleepy(idle="act")
    desk.pass_(AFTER + GRACE)
    assert desk.wants() == [] and kernel.devices
    desk.pass_(1)
    (want,) = desk.wants()
    assert (want.action, want.kernel, want.idle) == ("restart", kernel.id, True)
    assert [it.state for it in kernel.now.grants] == ["draining"]
    assert "nothing had run here" in (kernel.now.reason or "").lower()
    kernel.restart()
    desk.pass_(1)
    assert kernel.now.grants == () and kernel.now.reason is None
    (ended,) = desk.notices()
    assert ended.kind == "ended" and "is restarted" in ended.message
    assert len(desk.acted()) == 1


def test_an_idle_kernel_without_cuda_gives_back_and_lives_on(ruled: MakeRuled) -> None:
    desk = ruled(idle="act", idle_after=AFTER, idle_grace=0)
    kernel = desk.kernel()
    kernel.attach(WHOLE)
    desk.tell(kernel.id, kernel_state="idle", idle_since=desk.broker.core.stamp())
    desk.pass_(AFTER + 2)
    assert [it.action for it in desk.wants()] == ["apply"]
    desk.applied(kernel.id)
    assert kernel.now.grants == () and not gone(kernel.process.pid)


def test_an_idle_kernel_is_shut_down_by_its_server(
    sleepy: Callable[..., tuple[Ruled, Kernel]],
) -> None:
    desk, kernel = sleepy(idle="act", idle_action="shutdown")
    desk.pass_(AFTER + GRACE + 1)
    (want,) = desk.wants()
    assert (want.action, want.idle) == ("shutdown", True)
    assert kernel.devices, "it holds them until it is gone"
    desk.end(kernel.process)
    desk.broker.end_kernel(desk.me, desk.server, kernel.id)
    desk.pass_(1)
    (ended,) = desk.notices()
    assert ended.kind == "ended" and "is shut down (idle)" in ended.message


def test_a_server_that_hears_of_it_too_late_does_nothing(
    sleepy: Callable[..., tuple[Ruled, Kernel]],
) -> None:
    desk, kernel = sleepy(idle="act", idle_action="shutdown")
    desk.pass_(AFTER + GRACE + 1)
    desk.tell(kernel.id, kernel_state="busy", idle_since=None)
    desk.pass_(31)
    assert desk.wants() == []


@pytest.mark.parametrize("why", ["busy", "use", "unknown use", "no server"])
def test_what_works_or_may_work_is_not_idle(
    sleepy: Callable[..., tuple[Ruled, Kernel]], why: str
) -> None:
    desk, kernel = sleepy(idle="act")
    if why == "busy":
        desk.tell(kernel.id, kernel_state="busy", idle_since=None)
    elif why == "no server":
        desk.end(desk.server_process)
    else:
        desk.source.devices[0].utilization = 7 if why == "use" else None
    desk.pass_(AFTER + GRACE + 5)
    assert desk.notices() == [] and desk.wants() == []


def test_never_a_kill_while_a_cell_runs(sleepy: Callable[..., tuple[Ruled, Kernel]]) -> None:
    desk, kernel = sleepy(idle="act")
    desk.pass_(AFTER + GRACE)
    rung = desk.broker.rules.rungs
    desk.tell(kernel.id, kernel_state="busy", idle_since=None)  # after the judgement
    (found,) = rung.values()
    order = enforcer.Order(step="restart", breach=found.breach)
    desk.broker.rules._take(order)
    assert desk.wants() == [] and desk.acted() == [] and kernel.devices


@pytest.mark.parametrize("action", ["restart", "shutdown"])
def test_a_cell_that_begins_while_the_action_is_written_down_wins(
    sleepy: Callable[..., tuple[Ruled, Kernel]], action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, kernel = sleepy(idle="act", idle_action=action)
    desk.pass_(AFTER + GRACE)
    append = desk.records.append

    def written(records: Any) -> None:
        append(records)
        desk.tell(kernel.id, kernel_state="busy", idle_since=None)

    monkeypatch.setattr(desk.records, "append", written)
    desk.pass_(1)
    monkeypatch.undo()
    assert len(desk.acted()) == 1 and desk.wants() == [] and kernel.devices
    desk.pass_(1)
    assert desk.notices() == []
    desk.records.close()
    desk.records.open()
    assert [it.event for it in desk.records.history()][-1] == enforcer.WITHHELD


# -- leases ----------------------------------------------------------------------------------------


def lease(desk: Ruled, kernel: Kernel, seconds: int) -> None:
    kernel.attach(Request(gpus=1, duration=seconds))
    kernel.use(0, GIB)


def test_a_lease_that_is_over_is_announced_and_then_ends(ruled: MakeRuled) -> None:
    desk = ruled(lease="act", lease_grace=GRACE)
    kernel = desk.kernel()
    lease(desk, kernel, 600)
    desk.pass_(599)
    (notice,) = desk.notices()
    assert notice.message.endswith(
        "1 min after its end what is held is given back, and the kernel is restarted where CUDA "
        "holds it."
    )
    desk.pass_(GRACE)
    (notice,) = desk.notices()
    assert notice.kind == "lease" and notice.until is not None
    assert (notice.until - desk.broker.core.stamp()).total_seconds() == 1
    assert desk.wants() == [] and kernel.devices
    desk.pass_(2)
    assert [(it.action, it.idle) for it in desk.wants()] == [("restart", False)]
    assert [it.state for it in kernel.now.grants] == ["draining"]
    assert "The lease of what is held here is over." in desk.acted()[0]


def test_a_lease_that_was_extended_in_its_grace_goes_on(ruled: MakeRuled) -> None:
    desk = ruled(lease="act", lease_grace=GRACE)
    kernel = desk.kernel()
    lease(desk, kernel, 600)
    desk.pass_(600 + GRACE - 5)
    desk.broker.patch(desk.me, kernel.id, EnvironmentPatch(duration="1h"))
    desk.pass_(60)
    assert desk.wants() == [] and kernel.devices and desk.acted() == []


def test_a_lease_warns_by_default(ruled: MakeRuled) -> None:
    desk = ruled()
    kernel = desk.kernel()
    lease(desk, kernel, 600)
    desk.pass_(900)
    assert kernel.devices and desk.wants() == [] and desk.acted() == []


def test_a_command_whose_lease_is_over_gives_back_and_is_ended(ruled: MakeRuled) -> None:
    from genv_jupyter.model import NewEnvironment

    desk = ruled(lease="act", lease_grace=0)
    child = desk.script(SLEEP)
    new = NewEnvironment(kind="command", pid=child.pid)
    made = desk.broker.create(desk.me, new).id
    desk.broker.attach(desk.me, made, Request(gpus=1, duration=60), cuda="not_initialized")
    desk.uses(0, child.pid, GIB)
    desk.pass_(62)
    assert [it.state for it in desk.broker.environment(desk.me, made).grants] == ["draining"]
    desk.pass_(PAUSE)
    assert child.wait() != 0
    assert [("give back" in it, "interrupted" in it) for it in desk.acted()] == [
        (True, False),
        (False, True),
    ]


# -- quotas ----------------------------------------------------------------------------------------


def test_over_a_quota_that_was_lowered_the_newest_goes(
    ruled: MakeRuled, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = ruled(quota="act", quota_grace=GRACE)
    old, new = desk.kernel("old.ipynb"), desk.kernel("new.ipynb")
    old.attach(WHOLE)
    desk.pass_(5)
    new.attach(WHOLE)
    new.use(1, GIB)
    desk.pass_(GRACE * 2)
    assert desk.notices() == []
    desk.broker.rules.scene.quota_of = lambda owner: (
        enforcer.Quota(devices=10_000) if owner == desk.me.key else None
    )
    desk.pass_(1)
    assert [(it.kind, it.environment) for it in desk.notices()] == [("quota", new.id)]
    desk.pass_(GRACE)
    assert [(it.action, it.kernel) for it in desk.wants() if it.action == "restart"] == [
        ("restart", new.id)
    ]
    assert old.devices and not new.devices


# -- after a crash ---------------------------------------------------------------------------------


def test_a_new_broker_begins_with_telling(
    hungry: Callable[..., tuple[Ruled, Kernel, int]],
) -> None:
    desk, _, child = hungry(cap="act")
    desk.pass_(GRACE - 1)
    desk.reopen()
    desk.pass_(GRACE - 1)
    assert not gone(child) and [it.kind for it in desk.notices()] == ["cap"]


def test_what_the_last_broker_did_is_told_by_the_next(ruled: MakeRuled) -> None:
    desk = ruled(cap="act", cap_grace=0)
    kernel = desk.kernel(process=desk.script(STUBBORN))
    kernel.attach(HALF)
    desk.uses(0, kernel.process.pid, 20 * GIB)
    desk.pass_(1 + PAUSE)
    (before,) = desk.notices("ended")
    desk.reopen()
    (after,) = desk.notices("ended")
    assert (after.message, after.environment) == (before.message, kernel.id)
    desk.pass_time(enforcer.RECENT + 1)
    desk.reopen()
    assert desk.notices("ended") == []
