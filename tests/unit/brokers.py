"""A broker in this process over simulated devices, with real processes as its kernels."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from genv_jupyter.api.doors import user_name
from genv_jupyter.broker.config import BrokerConfig
from genv_jupyter.broker.service import Broker
from genv_jupyter.devices.simulated import SimulatedSource
from genv_jupyter.devices.source import ProcessReading
from genv_jupyter.isolation.environ import REVISION, VISIBLE
from genv_jupyter.ledger.live import LiveLedger
from genv_jupyter.model import (
    Cuda,
    Environment,
    EnvironmentPatch,
    KernelReport,
    Principal,
    Request,
    ServerReport,
)
from genv_jupyter.policy import Policy

GIB = 2**30
WHOLE = Request(gpus=1)
HALF = Request(fraction=0.5)


class Clock:
    """A clock that stands until it is turned."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


class Bench:
    """A broker, its devices, and the processes that play servers and kernels."""

    def __init__(
        self,
        path: Path,
        spec: str = "2x24GiB",
        policy: Policy | None = None,
        *,
        server: str | None = None,
        config: BrokerConfig | None = None,
        children: list[subprocess.Popen[bytes]] | None = None,
    ) -> None:
        self.path = path
        self.policy = policy
        self.config = config
        self.source = SimulatedSource.from_spec(spec)
        self.clock = Clock()
        self.steady = Clock()
        self.me = Principal(realm="local", id=str(os.getuid()), name=user_name(os.getuid()))
        self.children = [] if children is None else children
        self.server = server or str(uuid.uuid4())
        self.broker = self.open()
        self.server_process = self.children[0] if self.children else self.process()
        self.register()

    def open(self) -> Broker:
        return Broker(
            LiveLedger(self.path),
            self.source,
            self.policy,
            clock=self.clock,
            steady=self.steady,
            config=self.config,
        )

    def pass_time(self, seconds: float) -> None:
        """Let time pass."""
        self.clock.now += seconds
        self.steady.now += seconds

    def reopen(self) -> None:
        """What a crash leaves: nothing but the ledger."""
        self.broker.books.ledger.close()
        self.broker = self.open()

    def close(self) -> None:
        self.broker.close()
        for child in self.children:
            child.kill()
            child.wait()

    def process(self) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(["sleep", "600"])
        self.children.append(child)
        return child

    def end(self, child: subprocess.Popen[bytes]) -> None:
        child.kill()
        child.wait()

    def register(self, pool: str | None = None, reservation: str | None = None) -> None:
        report = ServerReport(
            pid=self.server_process.pid, version="0.1.0", pool=pool, reservation=reservation
        )
        self.broker.put_server(self.me, self.server, report)

    def starting(self, kernel: str | None = None, **fields: object) -> str:
        kernel = kernel or str(uuid.uuid4())
        self.tell(kernel, phase="starting", **fields)
        return kernel

    def tell(self, kernel: str, **fields: object) -> Environment:
        return self.broker.put_kernel(self.me, self.server, kernel, KernelReport(**fields))

    def kernel(
        self,
        path: str = "a.ipynb",
        process: subprocess.Popen[bytes] | None = None,
        **fields: object,
    ) -> Kernel:
        kernel = self.starting(path=path, **fields)
        process = process or self.process()
        self.tell(kernel, phase="running", pid=process.pid, **self.seen(kernel))
        return Kernel(self, kernel, process)

    def seen(self, kernel: str) -> dict[str, object]:
        """What is read back in a process that has what it is to have now."""
        return read_back(self.broker.environment(self.me, kernel).environ)

    def applied(self, kernel: str) -> Environment:
        """Tell, as the process itself does, that what it is to have was applied in it."""
        body = EnvironmentPatch(applied="live", cuda="not_initialized", **self.seen(kernel))
        return self.broker.patch(self.me, kernel, body)

    def device(self, number: int) -> str:
        return self.source.devices[number].uuid

    def tick(self, seconds: float = 0.0) -> None:
        self.pass_time(seconds)
        self.broker.tick()


class Kernel:
    """A running kernel."""

    def __init__(self, bench: Bench, kernel: str, process: subprocess.Popen[bytes]) -> None:
        self.bench = bench
        self.id = kernel
        self.process = process

    @property
    def now(self) -> Environment:
        return self.bench.broker.environment(self.bench.me, self.id)

    @property
    def devices(self) -> list[str]:
        return [grant.device for grant in self.now.grants if grant.state == "granted"]

    def attach(
        self, request: Request, cuda: Cuda = "not_initialized", restart: bool = False
    ) -> Environment:
        pid = self.process.pid
        self.bench.broker.attach(
            self.bench.me, self.id, request, cuda=cuda, restart=restart, peer_pid=pid
        )
        if cuda == "not_initialized" and not restart:
            return self.bench.applied(self.id)
        return self.now

    def detach(self, cuda: Cuda = "not_initialized") -> Environment:
        after = self.bench.broker.detach(
            self.bench.me, self.id, cuda=cuda, peer_pid=self.process.pid
        )
        return self.bench.applied(self.id) if cuda == "not_initialized" else after

    def use(self, number: int, memory: int) -> None:
        """Let the process show up on a device."""
        processes = self.bench.source.devices[number].processes
        assert processes is not None
        processes.append(ProcessReading(self.process.pid, memory, "compute"))

    def restart(self) -> None:
        """Restart as a provisioner does: cleanup, pre_launch, post_launch."""
        self.bench.tell(self.id, phase="restarting")
        self.bench.end(self.process)
        for device in self.bench.source.devices:
            device.processes = [p for p in device.processes or () if p.pid != self.process.pid]
        self.bench.tell(self.id, phase="starting")
        self.process = self.bench.process()
        seen = self.bench.seen(self.id)
        self.bench.tell(self.id, phase="running", pid=self.process.pid, **seen)


def read_back(environ: Mapping[str, str | None] | None) -> dict[str, object]:
    """What a report says of a process that these variables were put into."""
    assert environ is not None
    return {"revision": int(environ[REVISION] or ""), "visible": environ[VISIBLE]}


@contextmanager
def bench(
    path: Path,
    spec: str = "2x24GiB",
    policy: Policy | None = None,
    *,
    config: BrokerConfig | None = None,
) -> Iterator[Bench]:
    made = Bench(path / "ledger.sqlite", spec, policy, config=config)
    try:
        yield made
    finally:
        made.close()
