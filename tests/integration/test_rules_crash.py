"""Kill the broker in the middle of every rule: nothing is half, and the next begins with telling.

A forked process has the broker and dies of SIGKILL at a failpoint; the processes that play server
and kernels live on. What is found afterwards must be as it was before the step, or as after it,
with the owner told; and the next broker must come to the same end.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from genv_jupyter.broker import failpoints
from genv_jupyter.broker.rules.quota import Quota
from genv_jupyter.model import NewEnvironment, Request
from tests.unit.brokers import GIB, Kernel
from tests.unit.ruled import DEAF, PAUSE, STUBBORN, Ruled, gone, wait_for

GRACE = 20
STEPS = ["before_rule_step", "inside_rule_step", "after_rule_step"]
RELEASE = ["before_release", "inside_release", "after_release"]


class Case(NamedTuple):
    """A rule, what plays it, and what is true once it has acted to the end."""

    rules: dict[str, object]
    play: Callable[[Ruled], Kernel]
    kernel_goes: bool


def greedy(desk: Ruled) -> Kernel:
    kernel = desk.kernel(process=desk.script(STUBBORN))
    kernel.attach(Request(fraction=0.5, devices=("0",)))
    desk.uses(0, kernel.process.pid, 20 * GIB)
    return kernel


def astray(desk: Ruled) -> Kernel:
    kernel = greedy(desk)
    desk.source.devices[0].processes = []
    desk.uses(1, kernel.process.pid, GIB)
    return kernel


def stray(desk: Ruled) -> Kernel:
    kernel = desk.kernel()
    process = desk.script(DEAF)
    desk.uses(0, process.pid, GIB)
    return Kernel(desk, kernel.id, process)


def holding(desk: Ruled) -> Kernel:
    kernel = desk.kernel()
    kernel.attach(Request(gpus=1, duration=10 if "lease" in desk.rules else None))
    kernel.use(0, GIB)
    desk.source.devices[0].utilization = 0
    desk.tell(kernel.id, kernel_state="idle", idle_since=desk.broker.core.stamp())
    return kernel


def command(desk: Ruled) -> Kernel:
    process = desk.script(DEAF)
    new = NewEnvironment(kind="command", pid=process.pid)
    made = desk.broker.create(desk.me, new).id
    desk.broker.attach(desk.me, made, Request(gpus=1, duration=10), cuda="not_initialized")
    desk.uses(0, process.pid, GIB)
    return Kernel(desk, made, process)


CASES = {
    "cap": Case({"cap": "act", "cap_grace": GRACE}, greedy, True),
    "foreign_device": Case({"foreign_device": "act", "foreign_device_grace": GRACE}, astray, True),
    "outside": Case({"outside": "act", "outside_grace": GRACE}, stray, True),
    "idle": Case({"idle": "act", "idle_after": 10, "idle_grace": GRACE}, holding, False),
    "lease": Case({"lease": "act", "lease_grace": GRACE}, holding, False),
    "lease of a command": Case({"lease": "act", "lease_grace": GRACE}, command, True),
    "quota": Case({"quota": "act", "quota_grace": GRACE}, holding, False),
}
LONG = ("cap", "lease of a command")
"""Those whose every step is cut: the others climb the same ladder."""

CUTS = [
    (case, point, number)
    for case in CASES
    for point in (STEPS if case in ("cap", "foreign_device", "outside") else STEPS + RELEASE)
    for number in ((1, 2, 3) if point in STEPS and case in LONG else (1,))
]


@pytest.fixture
def desk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Ruled]:
    made = Ruled(tmp_path, **CASES[request.param].rules)
    yield made
    made.close()


def prepare(desk: Ruled, case: str) -> None:
    """What no file says: a broker has it from its configuration, and from servers that return."""
    for environment in desk.broker.environments(desk.me):
        if case == "idle" and environment.kind == "kernel":
            desk.tell(environment.id, kernel_state="idle", idle_since=desk.broker.core.stamp(0.0))
    if case == "quota":
        desk.broker.rules.scene.quota_of = lambda owner: Quota(devices=0)


def crash(desk: Ruled, case: str, spec: str) -> bool:
    """Let time pass in a process that dies where it is armed; say whether it did."""
    desk.broker.books.ledger.close()
    desk.records.close()
    child = os.fork()
    if child == 0:
        try:
            desk.broker = desk.open()
            prepare(desk, case)
            failpoints.arm(spec)
            desk.pass_(10 + GRACE + 5 * PAUSE)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    desk.broker = desk.open()
    prepare(desk, case)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def check_whole(desk: Ruled, kernel: Kernel, case: Case) -> None:
    """Nothing is half: the books are as before or as after, and who was ended is told of."""
    environments = {it.id: it for it in desk.broker.environments(desk.me)}
    grants = environments[kernel.id].grants if kernel.id in environments else ()
    states = {grant.state for grant in grants}
    assert states in (set(), {"granted"}, {"draining"})
    desk.broker.renew_wants(desk.server)
    promised = {it.kernel for it in desk.wants() if it.action == "restart"}
    served = not case.kernel_goes
    assert not served or (kernel.id in promised) == (states == {"draining"})
    told = {it.environment for it in desk.notices("ended")}
    if gone(kernel.process.pid) or states == {"draining"}:
        assert desk.acted() and (told & {kernel.id, None})


@pytest.mark.parametrize(
    ("desk", "point", "number"), CUTS, indirect=["desk"], ids=lambda it: str(it).replace(" ", "_")
)
def test_killed_in_the_middle_of_a_rule(
    desk: Ruled,
    point: str,
    number: int,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("genv_jupyter.broker.rules.protection.FIRST_USER", 0)
    name = request.node.callspec.params["desk"]
    case = CASES[name]
    bystander = desk.process()
    desk.uses(1, bystander.pid, GIB, "graphics")
    kernel = case.play(desk)
    assert crash(desk, name, f"{point}:kill:{number}"), f"no {number}. pass of {point}"
    check_whole(desk, kernel, case)
    acted = len(desk.acted())
    if not gone(kernel.process.pid) and not desk.broker.environment(desk.me, kernel.id).grants:
        assert name == "outside"
    desk.pass_(GRACE - 1)
    if name != "idle":
        assert len(desk.acted()) == acted, "the next broker acts before the grace is over"
    desk.pass_(10 + GRACE + 5 * PAUSE)
    if case.kernel_goes:
        wait_for(lambda: gone(kernel.process.pid))
    else:
        states = [it.state for it in kernel.now.grants]
        assert states in ([], ["draining"]) and not gone(kernel.process.pid)
    assert not gone(bystander.pid)
    assert desk.notices("ended")


@pytest.mark.parametrize("desk", ["idle"], indirect=True)
@pytest.mark.parametrize("point", ["before_rule_step", "after_rule_step"])
def test_killed_while_a_kernel_is_to_be_shut_down(desk: Ruled, point: str) -> None:
    desk.rules["idle_action"] = "shutdown"
    kernel = holding(desk)
    assert crash(desk, "idle", f"{point}:kill:1")
    assert kernel.devices and desk.wants() == [], "nobody has heard of it: it begins anew"
    desk.pass_(10 + GRACE)
    assert desk.wants() == []
    desk.pass_(2)
    assert [it.action for it in desk.wants()] == ["shutdown"]
