"""What genv-jupyter adds to the start of a kernel, and what the first ``%gpu`` costs.

Each round starts one kernel in each of three ways, in changing order: as Jupyter does; with our
startup file alone; with our provisioner and our startup file. From each round come differences,
from their median an interval. A start lasts from the call to the moment at which the kernel, its
startup files run, can take a cell: it says so itself, on the clock that all processes share.
Beside it stand what a busy machine blurs less: processor time (the kernel's and the starter's),
and the time the startup files take inside the kernel, which is all that the stub costs.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from contenders import end
from figures import RESULTS, interval, keep, print_table, summary
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager

from genv_jupyter.api.client import Client
from genv_jupyter.server.host import own_host

HERE = Path(__file__).parent
STARTUP = HERE.parent / "jupyter-config" / "ipython"
WAYS = ("plain", "stub", "ours")


class Start(NamedTuple):
    """Milliseconds of one start: in all, of processors, and of startup files."""

    total: float
    processors: float
    startup: float


Starts = dict[str, list[Start]]

MANAGED = {"GENV_JUPYTER_UNATTACHED": "hide", "GENV_JUPYTER_ON_IMPORT": "notice"}
PATIENCE = 60.0
FIRST_GPU = """
import time as _time
_begin = _time.perf_counter()
get_ipython().run_line_magic("gpu", "")
print("took", (_time.perf_counter() - _begin) * 1000)
"""


def manager(way: str) -> AsyncKernelManager:
    """Return the manager of a kernel that starts in one of the ways."""
    name = "genv-provisioner" if way == "ours" else "local-provisioner"
    made = AsyncKernelManager(kernel_id=str(uuid.uuid4()))
    made._kernel_spec = KernelSpec(
        argv=[
            sys.executable,
            str(HERE / "launcher.py"),
            "-" if way == "plain" else str(STARTUP),
            "-f",
            "{connection_file}",
        ],
        display_name=way,
        language="python",
        metadata={"kernel_provisioner": {"provisioner_name": name}},
    )
    return made


async def start(way: str, ready: socket.socket) -> tuple[Start, AsyncKernelManager]:
    """Start a kernel; return what it took."""
    made = manager(way)
    env = dict(os.environ)
    if way == "stub":  # what the provisioner would have said
        env |= {**MANAGED, "GENV_JUPYTER_ENVIRONMENT": made.kernel_id}
    begin, spent = time.monotonic_ns(), time.process_time_ns()
    await made.start_kernel(env=env, stderr=subprocess.DEVNULL)
    answer = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(ready, 64), PATIENCE)
    end_of_start, in_kernel, startup = map(int, answer.split())
    here = time.process_time_ns() - spent
    return Start((end_of_start - begin) / 1e6, (here + in_kernel) / 1e6, startup / 1e6), made


async def first_gpu(made: AsyncKernelManager) -> float:
    """Run the first ``%gpu`` of a kernel; return the milliseconds it took there."""
    client = made.client()
    client.start_channels()
    try:
        await client.wait_for_ready(timeout=PATIENCE)
        said: list[str] = []

        def heard(message: dict[str, Any]) -> None:
            said.append(message["content"].get("text", ""))

        await client.execute_interactive(FIRST_GPU, output_hook=heard, timeout=PATIENCE)
        return float("".join(said).split("took")[1].split()[0])
    finally:
        client.stop_channels()


async def measure(rounds: int, magics: int) -> tuple[Starts, list[float]]:
    """Start kernels in all ways; return what they took, and what the first ``%gpu`` took."""
    starts: Starts = {way: [] for way in WAYS}
    gpu: list[float] = []
    order = random.Random(1)
    with (
        tempfile.TemporaryDirectory(prefix="genv-jupyter-bench-") as name,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready,
    ):
        os.environ["BENCH_READY"] = str(Path(name, "ready"))
        ready.bind(os.environ["BENCH_READY"])
        ready.setblocking(False)
        for number in range(-2, rounds):  # two rounds to warm up
            for way in order.sample(WAYS, len(WAYS)):
                took, made = await start(way, ready)
                try:
                    if number >= 0:
                        starts[way].append(took)
                        if way == "ours" and len(gpu) < magics:
                            gpu.append(await first_gpu(made))
                finally:
                    await made.shutdown_kernel(now=True)
            if sys.stderr.isatty():
                print(f"\r{number + 1} of {rounds}", end="", file=sys.stderr)
    return starts, gpu


def added(starts: Starts, way: str, what: str) -> list[float]:
    """Return what a way adds to the plain start of the same round."""
    pairs = zip(starts[way], starts["plain"], strict=True)
    return [getattr(mine, what) - getattr(plain, what) for mine, plain in pairs]


def report(starts: Starts, gpu: list[float]) -> dict[str, Any]:
    """Print what was found, and return it."""
    found: dict[str, Any] = {"starts": {}, "added": {}}
    rows = []
    for way in WAYS:
        parts = {
            what: summary([getattr(one, what) for one in starts[way]]) for what in Start._fields
        }
        found["starts"][way] = parts
        total = parts["total"]
        rows.append(
            [
                way,
                *(f"{total[key]:.1f}" for key in ("median_ms", "p99_ms")),
                f"{parts['processors']['median_ms']:.1f}",
                f"{parts['startup']['median_ms']:.2f}",
            ]
        )
    print(f"start of a kernel, milliseconds, {len(starts['plain'])} rounds")
    print_table(["", "median", "p99", "processors", "startup files"], rows)
    targets = []
    for way, what, label, most in (
        ("ours", "total", "provisioner and stub", 15),
        ("ours", "processors", "provisioner and stub, processor time", 15),
        ("stub", "startup", "the stub, inside the kernel", 10),
    ):
        values = added(starts, way, what)
        middle, (low, high) = statistics.median(values), interval(values)
        found["added"][f"{way}_{what}"] = {
            "median_ms": round(middle, 2),
            "interval_95_ms": [round(low, 2), round(high, 2)],
        }
        measured = f"{middle:.1f} ms (95 %: {low:.1f} to {high:.1f})"
        targets.append([f"added by {label}, at most {most} ms", measured, middle <= most])
    if gpu:
        found["first_gpu"] = summary(gpu)
        middle = statistics.median(gpu)
        targets.append(["the first %gpu, at most 80 ms", f"{middle:.1f} ms", middle <= 80])
    print()
    print_table(
        ["to reach", "measured", ""],
        [[what, value, "reached" if done else "NOT REACHED"] for what, value, done in targets],
    )
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and keep the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=200, help="kernels of each kind (200)")
    parser.add_argument("--magics", type=int, default=30, help="first %%gpu measured (30)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the file goes")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="genv-jupyter-bench-") as name:
        for variable in ("JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
            os.environ[variable] = str(Path(name, variable.lower()))
        os.environ["GENV_JUPYTER_HOME"] = str(Path(name, "home"))
        os.environ["GENV_JUPYTER_SIMULATE"] = "2x24GiB"
        client = Client()
        broker = client.health().pid
        try:
            found = asyncio.run(measure(options.rounds, options.magics))
        finally:
            # First: this process counts as a server, and would start another broker.
            own_host().reports.close().result(PATIENCE)
            client.close()
            end(broker)
    print(f"\nwritten to {keep('kernel_start', report(*found), options.results)}")


if __name__ == "__main__":
    main()
