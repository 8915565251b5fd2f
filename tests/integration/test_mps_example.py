"""The notebook of worker pools does what it says, on simulated devices."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tests.integration.kernels import Kernel
from tests.wheels import unpacked

BEAM = "2.77.0"
"""460 MB on disk, fetched in half a minute, once; older versions of common packages are among what
it depends on, so it is installed nowhere."""

PART = 24 * 2**30 // 2 // 4
NOTEBOOK = Path(__file__).parents[2] / "examples" / "mps_workers.ipynb"
CELLS = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]


def run(tmp_path: Path, environ: Mapping[str, str] | None = None) -> list[str]:
    """Return what each cell of the notebook prints."""
    with Kernel(tmp_path, environ) as kernel:
        assert kernel.run(f"%cd {tmp_path}").ok
        said = []
        for cell in CELLS:
            ran = kernel.run("".join(cell["source"]))
            assert ran.ok, f"{cell['source']}: {ran.error}"
            said.append(ran.stdout)
        return said


def test_each_worker_answers_with_its_part(broker_home: Path, tmp_path: Path) -> None:
    assert [cell for cell in CELLS if cell["outputs"] or cell["execution_count"]] == []
    said = "".join(run(tmp_path))
    assert "none - The device is simulated." in said
    numbers = json.loads(said[said.index("[") : said.index("]") + 1])
    assert numbers == [2 * number for number in range(16)]
    assert f"each with {PART} bytes" in said
    assert "Apache Beam is not installed here" in said


def test_each_copy_of_a_pipeline_is_a_process_with_its_part(
    broker_home: Path, tmp_path: Path
) -> None:
    beam = unpacked(f"apache-beam-{BEAM}", f"apache-beam=={BEAM}", whole=True)
    said = run(tmp_path, {"PYTHONPATH": str(beam)})[-2]
    answers = [line.split() for line in said.splitlines() if line]
    assert {int(number): int(value) for number, value, *_ in answers} == {
        number: 2 * number for number in range(16)
    }
    assert {part for *_, part in answers} == {str(PART)}
    assert len({pid for _, _, pid, _ in answers}) == 4
