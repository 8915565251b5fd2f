"""A broker with rules over simulated devices, real processes, and a clock that the test turns."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from traitlets.config import Config

from genv_jupyter.broker.config import BrokerConfig
from genv_jupyter.broker.rules import enforcer
from genv_jupyter.broker.rules.breaches import RULES
from genv_jupyter.broker.service import Broker
from genv_jupyter.devices.source import ProcessReading
from genv_jupyter.events import Want
from genv_jupyter.isolation import processes
from genv_jupyter.ledger.live import LiveLedger
from genv_jupyter.ledger.records import RecordsLedger
from genv_jupyter.notices import Notice
from tests.unit.brokers import Bench

GRACE, PAUSE = 60, 10
RULE_KINDS = (*RULES, "ended")
ME = os.getuid()

SLEEP = "import time; print(flush=True); time.sleep(600)"
CHILD = (
    "import subprocess, sys\n"
    f"child = subprocess.Popen([sys.executable, '-c', {SLEEP!r}], stdout=subprocess.PIPE)\n"
    f"child.stdout.readline()\n{SLEEP}"
)
STUBBORN = f"import signal; signal.signal(15, signal.SIG_IGN); {SLEEP}"
DEAF = f"import signal; signal.signal(2, signal.SIG_IGN); {STUBBORN}"


class Proof:
    """What is found out about a process right before a signal; a test says what."""

    def __init__(self) -> None:
        self.strangers: set[int] = set()
        self.without_cuda: set[int] = set()
        self.claimants: set[int] = set()

    def uids(self, pid: int) -> tuple[int, ...]:
        return (ME + 1, ME, ME, ME) if pid in self.strangers else (ME,) * 4

    def runs_cuda(self, pid: int) -> bool:
        return pid not in self.without_cuda

    def claims(self, pid: int) -> bool:
        return pid in self.claimants


class Ruled(Bench):
    """A broker with rules."""

    def __init__(self, path: Path, **rules: Any) -> None:
        self.rules = {"cap_slack": 0, "patience": 0, "pause": PAUSE, **rules}
        self.records = RecordsLedger(path / "records.sqlite")
        self.proof = Proof()
        super().__init__(path / "ledger.sqlite")

    def open(self) -> Broker:
        self.records.close()
        self.records = RecordsLedger(self.records.path)
        self.records.open()
        broker = Broker(
            LiveLedger(self.path),
            self.source,
            records=self.records,
            clock=self.clock,
            steady=self.steady,
            config=BrokerConfig(Config({"Rules": self.rules})),
        )
        broker.rules.proof = self.proof
        return broker

    def close(self) -> None:
        for device in self.source.devices:
            for reading in device.processes or ():
                if reading.pid != os.getpid() and self.of_ours(reading.pid):
                    os.kill(reading.pid, signal.SIGKILL)
        super().close()

    def of_ours(self, pid: int) -> bool:
        return any(ancestor == os.getpid() for ancestor, _ in processes.ancestors(pid))

    def pass_(self, seconds: int) -> None:
        """Let time pass, second by second."""
        for _ in range(seconds):
            self.tick(1)
            self.broker.tick_rules()

    def script(self, code: str) -> subprocess.Popen[bytes]:
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        self.children.append(child)
        assert child.stdout is not None
        child.stdout.readline()  # it is where it says so
        child.stdout.close()
        return child

    def uses(
        self,
        number: int,
        pid: int,
        memory: int | None,
        kind: Any = "compute",
        name: str | None = None,
    ) -> None:
        device = self.source.devices[number]
        assert device.processes is not None
        device.processes[:] = [it for it in device.processes if it.pid != pid]
        device.processes.append(ProcessReading(pid, memory, kind, name=name))

    def notices(self, *kinds: str) -> list[Notice]:
        """What the rules tell: other parts tell other things."""
        return [it for it in self.broker.notices(self.me) if it.kind in (kinds or RULE_KINDS)]

    def acted(self) -> list[str]:
        return [it.reason or "" for it in self.records.history() if it.event == enforcer.ACTED]

    def wants(self) -> list[Want]:
        return list(self.broker.take_wants(self.server))


def child_of(process: subprocess.Popen[bytes]) -> int:
    text = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return int(text.split()[0])


def gone(pid: int) -> bool:
    return processes.start_of(pid) is None


def wait_for(true: Callable[[], bool]) -> None:
    """Wait until it is so; the time limit of every test bounds it."""
    while not true():
        signal.sigtimedwait([], 0.01)
