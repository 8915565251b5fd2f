"""A broker over the real reader of the driver, and a fake driver that gets into trouble."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from genv_jupyter.broker.service import Broker
from genv_jupyter.devices.nvml import NvmlSource
from genv_jupyter.errors import GpuError
from genv_jupyter.isolation import processes
from genv_jupyter.isolation.environ import MARKER
from genv_jupyter.ledger.live import LiveLedger
from genv_jupyter.model import Device, Request
from genv_jupyter.notices import Notice
from tests.fakedriver import FakeDriver, ProcessSpec
from tests.unit.brokers import Bench, Clock, Kernel

PATIENT, HASTY = 60.0, 3.0
"""Deadlines of a reading: generous, so that a busy machine is not taken for a driver that hangs;
and short, for one that does."""


class Stage(Bench):
    """A bench whose devices are those of the fake driver, read by the child process.

    Attributes
    ----------
    driver
        Whose trouble it is.
    late
        Time for what the source tries again; it jumps with every tick.
    """

    def __init__(self, path: Path, driver: FakeDriver, *, hangs: bool = False) -> None:
        self.driver = driver
        self.late = Clock()
        self.nvml = NvmlSource(
            deadline=HASTY if hangs else PATIENT,
            opening_deadline=2.0 if hangs else PATIENT,
            clock=self.late,
        )
        super().__init__(path)

    def open(self) -> Broker:
        """Open a broker that reads the driver."""
        ledger = LiveLedger(self.path)
        return Broker(ledger, self.nvml, self.policy, clock=self.clock, steady=self.steady)

    def tick(self, seconds: float = 1.0) -> None:
        """Let a second pass, and much more for what is tried again."""
        self.late.now += 120
        super().tick(seconds)

    # -- who is there ---------------------------------------------------------------------------

    def holder(self, **request: object) -> Kernel:
        """Start a kernel that holds something: half of the first device, if nothing is said."""
        kernel = self.kernel(path="train.ipynb")
        asked = request or {"fraction": 0.5, "devices": (self.driver.uuids[0],)}
        kernel.attach(Request(**asked))  # type: ignore[arg-type]
        self.tick()
        return kernel

    def lists(self, uuid: str, *processes: ProcessSpec) -> None:
        """Let the driver list these processes on a device."""
        self.driver.set_processes(uuid, processes)

    def stranger(self) -> subprocess.Popen[bytes]:
        """Start a process that belongs to nobody."""
        return self.process()

    def child_of(self, kernel: Kernel) -> int:
        """Start a process that carries the marker of a kernel's environment."""
        child = subprocess.Popen(
            ["sleep", "600"], env={**os.environ, MARKER: kernel.id}, start_new_session=True
        )
        self.children.append(child)
        while processes.marker(child.pid) is None:  # on its way into the program
            pass
        return child.pid

    def reader(self) -> int:
        """Return the pid of the process that reads the driver."""
        assert self.nvml._current is not None
        return self.nvml._current.pid

    # -- what is seen ---------------------------------------------------------------------------

    def device(self, number: int) -> str:
        """Return the UUID of a device of the driver."""
        return self.driver.uuids[number]

    def shown(self) -> dict[str, Device]:
        """Return the devices as the doors show them."""
        return {device.uuid: device for device in self.broker.devices()}

    def health(self, number: int = 0) -> str | None:
        """Return the health of a device, ``None`` where it is not listed."""
        device = self.shown().get(self.driver.uuids[number])
        return None if device is None else device.health

    def notices(self, kind: str) -> list[Notice]:
        """Return what the user is told of that kind."""
        return [notice for notice in self.broker.notices(self.me) if notice.kind == kind]

    def trouble(self) -> str:
        """Return the sentence on the driver as a whole."""
        return self.broker.health().driver or ""

    def answer(self, **request: object) -> str:
        """Return the devices that a new kernel would be given, or the refusal."""
        try:
            found = self.broker.place(self.me, Request(**request))  # type: ignore[arg-type]
        except GpuError as error:
            return f"{error.message} {error.hint} {error.details}"
        return " ".join(grant.device for grant in found.grants)

    def said(self) -> str:
        """Return every sentence that the user can see now."""
        texts = [self.trouble()]
        texts += [device.trouble or "" for device in self.broker.devices()]
        texts += [f"{it.message} {it.hint}" for it in self.broker.notices(self.me)]
        texts += [it.reason or "" for it in self.broker.environments(self.me)]
        texts += [self.answer(gpus=1), self.answer(fraction=0.5), self.answer(memory="1G")]
        return "\n".join(texts)
