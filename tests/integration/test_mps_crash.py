"""Kill the broker while an MPS daemon is prepared: reservations go, daemons are taken over."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from genv_jupyter.broker import failpoints
from tests.debian import unpacked
from tests.integration import test_crash
from tests.integration.mps_bench import MpsBench
from tests.integration.test_crash import SCRIPT, SERVER, State, expected_states, processes, run

__all__ = ["processes"]

FENCED = sorted(test_crash.FENCED)


@pytest.fixture
def fresh(processes: list[subprocess.Popen[bytes]]) -> Iterator[Callable[[], MpsBench]]:
    program = str(unpacked("nvidia-cuda-mps") / "usr/bin/nvidia-cuda-mps-control")
    made: list[MpsBench] = []
    with tempfile.TemporaryDirectory(prefix="gj") as name:

        def make() -> MpsBench:
            place = Path(name, str(len(made)))
            place.mkdir(mode=0o700)
            made.append(MpsBench(place, program, server=SERVER, children=list(processes)))
            return made[-1]

        yield make
        for bench in made:
            bench.children = []  # they live on for the next test
            bench.close()


@pytest.mark.parametrize("name", [*FENCED, "after_prepare", "inside_confirm"])
def test_killed_around_a_fence_nothing_is_lost_or_half(
    fresh: Callable[[], MpsBench], name: str
) -> None:
    states: list[State] = expected_states(fresh())
    cut = 0
    for number in range(1, len(SCRIPT) + 2):
        if run(fresh, states, f"{name}:kill:{number}") == len(SCRIPT):
            break
        cut = number
    assert cut > 2, f"hardly a verb passes {name}"


def test_daemons_of_a_killed_broker_are_taken_over_or_ended(
    fresh: Callable[[], MpsBench],
) -> None:
    bench = fresh()
    answered = test_crash.crash(bench, lambda _: failpoints.arm("after_fence:kill:1"))
    assert SCRIPT[answered][0] == "attach part"
    (left,) = [path for path in (bench.directory / "mps").iterdir() if path.is_dir()]
    number = [bench.daemons.path(bench.post(n)) for n in (0, 1)].index(left)
    pid = bench.daemon(number).pid()
    assert pid is not None, "it was started, and its grant was never given"
    bench.broker.core.mps.adopt()
    assert bench.daemon(number).pid() is None and not left.exists()
    for _, verb in SCRIPT[answered:]:
        verb(bench)
    bench.broker.core.mps.adopt()
    assert bench.daemon(1).pid() not in (None, pid, os.getpid())
