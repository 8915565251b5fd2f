"""Kill the broker at every step: what was answered is there, what was not is whole or absent.

The same script of verbs runs in a forked process that SIGKILL ends at a failpoint. The state that
is found afterwards must be the one before or the one after the verb that was cut off, the verb
must then succeed again, and no reservation may be left.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from genv_jupyter.broker import failpoints
from genv_jupyter.model import Request
from tests.unit.brokers import Bench

KERNELS = [str(uuid.UUID(int=number)) for number in (1, 2, 3)]
SERVER = str(uuid.UUID(int=9))
State = dict[str, list[tuple[object, ...]]]
Verb = Callable[[Bench], object]
HTTP_ONLY = {"before_answer"}
FENCED = {"before_fence", "after_fence"}
"""Simulated devices need none: ``test_mps_crash`` has them."""
RULES = {"before_rule_step", "inside_rule_step", "after_rule_step"}
"""No verbs: ``test_rules_crash`` has them."""


def _start(number: int) -> Verb:
    def verb(bench: Bench) -> object:
        return bench.tell(KERNELS[number], phase="starting", launch=1)

    return verb


def _run(number: int) -> Verb:
    def verb(bench: Bench) -> object:
        return bench.tell(
            KERNELS[number], phase="running", launch=1, pid=bench.children[number + 1].pid
        )

    return verb


def _attach(number: int, request: Request) -> Verb:
    def verb(bench: Bench) -> object:
        return bench.broker.attach(bench.me, KERNELS[number], request, cuda="not_initialized")

    return verb


def _detach(number: int) -> Verb:
    def verb(bench: Bench) -> object:
        return bench.broker.detach(bench.me, KERNELS[number], cuda="not_initialized")

    return verb


SCRIPT: list[tuple[str, Verb]] = [
    ("start", _start(0)),
    ("run", _run(0)),
    ("start again", _start(1)),
    ("run again", _run(1)),
    ("attach whole", _attach(0, Request(gpus=1))),
    ("attach part", _attach(1, Request(memory="4G"))),
    ("resize", _attach(1, Request(fraction=0.5))),
    ("applied", lambda b: b.applied(KERNELS[1])),
    ("release", _detach(0)),
    ("let go", lambda b: b.applied(KERNELS[0])),
    ("move", _attach(1, Request(devices=("0",)))),
    ("promise", lambda b: b.broker.restart(b.me, KERNELS[1])),
    ("restart", lambda b: b.tell(KERNELS[1], phase="restarting", launch=1)),
    ("start the third", _start(2)),
    ("attach at start", _attach(2, Request(fraction=0.25))),
    ("wait", _attach(0, Request(gpus=1, wait="1h", duration="2h"))),
    ("make room", _detach(1)),
    ("room", lambda b: b.applied(KERNELS[1])),
    ("serve", lambda b: b.broker.queue.round()),
    ("take it up", lambda b: b.applied(KERNELS[0])),
    ("wait for more", _attach(1, Request(gpus=2, wait="1h"))),
    ("leave", lambda b: _leave(b)),
]


def _leave(bench: Bench) -> None:
    for ticket in bench.broker.tickets(bench.me):
        bench.broker.queue.leave(bench.me, ticket.id)


def state_of(bench: Bench) -> State:
    """What is there, also for a server that comes back and asks what is wanted of it."""
    bench.broker.renew_wants(SERVER)
    wants = bench.broker.take_wants(SERVER)
    promised = {want.kernel for want in wants if want.action == "restart"}
    places = {it.environment: (it.state, it.position) for it in bench.broker.tickets(bench.me)}
    return {
        environment.id: [
            (environment.state, repr(environment.request), environment.id in promised),
            (places.get(environment.id), environment.expires is not None),
            *sorted(
                (g.device, g.memory, g.compute, g.exclusive, g.state, g.applied)
                for g in environment.grants
            ),
        ]
        for environment in bench.broker.environments(bench.me)
    }


@pytest.fixture(scope="module")
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    """The server and the kernels: they live through every crash of the broker."""
    children = [subprocess.Popen(["sleep", "600"]) for _ in range(3)]
    yield children
    for child in children:
        child.kill()
        child.wait()


@pytest.fixture
def fresh(
    tmp_path: Path, processes: list[subprocess.Popen[bytes]]
) -> Iterator[Callable[[], Bench]]:
    made: list[Bench] = []

    def make() -> Bench:
        path = tmp_path / f"{len(made)}.sqlite"
        made.append(Bench(path, server=SERVER, children=processes))
        return made[-1]

    yield make
    for bench in made:
        bench.broker.close()


def expected_states(bench: Bench) -> list[State]:
    states = [state_of(bench)]
    for _, verb in SCRIPT:
        verb(bench)
        states.append(state_of(bench))
    return states


def crash(bench: Bench, arm: Callable[[Bench], None]) -> int:
    """Run the script in a child that dies where it is armed; return how many verbs it answered."""
    read, write = os.pipe()
    bench.broker.books.ledger.close()
    child = os.fork()
    if child == 0:
        try:
            os.close(read)
            bench.broker = bench.open()
            arm(bench)
            for _, verb in SCRIPT:
                verb(bench)
                os.write(write, b".")
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answers:
        answered = len(answers.read())
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
        assert answered == len(SCRIPT), "a verb failed instead of being cut off"
    bench.broker = bench.open()
    return answered


def check(bench: Bench, states: list[State], answered: int) -> None:
    found = state_of(bench)
    cut = min(answered + 1, len(SCRIPT))
    assert found in (states[answered], states[cut]), f"half of {SCRIPT[answered][0]!r} was found"
    assert "reserved" not in {
        grant.state for rows in bench.broker.books.on_device.values() for grant in rows.values()
    }
    for number in range(answered, len(SCRIPT)):
        SCRIPT[number][1](bench)
    assert state_of(bench) == states[-1]


def run(fresh: Callable[[], Bench], states: list[State], arm: str | Callable[[Bench], None]) -> int:
    bench = fresh()
    answered = crash(bench, (lambda _: failpoints.arm(arm)) if isinstance(arm, str) else arm)
    if answered < len(SCRIPT):
        check(bench, states, answered)
    return answered


@pytest.mark.parametrize("name", sorted(set(failpoints.NAMES) - HTTP_ONLY - FENCED - RULES))
def test_killed_at_a_failpoint_nothing_is_lost_or_half(
    fresh: Callable[[], Bench], name: str
) -> None:
    states = expected_states(fresh())
    cut: list[int] = []
    for number in range(1, len(SCRIPT) + 2):
        answered = run(fresh, states, f"{name}:kill:{number}")
        if answered == len(SCRIPT):
            break
        cut.append(answered)
    assert cut, f"no verb passes {name}"


def test_killed_between_any_two_statements_nothing_is_lost_or_half(
    fresh: Callable[[], Bench],
) -> None:
    states = expected_states(fresh())
    cut = 0
    for number in itertools.count(1):

        def arm(bench: Bench, left: int = number) -> None:
            passed = itertools.count(1)

            def before(*_: object) -> None:
                if next(passed) == left:
                    os.kill(os.getpid(), signal.SIGKILL)

            bench.broker.books.ledger.trace = before

        if run(fresh, states, arm) == len(SCRIPT):
            break
        cut = number
    assert cut > 3 * len(SCRIPT), "every verb is a begin, a commit, and something between"


def test_killed_at_random_nothing_is_lost_or_half(fresh: Callable[[], Bench]) -> None:
    states = expected_states(fresh())
    choice = random.Random(20)
    crashes = 0
    for _ in range(200):
        crashes += run(fresh, states, f"*:kill:{choice.randint(1, 45)}") < len(SCRIPT)
    assert crashes > 100
