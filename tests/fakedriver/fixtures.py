"""Fixtures for other suites: ``from tests.fakedriver.fixtures import driver, fake_driver``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.fakedriver.driver import FakeDriver
from tests.fakedriver.scenario import Scenario

MakeDriver = Callable[..., FakeDriver]


@pytest.fixture
def fake_driver(tmp_path: Path) -> Iterator[MakeDriver]:
    """Make drivers: ``fake_driver()`` or ``fake_driver(scenario)``. They end with the test."""
    with ExitStack() as drivers:
        made = 0

        def make(scenario: Scenario | None = None) -> FakeDriver:
            nonlocal made
            made += 1
            return drivers.enter_context(FakeDriver(tmp_path / f"driver{made}", scenario))

        yield make


@pytest.fixture
def driver(
    broker_home: Path, fake_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch
) -> FakeDriver:
    """Give the broker of this test, and all that it starts, a driver with two devices of 24 GiB."""
    made = fake_driver()
    for name, value in made.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("GENV_JUPYTER_SIMULATE")
    return made
