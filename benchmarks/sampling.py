"""What it costs to read 8 devices with 64 processes once a second, and to join them to owners.

``python benchmarks/sampling.py`` prints a table and writes ``benchmarks/results/sampling.json``.
The devices are those of the fake driver, whose own work is a part of the reader's figure; the
processes are real, an eighth of them kernels with a grant and the others their children. Rounds
come at the pace of the product, since a process that has just slept works in cold caches.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the fake driver lives with the tests

from figures import RESULTS, keep, print_table  # noqa: E402

from genv_jupyter.broker.service import Broker  # noqa: E402
from genv_jupyter.devices.nvml import NvmlSource  # noqa: E402
from genv_jupyter.isolation.environ import MARKER  # noqa: E402
from genv_jupyter.ledger.live import LiveLedger  # noqa: E402
from genv_jupyter.model import NewEnvironment, Principal, Request  # noqa: E402
from tests.fakedriver import GIB, FakeDriver  # noqa: E402
from tests.fakedriver.scenario import server_device  # noqa: E402

DEVICES, PROCESSES = 8, 8
GOAL = 2.0
"""Percent of one core."""


def cpu_of(pid: int) -> float:
    """Return the seconds that a process has worked, to the nanosecond."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def populate(broker: Broker, driver: FakeDriver) -> list[subprocess.Popen[bytes]]:
    """Start the processes: one with an environment on each device, and its children there."""
    me = Principal(realm="local", id=str(os.getuid()), name="bench")
    started: list[subprocess.Popen[bytes]] = []
    for number in range(DEVICES):
        kernel = subprocess.Popen(["sleep", "3600"])
        started.append(kernel)
        row = broker.create(me, NewEnvironment(kind="shell", pid=kernel.pid, name=f"n{number}"))
        broker.attach(me, row.id, Request(fraction=0.5, devices=(driver.uuids[number],)))
        children = [
            subprocess.Popen(["sleep", "3600"], env={**os.environ, MARKER: row.id})
            for _ in range(PROCESSES - 1)
        ]
        started += children
        driver.set_processes(
            driver.uuids[number],
            [{"pid": it.pid, "memory": GIB, "kind": "compute"} for it in (kernel, *children)],
        )
    return started


def measure(seconds: int, pause: float) -> dict[str, Any]:
    """Return the CPU of broker and reader, as percent of a core at one round a second."""
    with tempfile.TemporaryDirectory(prefix="genv-jupyter-bench-") as name:
        directory = Path(name)
        devices = [server_device(index, ecc_mode=1) for index in range(DEVICES)]
        with FakeDriver(directory / "driver", {"devices": devices}) as driver:
            os.environ.update(driver.environ)
            source = NvmlSource()
            broker = Broker(LiveLedger(directory / "ledger.sqlite"), source)
            started = populate(broker, driver)
            try:
                return rounds(broker, source, seconds, pause)
            finally:
                broker.close()
                for process in started:
                    process.kill()
                    process.wait()


def rounds(broker: Broker, source: NvmlSource, seconds: int, pause: float) -> dict[str, Any]:
    """Let so many rounds pass, and return what they cost."""
    for _ in range(5):  # what is looked up once has been, and no process is too young
        broker.tick()
        time.sleep(1.2)
    assert source._current is not None
    reader = source._current.pid
    seen = sum(len(usage.reading.processes or ()) for usage in broker.core.usage.values())
    own = sum(len(them) for usage in broker.core.usage.values() for them in usage.own.values())
    assert (seen, own) == (DEVICES * PROCESSES,) * 2, f"{seen} processes seen, {own} joined"
    before, busy = cpu_of(reader), time.process_time()
    for _ in range(seconds):
        broker.tick()
        time.sleep(pause)
    broker_ms = (time.process_time() - busy) * 1000 / seconds
    reader_ms = (cpu_of(reader) - before) * 1000 / seconds
    assert source._current.pid == reader, "the reader was replaced on the way"
    return {
        "devices": DEVICES,
        "processes": seen,
        "rounds": seconds,
        "broker_percent": round(broker_ms / 10, 3),
        "reader_percent": round(reader_ms / 10, 3),
        "together_percent": round((broker_ms + reader_ms) / 10, 3),
        "goal_percent": GOAL,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=30, help="Rounds.")
    parser.add_argument("--pause", type=float, default=1.0, help="Seconds between two rounds.")
    parser.add_argument("--results", type=Path, default=RESULTS, help="Directory.")
    arguments = parser.parse_args()
    found = measure(arguments.seconds, arguments.pause)
    print_table(
        ("part", "% of a core at 1 Hz"),
        [
            ("broker", f"{found['broker_percent']:.2f}"),
            ("reader of the driver", f"{found['reader_percent']:.2f}"),
            ("together", f"{found['together_percent']:.2f}"),
            ("to reach: at most", f"{GOAL:.2f}"),
        ],
    )
    keep("sampling", found, arguments.results)


if __name__ == "__main__":
    main()
