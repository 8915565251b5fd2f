"""What the benchmarks have in common: quantiles, intervals, tables and the file of results."""

from __future__ import annotations

import json
import os
import platform
import random
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

RESULTS = Path(__file__).parent / "results"


def timed(operation: Callable[[], object]) -> float:
    """Run an operation; return the milliseconds it took."""
    begin = perf_counter()
    operation()
    return (perf_counter() - begin) * 1000


def quantile(values: Sequence[float], part: float) -> float:
    """Return the nearest-rank quantile; of few values, p99 is the largest."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def summary(values: Sequence[float]) -> dict[str, float | int]:
    """Return median and p99 in milliseconds, and the number of values."""
    return {
        "median_ms": round(statistics.median(values), 4),
        "p99_ms": round(quantile(values, 0.99), 4),
        "n": len(values),
    }


def interval(
    values: Sequence[float], *, level: float = 0.95, draws: int = 5000, seed: int = 1
) -> tuple[float, float]:
    """Return a bootstrap confidence interval of the median."""
    source = random.Random(seed)
    medians = sorted(statistics.median(source.choices(values, k=len(values))) for _ in range(draws))
    edge = int((1 - level) / 2 * draws)
    return medians[edge], medians[-edge - 1]


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table, the first column to the left and the others to the right."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    for row in (header, *rows):
        first, *rest = (
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join((first, *rest)))


def keep(name: str, results: dict[str, Any], directory: Path = RESULTS) -> Path:
    """Write the results into a directory, with what they were measured on."""
    machine = {
        "python": platform.python_version(),
        "kernel": platform.release(),
        "processors": os.cpu_count(),
        "load_1min": round(os.getloadavg()[0], 2),
    }
    directory.mkdir(exist_ok=True)
    path = directory / f"{name}.json"
    path.write_text(json.dumps({"machine": machine, **results}, indent=2) + "\n")
    return path
