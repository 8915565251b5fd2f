"""What people who look cost: ours against jupyterlab-nvdashboard, on the same fake driver.

Each is a Jupyter server of its own with 1, 10 and 100 viewers of 8 devices, measured one after the
other in one run; ours is the server, the broker and the child that asks the driver. Told are
processor seconds and calls to NVML, each per minute. What the viewers themselves cost is not
counted.

- *sidebar*: our whole event stream, while memory and utilisation of all devices change each second;
- *idle*: the same while nothing changes;
- *charts*: its five GPU charts, each with a socket of its own, at its default of 10 Hz;
- *chart*: one of them at 1 Hz, the rate of ours.

The fake driver answers at once, but not for nothing: what its calls took, and what it took to make
them, is told beside, and the targets are judged by what remains without: whoever asks the driver
for every viewer gets that for nothing here.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the fake driver is one of the tests' parts

from figures import RESULTS, keep, print_table
from jupyters import TOKEN, Jupyter, processor_seconds
from sockets import Viewers

from genv_jupyter.api import rendezvous
from tests.conftest import end_broker
from tests.fakedriver.driver import FakeDriver
from tests.fakedriver.scenario import MIB, server_device

DEVICES = 8
CROWDS = (1, 10, 100)
THEIRS = "jupyterlab-nvdashboard==0.15.0"
CHARTS = ("gpu_utilization", "gpu_usage", "gpu_resource", "pci_stats", "nvlink_throughput")
DEFAULT_MS, SECOND_MS = 100, 1000
TENTH, EQUAL = 0.1, 0.7

ASK = """
import sys, time, pynvml as nvml
nvml.nvmlInit()
card = nvml.nvmlDeviceGetHandleByIndex(0)
ask = {"utilization": nvml.nvmlDeviceGetUtilizationRates, "memory": nvml.nvmlDeviceGetMemoryInfo}
for call in ask.values():
    begin = time.process_time()
    for _ in range(2000):
        call(card)
    print((time.process_time() - begin) / 2000)
"""


class Driver:
    """Eight devices that are at work, or rest."""

    def __init__(self, driver: FakeDriver) -> None:
        self.driver = driver
        self._random = random.Random(1)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Let use of all devices change each second."""
        done = threading.Event()
        thread = threading.Thread(target=self._work, args=(done,))
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _work(self, done: threading.Event) -> None:
        while not done.wait(1):
            devices = self.driver.scenario["devices"]
            for spec in devices:
                spec["utilization"] = {"gpu": self._random.randrange(5, 100), "memory": 20}
                spec["memory_external"] = self._random.randrange(20_000) * MIB
            self.driver.update(devices=devices)


class Meter:
    """Measures windows of equal length."""

    def __init__(self, driver: FakeDriver, seconds: float) -> None:
        self.driver = driver
        self.seconds = seconds

    def window(self, viewers: Viewers, pids: Sequence[int]) -> dict[str, float]:
        """Return what happens in one, each number per minute."""
        before = self._now(viewers, pids)
        time.sleep(self.seconds)
        after = self._now(viewers, pids)
        times = 60 / (after["at"] - before["at"])
        found = {name: round((after[name] - before[name]) * times, 3) for name in after}
        print(".", end="", flush=True)
        return found

    def _now(self, viewers: Viewers, pids: Sequence[int]) -> dict[str, float]:
        return {
            "processor_s": processor_seconds(*pids),
            "nvml_calls": self.driver.nvml_calls,
            "messages": viewers.messages,
            "octets": viewers.octets,
            "at": time.monotonic(),
        }


def ours(jupyter: Jupyter, driver: Driver, meter: Meter, crowds: Sequence[int]) -> dict[str, Any]:
    """Measure our sidebar, with devices at work and with devices that rest."""
    found: dict[str, Any] = {"sidebar": {}, "idle": {}}
    pids = (jupyter.pid, jupyter.broker())
    for number in crowds:
        with Viewers(jupyter.port, TOKEN) as viewers:
            for _ in range(number):
                viewers.open("genv-jupyter/v1/events")
            time.sleep(2)  # the snapshots are through
            found["idle"][str(number)] = meter.window(viewers, pids)
            with driver.at_work():
                time.sleep(2)
                found["sidebar"][str(number)] = meter.window(viewers, pids)
    return found


def theirs(jupyter: Jupyter, driver: Driver, meter: Meter, crowds: Sequence[int]) -> dict[str, Any]:
    """Measure nvdashboard: five charts at its own rate, and one at ours."""
    found: dict[str, Any] = {"chart": {}, "charts": {}}
    kinds = {"chart": (CHARTS[:1], SECOND_MS), "charts": (CHARTS, DEFAULT_MS)}
    for kind, (charts, rate) in kinds.items():
        say = f'{{"updateFrequency": {rate}, "isPaused": false}}'.encode()
        for number in crowds:
            with Viewers(jupyter.port, TOKEN) as viewers, driver.at_work():
                for _ in range(number):
                    for chart in charts:
                        viewers.open(f"nvdashboard/{chart}")
                viewers.say(say)  # only now: a server at its limit opens none
                time.sleep(2)
                found[kind][str(number)] = meter.window(viewers, (jupyter.pid,))
    return found


