"""Every kind of trouble with drivers, through the real reader and the broker; and its docs page."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest

from genv_jupyter.isolation import processes
from tests.drivers.stage import Stage
from tests.drivers.troubles import TROUBLES, Seen, Trouble
from tests.fakedriver.fixtures import MakeDriver, fake_driver

__all__ = ["fake_driver"]

PAGE = Path(__file__).parents[2] / "docs" / "drivers.md"
TICKS = 400
LEAST = 25


@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda trouble: trouble.name)
def test_trouble_is_seen_as_the_table_says(
    trouble: Trouble, tmp_path: Path, fake_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = fake_driver(trouble.begin)
    monkeypatch.setattr(processes, "in_initial_namespace", lambda: not trouble.contained)
    for name, value in driver.environ.items():
        monkeypatch.setenv(name, value)
    for function, fault in trouble.fails.items():
        for uuid, code in fault.items() if isinstance(fault, dict) else [(None, fault)]:
            driver.fail(function, code, uuid)
    stage = Stage(tmp_path / "ledger.sqlite", driver, hangs=trouble.hangs)
    try:
        trouble.before(stage)
        trouble.happens(stage)
        become(stage, trouble.seen)
        said = stage.said()
        for quoted in re.findall("“(.+?)”", trouble.shows):
            assert quoted in said, said
        if trouble.over is not None and trouble.good is not None:
            trouble.over(stage)
            become(stage, trouble.good)
    finally:
        stage.close()


def become(stage: Stage, wanted: Seen) -> None:
    """Let time pass until it is so."""
    for _ in range(TICKS):
        stage.tick()
        if wanted(stage):
            return
        threading.Event().wait(0.05)  # another reader of the driver may be on its way
    pytest.fail(f"It never came to that: {stage.said()}\n{stage.broker.devices()}")


def test_page_has_the_table_and_nothing_else_in_it() -> None:
    tables = re.findall(r"^\| NVML says .*\n\|---\|---\|\n((?:\|.*\n)+)", PAGE.read_text(), re.M)
    rows = [
        tuple(cell.strip() for cell in line.strip("| ").split(" | "))
        for table in tables
        for line in table.splitlines()
    ]
    assert rows == [(trouble.says, trouble.shows) for trouble in TROUBLES]
    assert len(rows) >= LEAST
    assert len({trouble.name for trouble in TROUBLES}) == len(TROUBLES)
