"""The ladder: tell, wait, interrupt, terminate, kill; and when it begins anew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genv_jupyter.broker.rules.breaches import Breach, Key, Target
from genv_jupyter.broker.rules.ladder import Order, Rungs, Terms, climb, next_at

ACT = Terms(mode="act", grace=60, pause=10, patience=5)
KEY = Key("cap", "here", "GPU-1")
IDLE = Key("idle", "here")


def breach(*pids: int, key: Key = KEY, whole: bool = False) -> Breach:
    targets = tuple(Target(pid=pid, start=pid) for pid in pids)
    return Breach(key=key, said="too much", hint="", targets=targets, whole=whole)


class Climb:
    """A ladder over time."""

    def __init__(self, terms: Terms = ACT, **more: Any) -> None:
        self.terms, self.more = terms, more
        self.rungs: Rungs = {}

    def at(self, now: float, *breaches: Breach, **more: Any) -> list[Order]:
        terms = dict.fromkeys(("cap", "idle", "lease"), self.terms)
        self.rungs, orders = climb(
            self.rungs,
            breaches,
            terms,
            now,
            **{**self.more, **more},  # type: ignore[arg-type]
        )
        return orders

    def steps(self, now: float, *breaches: Breach, **more: Any) -> list[tuple[int | None, str]]:
        orders = self.at(now, *breaches, **more)
        return [(None if it.target is None else it.target.pid, it.step) for it in orders]

    @property
    def told(self) -> bool:
        return any(it.told for it in self.rungs.values())


def test_each_step_waits_for_its_time() -> None:
    ladder = Climb()
    seen = {now: ladder.steps(now, breach(1)) for now in range(100)}
    assert {now: steps for now, steps in seen.items() if steps} == {
        65: [(1, "interrupt")],
        75: [(1, "terminate")],
        85: [(1, "kill")],
        95: [(1, "kill")],
    }


def test_it_is_told_when_it_has_lasted_and_the_grace_begins_then() -> None:
    ladder = Climb()
    for now, told in ((0, False), (4, False), (5, True)):
        ladder.at(now, breach(1))
        assert ladder.told is told
    assert next_at(ladder.rungs[KEY], ACT) == 65
    ladder.at(65, breach(1))
    assert next_at(ladder.rungs[KEY], ACT) is None, "it has begun: there is no countdown any more"


@pytest.mark.parametrize(("mode", "told"), [("off", False), ("warn", True)])
def test_nothing_is_done_where_it_is_off_or_a_warning(mode: Any, told: bool) -> None:
    ladder = Climb(Terms(mode=mode, grace=0, pause=0))
    assert [ladder.at(now, breach(1)) for now in range(50)] == [[]] * 50
    assert ladder.told is told


def test_what_is_over_is_forgotten() -> None:
    ladder = Climb()
    for now in range(80):
        ladder.at(now, breach(1))
    assert ladder.at(80) == [] and ladder.rungs == {}
    assert ladder.steps(81, breach(1)) == [] and not ladder.told


def test_each_process_is_asked_before_it_is_killed() -> None:
    ladder = Climb()
    for now in range(76):
        ladder.at(now, breach(1))
    assert ladder.steps(80, breach(2)) == [(2, "interrupt")]
    assert ladder.steps(90, breach(1, 2)) == [(1, "kill"), (2, "terminate")]
    # The same pid with another start is another process.
    other = Breach(key=KEY, said="", hint="", targets=(Target(pid=2, start=99),))
    assert ladder.steps(100, other) == [(2, "interrupt")]
    assert ladder.steps(199, other) == [(2, "terminate")]
    assert ladder.steps(200, breach(2)) == [(2, "interrupt")], "by then it is forgotten"


def test_two_that_take_turns_at_being_the_largest_do_not_begin_anew_each_time() -> None:
    ladder = Climb()
    steps = {now: ladder.steps(now, breach(1 + now % 2)) for now in range(100)}
    seen = [(pid, step) for at in steps.values() for pid, step in at]
    assert [step for pid, step in seen if pid == 1][:3] == ["interrupt", "terminate", "kill"]
    assert [step for pid, step in seen if pid == 2][:3] == ["interrupt", "terminate", "kill"]


@pytest.mark.parametrize(
    "before",
    [
        Terms(mode="warn", grace=60, pause=10, patience=5),
        Terms(mode="act", grace=60, pause=10, patience=5, dry=True),
        Terms(mode="act", grace=3600, pause=10, patience=5),
    ],
    ids=["a warning", "a dry run", "a longer grace"],
)
def test_under_terms_that_nobody_was_told_the_grace_begins_anew(before: Terms) -> None:
    ladder = Climb(before)
    for now in range(500):
        ladder.at(now, breach(1))
    ladder.terms = ACT
    steps = {now: ladder.steps(now, breach(1)) for now in range(500, 600)}
    assert {now: it for now, it in steps.items() if it} == {
        560: [(1, "interrupt")],
        570: [(1, "terminate")],
        580: [(1, "kill")],
        590: [(1, "kill")],
    }


def test_what_is_not_known_now_stays_and_gets_its_whole_grace_again() -> None:
    ladder = Climb()
    ladder.at(0, breach(1))
    ladder.at(5, breach(1))
    assert ladder.at(64, unsure=lambda key: True) == [] and ladder.told
    assert ladder.at(65, breach(1)) == []
    assert ladder.steps(124, breach(1)) == [(1, "interrupt")]


def test_a_breach_without_anybody_to_end_is_told_and_no_more() -> None:
    ladder = Climb()
    assert [ladder.at(now, breach()) for now in range(200)] == [[]] * 200
    assert ladder.told and next_at(ladder.rungs[KEY], ACT) is None


def test_a_kernel_is_restarted_once_and_again_only_when_that_was_not_heard() -> None:
    ladder = Climb(Terms(mode="act", grace=30, pause=1, action="restart"))
    whole = breach(1, key=IDLE, whole=True)
    seen = {now: ladder.steps(now, whole) for now in range(100)}
    assert {now: steps for now, steps in seen.items() if steps} == {
        30: [(None, "restart")],
        90: [(None, "restart")],
    }


def test_without_a_server_it_is_taken_back_and_then_the_processes_follow() -> None:
    terms = Terms(mode="act", grace=30, pause=10, action="shutdown")
    ladder = Climb(terms, served=lambda environment: False)
    whole = breach(1, key=Key("lease", "here"), whole=True)
    seen = {now: ladder.steps(now, whole) for now in range(75)}
    assert {now: steps for now, steps in seen.items() if steps} == {
        30: [(None, "release")],
        40: [(1, "interrupt")],
        50: [(1, "terminate")],
        60: [(1, "kill")],
        70: [(1, "kill")],
    }


def test_a_dry_run_says_each_step_once() -> None:
    ladder = Climb(Terms(mode="act", grace=0, pause=1, dry=True))
    orders = [it for now in range(20) for it in ladder.at(now, breach(1))]
    assert [it.step for it in orders] == ["interrupt", "terminate", "kill"]
    assert all(it.dry for it in orders)
    ladder = Climb(Terms(mode="act", grace=0, pause=1, dry=True, action="restart"))
    orders = [it for now in range(200) for it in ladder.at(now, breach(key=IDLE, whole=True))]
    assert [it.step for it in orders] == ["restart"]


sights = st.lists(
    st.tuples(st.lists(st.integers(1, 3), max_size=3, unique=True), st.booleans()), max_size=60
)


@given(sights, st.integers(0, 8), st.integers(1, 5), st.integers(0, 4))
def test_nobody_is_killed_unasked_or_without_the_whole_grace(
    seen: Sequence[tuple[list[int], bool]], grace: int, pause: int, patience: int
) -> None:
    """Whatever is seen when: a kill follows a terminate, that an interrupt, that the telling."""
    ladder = Climb(Terms(mode="act", grace=grace, pause=pause, patience=patience))
    last: dict[int, tuple[str, int]] = {}
    since: int | None = None
    before = {"terminate": ("interrupt",), "kill": ("terminate", "kill")}
    for now, (pids, known) in enumerate(seen):
        found = [breach(*pids)] if pids and known else []
        steps = ladder.steps(now, *found, unsure=lambda key, known=known: not known)
        since = now if since is None and found else since
        if known and not found:
            since, last = None, {}
        for pid, step in steps:
            assert pid is not None and found and since is not None
            assert now - since >= grace + patience
            if step != "interrupt":
                assert last[pid][0] in before[step] and now - last[pid][1] >= pause
            last[pid] = step, now
