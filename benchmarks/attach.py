"""How long attach and detach take, against genv 1.4.3 and against the bare database.

``python benchmarks/attach.py`` prints a table and writes ``benchmarks/results/attach.json``.
Ours and the floor take turns, so that whatever else the machine does meets all alike. genv reads
and writes all of its state each time: with many environments it gets fewer turns.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contenders import Contender, Floor, GenvCommand, GenvFunctions, InProcess, OverSocket
from contenders import available as genv_available
from figures import RESULTS, keep, print_table, summary, timed

SIZES = (10, 200, 1_000, 10_240)
WARM_UP = 20
LABELS = {
    "in_process": "(a) in process",
    "socket": "(b) over the socket",
    "genv_functions": "(c) genv, functions",
    "genv_command": "(c) genv, command",
    "floor": "(d) same SQL, sqlite3",
}


def taking_turns(contenders: dict[str, Contender], rounds: int) -> dict[str, list[float]]:
    """Measure several contenders, one after the other in each round."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(WARM_UP + rounds):
        for name, contender in contenders.items():
            took = timed(contender.once)
            if number >= WARM_UP:
                times[name].append(took)
    return times


def for_a_while(contender: Contender, seconds: float, most: int) -> list[float]:
    """Measure a slow contender at least three times, and for no longer than it is worth."""
    deadline = time.monotonic() + seconds
    times: list[float] = []
    while len(times) < 3 or (len(times) < most and time.monotonic() < deadline):
        times.append(timed(contender.once))
    return times


def measure(size: int, rounds: int, seconds: float) -> dict[str, list[float]]:
    """Measure everything with ``size`` live environments."""
    with tempfile.TemporaryDirectory(prefix="genv-jupyter-bench-") as name:
        directory = Path(name)
        ours = InProcess(directory, size)
        socket = OverSocket(directory, size)
        floor = Floor(directory, ours)
        try:
            times = taking_turns({"in_process": ours, "socket": socket, "floor": floor}, rounds)
        finally:
            floor.close()
            socket.close()
            ours.close()
        if genv_available():
            functions = GenvFunctions(directory, size)
            times["genv_functions"] = for_a_while(functions, seconds, rounds)
            command = GenvCommand.__new__(GenvCommand)
            command.directory = functions.directory
            times["genv_command"] = for_a_while(command, seconds, 20)
    return times


def verdicts(medians: dict[int, dict[str, float]]) -> list[tuple[str, str, bool]]:
    """Compare the medians with what was to be reached: (what, measured, reached)."""
    sizes = sorted(medians)
    found: list[tuple[str, str, bool]] = []

    def say(what: str, value: float, unit: str, reached: bool) -> None:
        found.append((what, f"{value:.2f} {unit}", reached))

    worst = max(medians[size]["in_process"] / medians[size]["floor"] for size in sizes)
    say("(a) at most 8 x (d), worst size", worst, "x", worst <= 8)
    for name, most in (("in_process", 1.0), ("socket", 2.5)):
        slowest = max(medians[size][name] for size in sizes)
        say(f"{LABELS[name]} at most {most} ms, worst size", slowest, "ms", slowest <= most)
        growth = medians[sizes[-1]][name] / medians[sizes[0]][name]
        what = f"{LABELS[name]} at most 1.5 x from {sizes[0]} to {sizes[-1]}"
        say(what, growth, "x", growth <= 1.5)
    if "genv_command" in medians[sizes[0]]:
        least = min(medians[size]["genv_command"] / medians[size]["socket"] for size in sizes)
        say("(b) at least 50 x faster than genv's command", least, "x", least >= 50)
        many = [size for size in sizes if size >= 200]
        if many:
            least = min(medians[size]["genv_functions"] / medians[size]["socket"] for size in many)
            say("(b) faster than genv's functions from 200 on", least, "x", least > 1)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and keep the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=300, help="turns for each of ours (300)")
    parser.add_argument("--seconds", type=float, default=20.0, help="time for each of genv's (20)")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="live environments")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the file goes")
    options = parser.parse_args(arguments)
    results: dict[str, Any] = {"devices": 256, "sizes": {}}
    medians: dict[int, dict[str, float]] = {}
    rows: list[list[str]] = []
    for size in options.sizes:
        times = measure(size, options.rounds, options.seconds)
        medians[size] = {name: statistics.median(values) for name, values in times.items()}
        results["sizes"][str(size)] = {name: summary(times[name]) for name in times}
        floor = medians[size]["floor"]
        for name in (name for name in LABELS if name in times):
            found = summary(times[name])
            rows.append(
                [
                    LABELS[name],
                    str(size),
                    f"{found['median_ms']:.3f}",
                    f"{found['p99_ms']:.3f}",
                    f"{medians[size][name] / floor:.1f}",
                    str(found["n"]),
                ]
            )
    print("attach + detach, milliseconds, 256 devices")
    print_table(["", "environments", "median", "p99", "x floor", "n"], rows)
    if genv_available():
        results["genv"] = importlib.metadata.version("genv")
    else:
        print("genv is not installed, so it was not measured: pip install 'genv-jupyter[bench]'")
    print()
    judged = verdicts(medians)
    print_table(
        ["to reach", "measured", ""],
        [[what, value, "reached" if reached else "NOT REACHED"] for what, value, reached in judged],
    )
    results["targets"] = [
        {"target": what, "measured": value, "reached": reached} for what, value, reached in judged
    ]
    print(f"\nwritten to {keep('attach', results, options.results)}")


if __name__ == "__main__":
    main()
