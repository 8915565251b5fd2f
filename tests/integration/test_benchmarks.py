"""The benchmarks still run; what they measure is for people to judge, not for a test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.debian import unpacked

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def run(name: str, results: Path, *options: str) -> Any:
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / f"{name}.py"), *options, "--results", str(results)],
        env=os.environ | {"TMPDIR": str(results)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "to reach" in done.stdout
    return json.loads((results / f"{name}.json").read_text())


def test_attach_is_compared_with_the_bare_database(tmp_path: Path) -> None:
    found = run("attach", tmp_path, "--sizes", "10", "--rounds", "3", "--seconds", "0")
    measured = found["sizes"]["10"]
    assert {"in_process", "socket", "floor"} <= measured.keys()
    assert all(one["n"] >= 3 and one["median_ms"] > 0 for one in measured.values())


def test_the_host_daemon_is_measured_with_several_clients(tmp_path: Path) -> None:
    found = run("daemon", tmp_path, "--seconds", "1", "--clients", "1", "16")
    assert found["1"]["n"] > 0 and found["16"]["n"] > 0
    assert found["users"] == (4 if os.getuid() == 0 else 1)


def test_kernel_start_is_compared_with_jupyters_own(tmp_path: Path) -> None:
    found = run("kernel_start", tmp_path, "--rounds", "1", "--magics", "1")
    assert found["starts"].keys() == {"plain", "stub", "ours"}
    assert found["first_gpu"]["n"] == 1
    assert len(found["added"]["ours_total"]["interval_95_ms"]) == 2


def test_nvidia_smi_is_compared_with_nvidias_own(tmp_path: Path) -> None:
    unpacked("nvidia-smi")  # else there is nothing to compare with
    found = run("nvidia_smi", tmp_path, "--rounds", "2", "--cells", "1")
    assert found["places"].keys() == {"in a cell", "bare process"}
    assert all(len(lines) == 4 for lines in found["ratios"].values())


def test_sampling_is_measured_with_every_process_joined_to_its_owner(tmp_path: Path) -> None:
    found = run("sampling", tmp_path, "--seconds", "2", "--pause", "0.1")
    assert (found["devices"], found["processes"]) == (8, 64)
    assert 0 < found["broker_percent"] < found["together_percent"]
