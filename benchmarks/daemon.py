"""How many attach + detach pairs a host daemon serves, to 1, 16 and 64 clients of four users.

``sudo python benchmarks/daemon.py`` prints a table and writes ``benchmarks/results/daemon.json``.
Each client is a process with an environment of its own, which attaches a share of a device and
gives it back, as fast as it is answered. Without root all of them are one user. The clients work on
the processors that the daemon works on, and so does whatever else the machine does: what daemon and
clients took of them for a pair is told apart, and is what two versions are best compared by.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from figures import RESULTS, keep, print_table, quantile, summary, timed

from genv_jupyter.api.client import Client
from genv_jupyter.errors import BrokerDown
from genv_jupyter.model import NewEnvironment, Request

CLIENTS = (1, 16, 64)
USERS = 4
FIRST_UID = 64_200
"""Uids that nobody has: an account is not needed to be somebody."""
DEVICES = "16x80GiB"
REQUEST = Request(memory="1GiB")
SERVED_PAIRS, SERVED_P99 = 500, 50.0
"""What is to be reached at 16 clients: pairs a second, and milliseconds."""


@contextmanager
def daemon() -> Iterator[int]:
    """A host daemon with simulated devices, found by this process and its children; its pid."""
    with tempfile.TemporaryDirectory(prefix="genv-jupyter-bench-") as name:
        top = Path(name)
        top.chmod(0o755)
        sock = top / "run" / "broker.sock"
        os.environ["GENV_JUPYTER_HOST_SOCKET"] = str(sock)
        for other in ("GENV_JUPYTER_HOME", "GENV_JUPYTER_SOCKET", "GENV_JUPYTER_SIMULATE"):
            os.environ.pop(other, None)
        (top / "etc").mkdir()
        command = [sys.executable, "-m", "genv_jupyter.broker", "--host", "--socket", str(sock)]
        command += ["--state", str(top / "state"), "--config", str(top / "etc")]
        with (top / "log").open("wb") as log:
            process = subprocess.Popen(
                command, env={**os.environ, "GENV_JUPYTER_SIMULATE": DEVICES}, stderr=log
            )
        try:
            wait_for(process)
            yield process.pid
        finally:
            process.terminate()
            process.wait()


def wait_for(process: subprocess.Popen[bytes]) -> None:
    """Wait until the daemon serves."""
    while True:
        try:
            Client(start=False).health()
            return
        except BrokerDown:
            if process.poll() is not None:
                raise SystemExit("the daemon did not start") from None
            time.sleep(0.05)


def processor(pid: int) -> float:
    """Return the seconds of processor time that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def children() -> float:
    """Return the seconds of processor time that clients which have ended took."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def client(uid: int | None, began: float, seconds: float) -> list[float]:
    """Attach and detach until the time is over; return the milliseconds of each pair."""
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    broker = Client(start=False, timeout=60)
    own = broker.create(NewEnvironment(kind="command", pid=os.getpid())).id

    def once() -> None:
        broker.attach(own, REQUEST, cuda="not_initialized")
        broker.detach(own, cuda="not_initialized")

    once()
    time.sleep(max(0.0, began - time.monotonic()))
    times = []
    while time.monotonic() < began + seconds:
        times.append(timed(once))
    return times


def measure(clients: int, seconds: float) -> list[float]:
    """Let so many clients of four users work at once; return all their times."""
    began = time.monotonic() + 1 + clients / 16
    pipes = []
    for number in range(clients):
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                uid = FIRST_UID + number % USERS if os.getuid() == 0 else None
                found = client(uid, began, seconds)
                with os.fdopen(write, "w") as file:
                    json.dump(found, file)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        os.close(write)
        pipes.append((pid, read))
    times: list[float] = []
    for pid, read in pipes:
        with os.fdopen(read) as file:
            said = file.read()
        if os.waitpid(pid, 0)[1]:
            raise SystemExit("a client failed")
        times += json.loads(said)
    return times


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and keep the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=10.0, help="for each number (10)")
    parser.add_argument("--clients", type=int, nargs="+", default=CLIENTS, help="at once")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the file goes")
    options = parser.parse_args(arguments)
    results: dict[str, object] = {"users": USERS if os.getuid() == 0 else 1, "devices": DEVICES}
    rows = []
    judged = []
    for clients in options.clients:
        with daemon() as pid:
            before = processor(pid), children()
            times = measure(clients, options.seconds)
            took = processor(pid) - before[0], children() - before[1]
        rate, p99 = len(times) / options.seconds, quantile(times, 0.99)
        each = [1000 * seconds / len(times) for seconds in took]
        results[str(clients)] = {
            "pairs_per_second": round(rate, 1),
            **summary(times),
            "daemon_processor_ms": round(each[0], 3),
            "clients_processor_ms": round(each[1], 3),
        }
        shown = [f"{rate:.0f}", f"{quantile(times, 0.5):.1f}", f"{p99:.1f}"]
        rows.append([str(clients), *shown, *(f"{part:.2f}" for part in each)])
        if clients == 16:
            judged = [
                [f"{SERVED_PAIRS} pairs/s", f"{rate:.0f}", said(rate >= SERVED_PAIRS)],
                [f"p99 at most {SERVED_P99:g} ms", f"{p99:.1f} ms", said(p99 <= SERVED_P99)],
            ]
    print(f"attach + detach through the host daemon, {results['users']} users")
    header = ["clients", "pairs/s", "median ms", "p99 ms", "daemon's CPU ms", "clients' CPU ms"]
    print_table(header, rows)
    if judged:
        print()
        print_table(["to reach at 16 clients", "measured", ""], judged)
    keep("daemon", results, options.results)


def said(reached: bool) -> str:
    """Say whether it was."""
    return "reached" if reached else "NOT REACHED"


if __name__ == "__main__":
    main()
