"""The quickstart does what it says: on simulated devices, on a driver, and in Jupyter."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from genv_jupyter.api.client import Client
from tests.fakedriver.fixtures import MakeDriver, fake_driver
from tests.integration.kernels import Kernel
from tests.integration.servers import VISIBLE, Server

__all__ = ["fake_driver"]

NOTEBOOK = Path(__file__).parents[2] / "examples" / "quickstart.ipynb"
CELLS = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
REFUSED = [cell for cell in CELLS if "raises-exception" in cell["metadata"].get("tags", ())]


@pytest.fixture(params=["simulated", "driver"])
def devices(
    request: pytest.FixtureRequest,
    broker_home: Path,
    fake_driver: MakeDriver,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[str]:
    if request.param == "driver":
        monkeypatch.delenv("GENV_JUPYTER_SIMULATE")
        for name, value in fake_driver().environ.items():
            monkeypatch.setenv(name, value)
    yield request.param


def test_notebook_is_stored_without_output() -> None:
    assert [cell for cell in CELLS if cell["outputs"] or cell["execution_count"]] == []
    assert len(REFUSED) == 1


def test_every_cell_runs_as_often_as_you_like(devices: str, tmp_path: Path) -> None:
    with Kernel(tmp_path) as kernel:
        for _ in range(2):
            for cell in CELLS:
                source = "".join(cell["source"])
                ran = kernel.run(source)
                assert ran.ok is (cell not in REFUSED), f"{source}: {ran.error}"
                assert "Traceback" not in ran.error + ran.stderr
                said = ran.text + ran.stdout + ran.error
                assert said, f"{source} shows nothing"
                if source == "%gpu devices":
                    assert ("SIMULATED" in said) is (devices == "simulated")
        assert all(device.grants == () for device in Client().devices())


async def test_it_attaches_in_jupyter_as_it_says(server: Server) -> None:
    kernel = await server.start_kernel()
    async with server.talk(kernel) as talk:
        assert await talk.evaluate(VISIBLE) == "''", "hidden until something is attached"
        for cell in CELLS:
            source = "".join(cell["source"])
            reply = await talk.run(source)
            assert (reply["status"] == "ok") is (cell not in REFUSED), (source, reply)
            held = len((await server.environment(kernel))["grants"])
            if source.startswith("%gpu attach"):
                assert held == 1, "attached, and kept over the refusal"
        assert held == 0, "released at the end"
