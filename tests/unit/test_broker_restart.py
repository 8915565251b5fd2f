"""A restart that brings no process: told with its cause, its grant kept until the deadline."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from genv_jupyter.errors import UnknownEnvironment
from tests.unit.brokers import WHOLE, Bench, bench


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path) as made:
        yield made


def test_a_restart_that_fails_is_told_and_its_grant_kept_until_the_deadline(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(WHOLE)
    desk.tell(kernel.id, phase="restarting")
    desk.end(kernel.process)
    desk.tell(kernel.id, phase="starting", launch=2)
    desk.tick(50)
    failed = desk.tell(kernel.id, kernel_state="dead", failure="No such file: 'python'")
    assert failed.kernel_state == "dead"
    assert failed.reason is not None and "The cause: No such file: 'python'." in failed.reason
    assert "kept for 60 s" in failed.reason
    desk.tick(59)  # a minute from the failure on, not from the start before it
    assert kernel.devices == [desk.device(0)]
    desk.tick(2)
    with pytest.raises(UnknownEnvironment):
        _ = kernel.now


def test_a_failure_that_is_told_late_harms_no_living_kernel(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(WHOLE)
    said = desk.tell(kernel.id, failure="an old story")
    assert (said.state, said.reason) == ("granted", None)
