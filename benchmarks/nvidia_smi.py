"""The environment's ``nvidia-smi`` beside NVIDIA's own, both over the fake driver.

Each round runs both, one after the other in changing order: in a cell (``!nvidia-smi`` in a real
kernel, as users run it) and as a bare process (as a script in a loop would). The fake driver
answers NVIDIA's program at once; a real one has to be opened each time, while our broker has it
open. So this is the hardest comparison there is for us, and ours can never be faster than its
interpreter starts.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the fake driver is one of the tests' parts

import pytest
from contenders import end
from figures import RESULTS, interval, keep, print_table, summary
from jupyter_client.manager import KernelManager

from genv_jupyter.api.client import Client
from genv_jupyter.isolation.live import PROGRAMS, put_first
from genv_jupyter.model import NewEnvironment, Request
from tests.debian import unpacked
from tests.fakedriver.driver import FakeDriver
from tests.fakedriver.scenario import MIB, server_device

VERSION = "535.261.03"
MOST = 1.5
LINES = ("", "-L", "--query-gpu=index,memory.used --format=csv", "-q -x")
Times = dict[str, dict[str, list[float]]]
"""Milliseconds by line and by whose program it was."""

IN_A_CELL = """
import json as _json, random as _random, time as _time
_order = _random.Random(1)
_took = {{line: {{who: [] for who in {programs!r}}} for line in {lines!r}}}
for _number in range(-2, {rounds}):
    for _line in {lines!r}:
        for _who, _program in _order.sample(list({programs!r}.items()), {count}):
            _begin = _time.perf_counter()
            get_ipython().system(f"{{_program}} {{_line}} > /dev/null")  # what ! does
            if _number >= 0:
                _took[_line][_who].append((_time.perf_counter() - _begin) * 1000)
print("took", _json.dumps(_took))
"""


def bare(programs: dict[str, str], environ: dict[str, str], rounds: int) -> Times:
    """Run programs as processes of this one."""
    order, took = random.Random(1), {line: {who: [] for who in programs} for line in LINES}
    null = os.open(os.devnull, os.O_RDWR)
    actions = [(os.POSIX_SPAWN_DUP2, null, 1)]
    for number in range(-2, rounds):
        for line in LINES:
            for who, program in order.sample(list(programs.items()), len(programs)):
                begin = perf_counter()
                words = [program, *line.split()]
                pid = os.posix_spawn(program, words, environ, file_actions=actions)
                if os.waitpid(pid, 0)[1]:
                    raise RuntimeError(f"{program} {line} failed")
                if number >= 0:
                    took[line][who].append((perf_counter() - begin) * 1000)
    os.close(null)
    return took


def in_a_cell(programs: dict[str, str], environ: dict[str, str], rounds: int) -> Times:
    """Run programs from a cell of a kernel."""
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(env=environ)
    client = manager.blocking_client()
    client.start_channels()
    said: list[str] = []
    try:
        client.wait_for_ready(timeout=60)
        code = IN_A_CELL.format(programs=programs, lines=LINES, rounds=rounds, count=len(programs))
        client.execute_interactive(
            code, output_hook=lambda m: said.append(m["content"].get("text", "")), timeout=3600
        )
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    found: Times = json.loads("".join(said).split("took", 1)[1])
    return found


def report(places: dict[str, Times], floor: dict[str, float | int]) -> dict[str, Any]:
    """Print what was found, and return it."""
    found: dict[str, Any] = {"places": {}, "ratios": {}, "interpreter": floor}
    targets = []
    for place, times in places.items():
        print(f"{place}, milliseconds, {len(times['']['ours'])} rounds")
        rows = []
        for line, took in times.items():
            parts = {who: summary(values) for who, values in took.items()}
            pairs = [ours / real for ours, real in zip(took["ours"], took["real"], strict=True)]
            ratio = statistics.median(took["ours"]) / statistics.median(took["real"])
            low, high = interval(pairs)
            found["places"].setdefault(place, {})[line] = parts
            found["ratios"].setdefault(place, {})[line] = round(ratio, 3)
            numbers = [f"{parts[who]['median_ms']:.1f}" for who in ("ours", "real")]
            rows.append([f"nvidia-smi {line[:40]}", *numbers, f"{ratio:.2f}"])
            measured = f"{ratio:.2f} (pairs, 95 %: {low:.2f} to {high:.2f})"
            name = f"{place}, nvidia-smi {line[:24]}"
            targets.append([f"{name}, at most {MOST} x", measured, ratio <= MOST])
        print_table(["", "ours", "NVIDIA's", "ratio"], rows)
        print()
    print(f"starting the interpreter alone: {floor['median_ms']:.1f} ms\n")
    print_table(
        ["to reach", "measured", ""],
        [[what, value, "reached" if done else "NOT REACHED"] for what, value, done in targets],
    )
    return found


def interpreter(environ: dict[str, str], rounds: int) -> dict[str, float | int]:
    """Return what starting Python costs, and doing nothing: less is not possible in it."""
    python, took = os.path.realpath(sys.executable), []
    for _ in range(rounds):
        begin = perf_counter()
        os.waitpid(os.posix_spawn(python, [python, "-IS", "-c", "pass"], environ), 0)
        took.append((perf_counter() - begin) * 1000)
    return summary(took)


def measure(rounds: int, cells: int, directory: Path) -> dict[str, Any]:
    """Set up an environment with half a device, and measure in it."""
    scenario: Any = {"devices": [server_device(0), server_device(1)], "context_bytes": 300 * MIB}
    scenario |= {"driver_version": VERSION, "cuda_version": 12020}
    real = unpacked("nvidia-smi") / "usr/lib/nvidia/current/nvidia-smi"
    with ExitStack() as stack:
        driver = stack.enter_context(FakeDriver(directory / "driver", scenario))
        os.environ.update(driver.environ)
        client = Client()
        stack.callback(end, client.health().pid)
        stack.callback(client.close)
        new = NewEnvironment(kind="command", pid=os.getpid(), name="benchmark")
        made = client.attach(client.create(new).id, Request(fraction=0.5)).environ or {}
        environ = dict(os.environ)
        put_first(environ, made[PROGRAMS])
        environ |= {name: value for name, value in made.items() if value is not None}
        programs = {"ours": f"{made[PROGRAMS]}/nvidia-smi", "real": str(real)}
        time.sleep(1.5)  # a broker has work to do when it has just started
        places = {
            "in a cell": in_a_cell(programs, environ, cells),
            "bare process": bare(programs, environ, rounds),
        }
        return report(places, interpreter(environ, rounds))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and keep the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=200, help="of bare processes (200)")
    parser.add_argument("--cells", type=int, default=40, help="of cells (40)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the file goes")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="genv-jupyter-bench-") as name:
        for variable in ("JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
            os.environ[variable] = str(Path(name, variable.lower()))
        os.environ["GENV_JUPYTER_HOME"] = str(Path(name, "home"))
        os.environ.pop("GENV_JUPYTER_SIMULATE", None)
        try:
            found = measure(options.rounds, options.cells, Path(name))
        except pytest.skip.Exception as error:
            sys.exit(f"Nothing to compare with: {error}")
    print(f"\nwritten to {keep('nvidia_smi', found, options.results)}")


if __name__ == "__main__":
    main()
