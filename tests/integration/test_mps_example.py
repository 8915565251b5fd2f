"""The notebook of worker pools does what it says, on simulated devices."""

from __future__ import annotations

import json
from pathlib import Path

from tests.integration.kernels import Kernel

NOTEBOOK = Path(__file__).parents[2] / "examples" / "mps_workers.ipynb"
CELLS = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]


def test_each_worker_answers_with_its_part(broker_home: Path, tmp_path: Path) -> None:
    assert [cell for cell in CELLS if cell["outputs"] or cell["execution_count"]] == []
    with Kernel(tmp_path) as kernel:
        assert kernel.run(f"%cd {tmp_path}").ok
        said = ""
        for cell in CELLS:
            ran = kernel.run("".join(cell["source"]))
            assert ran.ok, f"{cell['source']}: {ran.error}"
            said += ran.stdout
    assert "none - The device is simulated." in said
    numbers = json.loads(said[said.index("[") : said.index("]") + 1])
    assert numbers == [2 * number for number in range(16)]
    assert f"each with {24 * 2**30 // 2 // 4} bytes" in said
