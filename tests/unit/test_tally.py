"""What a broker counts: attaches by how long they took, and what rules have done."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import pytest
from traitlets.config import Config

from genv_jupyter.broker.config import BrokerConfig
from genv_jupyter.broker.tally import BOUNDS, Tally
from genv_jupyter.errors import OutOfRange, Unknown
from genv_jupyter.events import Figures
from genv_jupyter.model import Request
from tests.unit.brokers import HALF, Clock, bench


def actions(figures: Figures) -> dict[tuple[str, str], int]:
    return {(it.rule, it.action): it.count for it in figures.rules}


@pytest.mark.parametrize(
    ("seconds", "place"),
    [(0.0, 0), (0.004, 0), (0.25, BOUNDS.index(0.25)), (0.26, BOUNDS.index(0.5)), (99.0, -1)],
)
def test_an_attach_is_counted_where_it_belongs(seconds: float, place: int) -> None:
    clock = Clock()
    clock.now = 0.0
    tally = Tally(clock)
    with tally.attach():
        clock.now = seconds
    figures = tally.figures({}, {})
    assert figures.attach_seconds == seconds
    assert figures.attaches[place] == sum(figures.attaches) == 1
    assert len(figures.attaches) == len(figures.bounds) + 1
    assert list(accumulate(figures.attaches))[-1] == 1


def test_a_clock_that_goes_back_spoils_no_sum() -> None:
    clock = Clock()
    tally = Tally(clock)
    with tally.attach():
        clock.now -= 10
    assert tally.figures({}, {}).attach_seconds == 0


def test_attaches_are_timed_where_they_run_refused_ones_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bench(tmp_path) as desk:
        kernel = desk.kernel()
        real = desk.broker.queue.attach

        def slow(*args: object, **more: object) -> object:
            desk.pass_time(2)
            return real(*args, **more)  # type: ignore[arg-type]

        monkeypatch.setattr(desk.broker.queue, "attach", slow)
        kernel.attach(HALF)
        with pytest.raises(OutOfRange):
            kernel.attach(Request(gpus=3))
        with pytest.raises(Unknown):
            desk.broker.attach(desk.me, "nobody", HALF)
        figures = desk.broker.figures()
        assert figures.attaches[BOUNDS.index(2.5)] == 3
        assert figures.attach_seconds == 6


def test_a_rule_that_may_act_is_told_before_it_has(tmp_path: Path) -> None:
    rules = {"cap": "act", "idle": "act", "lease": "act", "quota": "warn", "dry_run": ["lease"]}
    with bench(tmp_path, config=BrokerConfig(Config({"Rules": rules}))) as desk:
        steps = {(it, 0) for it in actions(desk.broker.figures())}
        assert {key for key, _ in steps} == {
            ("cap", "interrupt"),
            ("cap", "terminate"),
            ("cap", "kill"),
            ("idle", "restart"),
            ("idle", "release"),
        }
        desk.broker.rules.acted["quota", "restart"] += 1  # by a configuration that was there before
        assert actions(desk.broker.figures())["quota", "restart"] == 1


def test_by_default_no_rule_acts(tmp_path: Path) -> None:
    with bench(tmp_path) as desk:
        assert desk.broker.figures().rules == ()
