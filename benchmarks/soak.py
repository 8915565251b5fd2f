"""Hours in minutes: environments come, attach, use, detach and end, and people look on.

A real broker and a real Jupyter server over the fake driver with 8 devices; 50 environments of real
processes (terminal commands: a kernel each would need a host of its own), some of which NVML lists;
20 viewers on the Jupyter server, of which one leaves and another comes now and then. Judged are

- the *memory* of both: the slope of what is their own, after a time to warm up. The slope is the
  median of those between any two samples, so that a single step of the allocator is none;
- that no viewer is cut off and nothing is written to the logs that should not be;
- that at the end nobody holds anything.

Reported, and judged by nobody, is how late the event loops of both were: that is the machine's
doing, too.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import combinations
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the fake driver is one of the tests' parts

from figures import RESULTS, keep, print_table
from jupyters import TOKEN, Jupyter, own_memory, processor_seconds
from loop_delay import quantile
from sockets import Viewers

from genv_jupyter.api import rendezvous
from genv_jupyter.api.client import Client
from genv_jupyter.errors import GpuError
from genv_jupyter.model import NewEnvironment, Request
from tests.conftest import end_broker
from tests.fakedriver.driver import FakeDriver
from tests.fakedriver.scenario import MIB, ProcessSpec, server_device

DEVICES, ENVIRONMENTS, VIEWERS = 8, 50, 20
STEP = 0.2
SAMPLE = 2.0
WARM_UP = 1 / 3
"""Of the time: caches fill, and allocators find their size."""

MOST_MIB_A_MINUTE = 1.0
EXPECTED = {"no_capacity", "cuda_initialized"}
"""What may be refused: devices are full, sometimes, and who has begun with CUDA cannot move."""

REQUESTS = (
    *(Request(memory=f"{amount}GiB") for amount in (1, 2, 4)),
    Request(fraction=0.25, mps="off"),
    Request(gpus=1),
)
BAD = ("Traceback", "ERROR", "CRITICAL")


class Crowd:
    """Environments that come, attach, use, detach and end by chance."""

    def __init__(self, client: Client, driver: FakeDriver, seed: int = 1) -> None:
        self.client = client
        self.driver = driver
        self.random = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._on: dict[str, str] = {}

    def step(self) -> None:
        """Do one thing."""
        if len(self._processes) < ENVIRONMENTS:
            self._begin()
            return
        one = self.random.choice(list(self._processes))
        verbs = {self._attach: 5, self._detach: 3, self._end: 2}
        (verb,) = self.random.choices(list(verbs), list(verbs.values()))
        try:
            verb(one)
            self.done[verb.__name__.strip("_")] += 1
        except GpuError as error:
            self.refused[error.code] += 1
        self._show()

    def close(self) -> None:
        """End everybody."""
        for one in list(self._processes):
            self._end(one)
        self._show()

    def _begin(self) -> None:
        process = subprocess.Popen(["sleep", "86400"], stdin=subprocess.DEVNULL)
        new = NewEnvironment(kind="command", pid=process.pid, name=f"train-{process.pid}.py")
        self._processes[self.client.create(new).id] = process
        self.done["begin"] += 1

    def _attach(self, one: str) -> None:
        granted = self.client.attach(one, self.random.choice(REQUESTS)).grants
        self._on.pop(one, None)
        if granted and self.random.random() < 0.7:
            self._on[one] = granted[0].device

    def _detach(self, one: str) -> None:
        self._on.pop(one, None)
        self._show()
        self.client.detach(one)

    def _end(self, one: str) -> None:
        self._on.pop(one, None)
        process = self._processes.pop(one)
        process.kill()
        process.wait()

    def _show(self) -> None:
        """Let the driver list those who are on a device, and let it be busy."""
        listed: dict[str, list[ProcessSpec]] = {uuid: [] for uuid in self.driver.uuids}
        for one, uuid in self._on.items():
            amount = self.random.randrange(100, 900) * MIB
            listed[uuid].append(
                {"pid": self._processes[one].pid, "memory": amount, "kind": "compute"}
            )
        devices = self.driver.scenario["devices"]
        for spec in devices:
            spec["processes"] = listed[spec["uuid"]]
            spec["utilization"] = {"gpu": self.random.randrange(100), "memory": 5}
        self.driver.update(devices=devices)


def slope(samples: Sequence[tuple[float, float]]) -> float:
    """Return the median of the slopes between any two samples, per minute."""
    return 60 * statistics.median(
        (two[1] - one[1]) / (two[0] - one[0]) for one, two in combinations(samples, 2)
    )


def start_broker(directory: Path, environ: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a broker whose event loop is watched; it says when it listens."""
    watcher = Path(__file__).with_name("loop_delay.py")
    process = subprocess.Popen(
        [sys.executable, str(watcher), "genv_jupyter.broker", "--user"],
        env=environ | {"LOOP_DELAY": str(directory / "broker.delay")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    said = json.loads(process.stdout.readline())
    if not said.get("started"):
        raise RuntimeError(f"the broker does not start: {said}")
    return process


def run(minutes: float) -> dict[str, Any]:
    """Soak; return what was seen."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="genv-soak-")))
        specs = [server_device(index) for index in range(DEVICES)]
        driver = stack.enter_context(FakeDriver(directory / "driver", {"devices": specs}))
        environ = driver.environ | {
            "PYTHONPATH": str(Path(__file__).parent),
            "LOOP_DELAY": str(directory / "server.delay"),
        }
        jupyter = Jupyter(directory / "jupyter", "genv_jupyter", environ, also=("loop_delay",))
        home = jupyter.environ["GENV_JUPYTER_HOME"]
        os.environ.pop("GENV_JUPYTER_SIMULATE", None)
        os.environ["GENV_JUPYTER_HOME"] = home  # whom our client finds
        stack.callback(end_broker, rendezvous.address(home, ""))
        broker = start_broker(directory, jupyter.environ)
        stack.callback(broker.wait)
        stack.callback(broker.terminate)
        stack.enter_context(jupyter)
        crowd = Crowd(Client(start=False, timeout=60), driver)
        stack.callback(crowd.close)
        viewers = stack.enter_context(Viewers(jupyter.port, TOKEN))
        pids = {"broker": broker.pid, "server": jupyter.pid}
        before, calls = processor_seconds(*pids.values()), driver.nvml_calls
        found = soak(minutes, crowd, viewers, pids)
        spent = processor_seconds(*pids.values()) - before
        found["processor_s_per_minute"] = round(spent / minutes, 2)
        found["nvml_calls_per_minute"] = round((driver.nvml_calls - calls) / minutes)
        found["loops"] = {name: _delay(directory / f"{name}.delay") for name in pids}
        crowd.close()
        found["held_at_the_end"] = _held(crowd.client)
        found["bad_lines"] = _bad_lines(jupyter.log, *Path(home).rglob("broker.log"))
    return found


def soak(minutes: float, crowd: Crowd, viewers: Viewers, pids: dict[str, int]) -> dict[str, Any]:
    """Let it happen; return memory and counts."""
    looking = [viewers.open("genv-jupyter/v1/events") for _ in range(VIEWERS)]
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in pids}
    begin = time.monotonic()
    next_sample, number = 0.0, 0
    while (passed := time.monotonic() - begin) < minutes * 60:
        crowd.step()
        number += 1
        if number % 50 == 0:
            viewers.drop(looking.pop(0))
            looking.append(viewers.open("genv-jupyter/v1/events"))
        if passed >= next_sample:
            next_sample = passed + SAMPLE
            for name, pid in pids.items():
                samples[name].append((passed, own_memory(pid) / 2**20))
        time.sleep(STEP)
    memory = {}
    for name, seen in samples.items():
        late = [one for one in seen if one[0] >= WARM_UP * minutes * 60]
        memory[name] = {
            "first_mib": round(seen[0][1], 2),
            "warm_mib": round(late[0][1], 2),
            "last_mib": round(late[-1][1], 2),
            "mib_per_minute": round(slope(late), 3),
        }
    return {
        "minutes": minutes,
        "memory": memory,
        "done": dict(crowd.done),
        "refused": dict(crowd.refused),
        "messages": viewers.messages,
        "cut_off": viewers.ended,
    }


def _delay(path: Path) -> dict[str, float]:
    seen = json.loads(path.read_text())
    return {
        "p50_ms": quantile(seen, 0.5),
        "p99_ms": quantile(seen, 0.99),
        "worst_ms": round(seen["worst_ms"], 1),
        "n": sum(seen["counts"]),
    }


def _held(client: Client, seconds: float = 30) -> int:
    """Return how many grants there are, once the broker had time to see who is gone."""
    deadline = time.monotonic() + seconds
    while True:
        held = sum(len(device.grants) for device in client.devices())
        if not held or time.monotonic() > deadline:
            return held
        time.sleep(0.5)


def _bad_lines(*logs: Path) -> list[str]:
    found = []
    for log in logs:
        with contextlib.suppress(FileNotFoundError):  # nothing was said
            lines = log.read_text(errors="replace").splitlines()
            found += [f"{log.name}: {line}" for line in lines if any(bad in line for bad in BAD)]
    return found


def verdicts(found: dict[str, Any]) -> list[tuple[str, str, bool]]:
    """Compare with what was to be reached: (what, measured, reached)."""
    judged = []
    for name, memory in found["memory"].items():
        grows = memory["mib_per_minute"]
        what = f"memory of the {name} grows by at most {MOST_MIB_A_MINUTE} MiB a minute"
        judged.append((what, f"{grows:.2f} MiB", grows <= MOST_MIB_A_MINUTE))
    for what, count in (
        ("viewers that were cut off", found["cut_off"]),
        ("grants at the end", found["held_at_the_end"]),
        ("lines in the logs that should not be", len(found["bad_lines"])),
        ("refusals that were not to be expected", _strange(found["refused"])),
    ):
        judged.append((f"{what}: 0", str(count), count == 0))
    return judged


def _strange(refused: dict[str, int]) -> int:
    return sum(count for code, count in refused.items() if code not in EXPECTED)


def main(arguments: Sequence[str] | None = None) -> int:
    """Soak, print, keep the results; 1 where something was not reached."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (10)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the file goes")
    options = parser.parse_args(arguments)
    found = run(options.minutes)
    print(
        f"{ENVIRONMENTS} environments, {DEVICES} devices, {VIEWERS} viewers, "
        f"{options.minutes:g} minutes"
    )
    print("done:", found["done"], "refused:", found["refused"], "messages:", found["messages"])
    print(
        f"processor: {found['processor_s_per_minute']} s a minute; "
        f"NVML calls: {found['nvml_calls_per_minute']} a minute"
    )
    rows = [
        [
            name,
            *(f"{memory[key]:.1f}" for key in ("first_mib", "warm_mib", "last_mib")),
            *(f"{found['loops'][name][key]:g}" for key in ("p50_ms", "p99_ms", "worst_ms")),
        ]
        for name, memory in found["memory"].items()
    ]
    print_table(["", "MiB", "warm", "last", "loop late p50 ms", "p99", "worst"], rows)
    judged = verdicts(found)
    print()
    print_table(
        ["to reach", "measured", ""],
        [[what, value, "reached" if reached else "NOT REACHED"] for what, value, reached in judged],
    )
    for line in found["bad_lines"][:20]:
        print(line)
    print(f"\nwritten to {keep('soak', found, options.results)}")
    return 0 if all(reached for _, _, reached in judged) else 1


if __name__ == "__main__":
    sys.exit(main())
