"""What happens between the judgement of a rule and its step: whoever reacts in time wins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from genv_jupyter.broker.config import BrokerConfig
from genv_jupyter.broker.rules import enforcer
from genv_jupyter.model import EnvironmentPatch, Request
from tests.unit.brokers import GIB, HALF, WHOLE, Kernel
from tests.unit.ruled import CHILD, GRACE, PAUSE, Ruled, child_of, gone

MakeRuled = Callable[..., Ruled]
AFTER = 300
TEN_MINUTES = msgspec.structs.replace(WHOLE, duration=600)


@pytest.fixture
def ruled(tmp_path: Path) -> Iterator[MakeRuled]:
    made: list[Ruled] = []

    def make(**rules: Any) -> Ruled:
        made.append(Ruled(tmp_path, **rules))
        return made[-1]

    yield make
    for desk in made:
        desk.close()


class Moment:
    """Has something happen right before a step, or while it is being written down."""

    def __init__(self, desk: Ruled, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.desk, self.when, self.monkeypatch = desk, when, monkeypatch

    def pass_(self, what: Callable[[], Any]) -> None:
        """Let a second pass in which that happens."""
        name = "_take" if self.when == "before" else "append"
        place: Any = self.desk.broker.rules if self.when == "before" else self.desk.records
        real = getattr(place, name)

        def first(argument: Any) -> None:
            if self.when == "written":
                real(argument)
            what()
            if self.when == "before":
                real(argument)

        with self.monkeypatch.context() as patched:
            patched.setattr(place, name, first)
            self.desk.pass_(1)


@pytest.fixture(params=["before", "written"])
def moment(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda desk: Moment(desk, request.param, monkeypatch)


def nothing_was_done(desk: Ruled, kernel: Kernel) -> None:
    assert desk.wants() == [] and kernel.devices
    desk.pass_(1)
    assert desk.notices("ended") == []
    desk.reopen()
    assert desk.notices("ended") == [], "nor does the next broker say so"


def test_a_lease_that_is_extended_in_the_last_moment_goes_on(
    ruled: MakeRuled, moment: Callable[[Ruled], Moment]
) -> None:
    desk = ruled(lease="act", lease_grace=GRACE)
    kernel = desk.kernel()
    kernel.attach(TEN_MINUTES)
    kernel.use(0, GIB)
    desk.pass_(600 + GRACE - 1)
    moment(desk).pass_(
        lambda: desk.broker.patch(desk.me, kernel.id, EnvironmentPatch(duration="1h"))
    )
    nothing_was_done(desk, kernel)


@pytest.mark.parametrize("action", ["restart", "shutdown"])
def test_what_is_kept_in_the_last_moment_is_kept(
    ruled: MakeRuled, moment: Callable[[Ruled], Moment], action: str
) -> None:
    desk = ruled(idle="act", idle_after=AFTER, idle_grace=GRACE, idle_action=action)
    kernel = idle_kernel(desk)
    desk.pass_(AFTER + GRACE)
    moment(desk).pass_(lambda: desk.broker.patch(desk.me, kernel.id, EnvironmentPatch(keep=True)))
    nothing_was_done(desk, kernel)


def idle_kernel(desk: Ruled) -> Kernel:
    kernel = desk.kernel()
    kernel.attach(WHOLE)
    kernel.use(0, GIB)
    desk.source.devices[0].utilization = 0
    desk.tell(kernel.id, kernel_state="idle", idle_since=desk.broker.core.stamp())
    return kernel


def test_keep_takes_back_a_shutdown_that_its_server_has_not_heard_of(ruled: MakeRuled) -> None:
    desk = ruled(idle="act", idle_after=AFTER, idle_grace=0, idle_action="shutdown")
    kernel = idle_kernel(desk)
    desk.pass_(AFTER + 1)
    desk.broker.patch(desk.me, kernel.id, EnvironmentPatch(keep=True))
    assert desk.wants() == [] and kernel.devices


def test_a_kernel_in_the_middle_of_a_restart_is_not_idle(ruled: MakeRuled) -> None:
    desk = ruled(idle="act", idle_after=AFTER, idle_grace=0)
    kernel = idle_kernel(desk)
    desk.pass_(AFTER)
    desk.tell(kernel.id, phase="restarting")
    desk.end(kernel.process)
    desk.source.devices[0].processes = []
    desk.pass_(5)
    desk.tell(kernel.id, phase="starting")
    desk.pass_(5)
    assert desk.acted() == [] and [it.state for it in kernel.now.grants] == ["granted"]


def test_who_asks_for_more_in_the_last_moment_is_not_over_the_cap(
    ruled: MakeRuled, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = ruled(cap="act", cap_grace=GRACE)
    kernel = desk.kernel(process=desk.script(CHILD))
    kernel.attach(HALF)
    child = child_of(kernel.process)
    desk.uses(0, kernel.process.pid, GIB)
    desk.uses(0, child, 20 * GIB)
    desk.pass_(GRACE)
    Moment(desk, "before", monkeypatch).pass_(
        lambda: kernel.attach(Request(devices=("0",), memory="22GiB"), cuda="unknown")
    )
    assert kernel.now.grants[0].memory == 22 * GIB
    assert desk.acted() == [] and not gone(child)


def test_a_quota_that_is_raised_in_the_last_moment_counts(
    ruled: MakeRuled, moment: Callable[[Ruled], Moment]
) -> None:
    desk = ruled(quota="act", quota_grace=GRACE)
    kernel = desk.kernel()
    kernel.attach(WHOLE)
    kernel.use(0, GIB)
    scene = desk.broker.rules.scene
    scene.quota_of = lambda owner: enforcer.Quota(devices=0)
    desk.pass_(GRACE)
    moment(desk).pass_(lambda: setattr(scene, "quota_of", lambda owner: None))
    nothing_was_done(desk, kernel)


def test_a_rule_that_begins_to_act_begins_with_a_countdown(ruled: MakeRuled) -> None:
    desk = ruled(cap="act", dry_run=["cap"], cap_grace=GRACE)
    kernel = desk.kernel(process=desk.script(CHILD))
    kernel.attach(HALF)
    child = child_of(kernel.process)
    desk.uses(0, kernel.process.pid, GIB)
    desk.uses(0, child, 20 * GIB)
    desk.pass_(GRACE + 5 * PAUSE)
    assert not gone(child) and desk.notices()[0].until is None
    settings = {"cap_slack": 0, "patience": 0, "pause": PAUSE, "cap": "act", "cap_grace": GRACE}
    desk.broker.obey(BrokerConfig(enforcer_config(settings)))
    desk.pass_(1)
    (notice,) = desk.notices()
    assert notice.until is not None and (notice.until - notice.since).total_seconds() == GRACE
    desk.pass_(GRACE - 1)
    assert desk.acted() == [] and not gone(child)
    desk.pass_(1)
    assert len(desk.acted()) == 1


def enforcer_config(rules: dict[str, Any]) -> Any:
    from traitlets.config import Config

    return Config({"Rules": rules})


def over_the_cap(desk: Ruled) -> int:
    kernel = desk.kernel(process=desk.script(CHILD))
    kernel.attach(HALF)
    child = child_of(kernel.process)
    desk.uses(0, kernel.process.pid, GIB)
    desk.uses(0, child, 20 * GIB)
    return child


def test_while_the_driver_hangs_nothing_is_done_by_what_it_said_before(ruled: MakeRuled) -> None:
    desk = ruled(cap="act", cap_grace=GRACE)
    child = over_the_cap(desk)
    desk.pass_(GRACE)
    for _ in range(5):  # rounds without a reading
        desk.pass_time(PAUSE)
        desk.broker.tick_rules()
    assert desk.acted() == [] and not gone(child)
    desk.pass_(1)
    assert len(desk.acted()) == 1


def test_who_has_ended_since_the_reading_breaks_no_rule(ruled: MakeRuled) -> None:
    desk = ruled(cap="act", cap_grace=0)
    kernel = desk.kernel()
    kernel.attach(HALF)
    kernel.use(0, 20 * GIB)
    desk.tick(1)
    desk.end(kernel.process)
    desk.broker.end_kernel(desk.me, desk.server, kernel.id)
    desk.broker.tick_rules()
    assert desk.acted() == [] and desk.notices() == []


@pytest.mark.parametrize("whose", [None, "another's"])
def test_who_is_not_proved_to_be_a_member_any_more_is_left_alone(
    ruled: MakeRuled, monkeypatch: pytest.MonkeyPatch, whose: str | None
) -> None:
    desk = ruled(cap="act", cap_grace=0)
    child = over_the_cap(desk)
    attribution = desk.broker.core.attribution
    Moment(desk, "before", monkeypatch).pass_(
        lambda: monkeypatch.setattr(attribution, "environment_of", lambda pid: whose)
    )
    assert desk.acted() == [] and not gone(child)


# -- what is no more -------------------------------------------------------------------------------


def test_a_breach_on_a_device_that_is_gone_for_good_is_not_told_for_ever(
    ruled: MakeRuled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("genv_jupyter.broker.rules.protection.FIRST_USER", 0)
    desk = ruled()
    stranger = desk.process()
    desk.uses(1, stranger.pid, GIB)
    desk.pass_(1)
    assert [it.kind for it in desk.notices()] == ["outside"]
    del desk.source.devices[1]
    desk.end(stranger)
    desk.pass_(2)
    assert desk.notices() == [] and desk.broker.rules.rungs == {}


@pytest.mark.parametrize("how", ["released", "ended"])
def test_a_breach_is_over_with_its_grant_or_environment_though_the_device_is_lost(
    ruled: MakeRuled, how: str
) -> None:
    desk = ruled()
    kernel = desk.kernel()
    kernel.attach(HALF)
    kernel.use(0, 20 * GIB)
    desk.pass_(1)
    assert [it.kind for it in desk.notices()] == ["cap"]
    desk.source.devices[0].health = "lost"
    desk.pass_(2)
    assert [it.kind for it in desk.notices()] == ["cap"], "it is not known to be over"
    if how == "released":
        kernel.detach(cuda="initialized")
    else:
        desk.end(kernel.process)
        desk.broker.end_kernel(desk.me, desk.server, kernel.id)
    desk.pass_(2)
    assert desk.notices() == [] and desk.broker.rules.rungs == {}


def test_what_was_written_down_and_not_done_is_not_told_by_the_next_broker(
    ruled: MakeRuled, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = ruled(cap="act", cap_grace=0)
    kernel = desk.kernel(process=desk.script(CHILD))
    kernel.attach(HALF)
    child = child_of(kernel.process)
    desk.uses(0, kernel.process.pid, GIB)
    desk.uses(0, child, 20 * GIB)
    monkeypatch.setattr(enforcer.processes, "send", lambda *_: False)  # it has just ended
    desk.pass_(1)
    monkeypatch.undo()
    assert len(desk.acted()) == 1
    desk.reopen()
    assert desk.notices("ended") == []
    assert desk.records.history()[-1].event == enforcer.WITHHELD
