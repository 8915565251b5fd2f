"""The benchmarks still run; what they measure is for people to judge, not for a test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.debian import unpacked

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def run(name: str, results: Path, *options: str, seconds: float = 240) -> Any:
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / f"{name}.py"), *options, "--results", str(results)],
        env=os.environ | ({"TMPDIR": str(results)} if name != "daemon" else {}),  # for all users
        capture_output=True,
        text=True,
        timeout=seconds,
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


def test_viewers_are_compared_with_nvdashboard(tmp_path: Path) -> None:
    found = run("viewers", tmp_path, "--seconds", "3", "--viewers", "1", "12")
    for kind in ("sidebar", "idle", "chart", "charts"):
        assert found[kind].keys() == {"1", "12"}
    # Of devices that rest nobody is told, and it is not who looks that asks the driver. A machine
    # that is busy makes such short windows uneven, but not by as much.
    assert [one["octets"] for one in found["idle"].values()] == [0, 0]
    ours, theirs = found["sidebar"], found["chart"]
    assert ours["12"]["nvml_calls"] < 6 * ours["1"]["nvml_calls"]
    assert theirs["12"]["nvml_calls"] > 2 * theirs["1"]["nvml_calls"]
    assert ours["12"]["messages"] and theirs["12"]["messages"]


@pytest.mark.timeout(600)
def test_memory_stays_the_same_while_environments_come_and_go(tmp_path: Path) -> None:
    """What `make soak` does in ten minutes, in two."""
    found = run("soak", tmp_path, "--minutes", "2", seconds=500)
    assert found["loops"].keys() == found["memory"].keys() == {"broker", "server"}
    assert all(loop["n"] for loop in found["loops"].values())
    assert {"begin", "attach", "detach", "end"} <= found["done"].keys()
    assert found["messages"] > 0


def test_a_slope_is_that_of_a_leak_and_not_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from soak import slope  # type: ignore[import-not-found]

    step = [(second, 40.0 if second < 50 else 43.0) for second in range(0, 80, 2)]
    leak = [(second, 40 + second * 0.05 + second % 3 * 0.2) for second in range(0, 80, 2)]
    assert slope(step) == 0
    assert slope(leak) == pytest.approx(3, abs=0.3)
