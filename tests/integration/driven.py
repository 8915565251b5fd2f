"""A server of this process whose kernels run over the fake driver."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakedriver.fixtures import MakeDriver, fake_driver
from tests.integration.kernels import Server

__all__ = ["driven_server", "fake_driver"]


@pytest.fixture(name="server")
def driven_server(
    broker_home: Path,
    tmp_path: Path,
    fake_driver: MakeDriver,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Server]:
    """Play a server over two idle devices of 24 GiB; ``driver`` changes what they say."""
    driver = fake_driver()
    for name, value in driver.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("GENV_JUPYTER_SIMULATE")
    with Server(tmp_path) as server:
        server.driver = driver
        yield server