def fetched(folder: Path) -> Path:
    """Fetch nvdashboard; for its own server only: installed, every server here would have it."""
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder)]
    subprocess.run([*command, THEIRS], check=True)
    return folder


def call_seconds(driver: FakeDriver) -> float:
    """Return the processor time of a call to the fake driver, the cheapest of two kinds."""
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        env=os.environ | driver.environ,
        capture_output=True,
        text=True,
        check=True,
    )
    return min(map(float, done.stdout.split()))


def measure(seconds: float, crowds: Sequence[int]) -> dict[str, Any]:
    """Measure everything."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="genv-viewers-")))
        folder = fetched(directory / "nvdashboard")
        pcie = {"generation": 4, "generation_max": 4, "width": 16, "width_max": 16}
        pcie |= {"sent": 100_000, "received": 200_000}
        specs = [server_device(index, pcie=pcie) for index in range(DEVICES)]
        fake = stack.enter_context(FakeDriver(directory / "driver", {"devices": specs}))
        driver, meter = Driver(fake), Meter(fake, seconds)
        found: dict[str, Any] = {"call_us": round(call_seconds(fake) * 1e6, 2), "devices": DEVICES}
        home = directory / "ours" / "gpu"
        stack.callback(end_broker, rendezvous.address(str(home), ""))
        with Jupyter(directory / "ours", "genv_jupyter", fake.environ) as jupyter:
            found |= ours(jupyter, driver, meter, crowds)
        environ = fake.environ | {"PYTHONPATH": str(folder)}
        with Jupyter(directory / "theirs", "jupyterlab_nvdashboard", environ) as jupyter:
            found |= theirs(jupyter, driver, meter, crowds)
    return found


def without_driver(found: dict[str, Any], kind: str, number: int) -> float:
    """Return processor seconds per minute less those of the fake driver's calls."""
    one = found[kind][str(number)]
    return float(max(0.0, one["processor_s"] - one["nvml_calls"] * found["call_us"] / 1e6))


def verdicts(found: dict[str, Any], crowds: Sequence[int]) -> list[tuple[str, str, bool]]:
    """Compare with what was to be reached: (what, measured, reached)."""
    few, many = min(crowds), max(crowds)
    calls = [found["sidebar"][str(number)]["nvml_calls"] for number in (few, many)]
    growth = calls[1] / calls[0]
    judged = [
        ("calls of ours, most viewers to fewest: 0.9 to 1.1", f"{growth:.2f}", 0.9 <= growth <= 1.1)
    ]
    of: Callable[[str], float] = lambda kind: without_driver(found, kind, many)  # noqa: E731
    for what, kind, most in (
        (f"our sidebar at most {TENTH} of its charts", "charts", TENTH),
        (f"our sidebar at most {EQUAL} of its chart at 1 Hz", "chart", EQUAL),
    ):
        ratio = of("sidebar") / max(1e-9, of(kind))
        judged.append((f"{what}, {many} viewers", f"{ratio:.2f}", ratio <= most))
    told = found["idle"][str(many)]["octets"]
    judged.append((f"octets a minute to {many} viewers of idle devices: 0", f"{told:g}", told == 0))
    more = found["idle"][str(many)]["processor_s"] - found["idle"][str(few)]["processor_s"]
    judged.append(
        (
            f"processor of {many} viewers of idle devices: < 0.2 s a minute",
            f"{more:.2f} s",
            more < 0.2,
        )
    )
    return judged


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and keep the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each window (20)")
    parser.add_argument(
        "--viewers", type=int, nargs="+", default=CROWDS, help="how many (1 10 100)"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the file goes")
    options = parser.parse_args(arguments)
    found = measure(options.seconds, options.viewers)
    labels = {"sidebar": "ours, sidebar", "idle": "ours, idle devices"}
    labels |= {"chart": "nvdashboard, 1 chart, 1 Hz", "charts": "nvdashboard, 5 charts, 10 Hz"}
    rows = [
        [
            label,
            number,
            f"{one['processor_s']:.2f}",
            f"{without_driver(found, kind, int(number)):.2f}",
            f"{one['nvml_calls']:.0f}",
            f"{one['messages']:.0f}",
            f"{one['octets'] / 2**20:.2f}",
        ]
        for kind, label in labels.items()
        for number, one in found[kind].items()
    ]
    print(f"{DEVICES} devices, per minute; a call to the fake driver takes {found['call_us']} µs")
    header = ["", "viewers", "processor s", "less driver", "NVML calls", "messages", "MiB"]
    print_table(header, rows)
    judged = verdicts(found, options.viewers)
    print()
    print_table(
        ["to reach", "measured", ""],
        [[what, value, "reached" if reached else "NOT REACHED"] for what, value, reached in judged],
    )
    found["targets"] = [
        {"target": what, "measured": value, "reached": reached} for what, value, reached in judged
    ]
    print(f"\nwritten to {keep('viewers', found, options.results)}")


if __name__ == "__main__":
    main()
