"""How late an event loop is: measured inside the process whose loop it is.

``python loop_delay.py genv_jupyter.broker --user`` runs a module whose loop is watched; a Jupyter
server is watched by having this as a server extension. What is seen is written once a second to
the file that ``LOOP_DELAY`` names.
"""

from __future__ import annotations

import asyncio
import json
import os
import runpy
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

APART = 0.02
STEPS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000)
_tasks: set[asyncio.Task[None]] = set()


async def watch(path: Path) -> None:
    """Ask to be woken again and again, and count by how much that is late."""
    loop = asyncio.get_running_loop()
    counts = [0] * (len(STEPS_MS) + 1)
    worst, written = 0.0, loop.time()
    while True:
        due = loop.time() + APART
        await asyncio.sleep(APART)
        late = (loop.time() - due) * 1000
        worst = max(worst, late)
        counts[sum(late > step for step in STEPS_MS)] += 1
        if loop.time() - written >= 1:
            written = loop.time()
            fresh = path.with_suffix(".new")
            fresh.write_text(json.dumps({"worst_ms": worst, "counts": counts}))
            fresh.replace(path)


def quantile(seen: dict[str, Any], part: float) -> float:
    """Return the step in milliseconds below which that part of the wakings was late."""
    wanted, counted = part * sum(seen["counts"]), 0
    for number, count in enumerate(seen["counts"]):
        counted += count
        if counted >= wanted:
            return float(STEPS_MS[number]) if number < len(STEPS_MS) else float(seen["worst_ms"])
    return float(seen["worst_ms"])


def begin() -> None:
    """Watch the loop that runs."""
    task = asyncio.get_running_loop().create_task(watch(Path(os.environ["LOOP_DELAY"])))
    _tasks.add(task)


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "loop_delay"}]


def _load_jupyter_server_extension(serverapp: Any) -> None:
    serverapp.io_loop.add_callback(begin)


def _run_watched() -> None:
    run = asyncio.run

    def watched(main: Coroutine[Any, Any, Any], **options: Any) -> Any:
        async def both() -> Any:
            begin()
            return await main

        return run(both(), **options)

    asyncio.run = watched  # type: ignore[assignment]
    module = sys.argv[1]
    sys.argv = sys.argv[1:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _run_watched()
