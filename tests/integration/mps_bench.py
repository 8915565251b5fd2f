"""A broker in this process whose devices pass for real ones, with NVIDIA's real MPS daemons.

What a device can do (capability, compute mode) is told by the simulated source; only that it is
simulated is not. There is no MPS server without a GPU, so no client either.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from genv_jupyter.broker.config import BrokerConfig
from genv_jupyter.broker.service import Broker
from genv_jupyter.devices.simulated import SimulatedSource
from genv_jupyter.devices.source import Inventory
from genv_jupyter.isolation.mps import Daemons, Post
from genv_jupyter.isolation.mps_control import ControlDaemon
from genv_jupyter.ledger.live import LiveLedger
from genv_jupyter.policy import Policy
from tests.unit.brokers import Bench


class RealSource(SimulatedSource):
    """Devices that are not marked as simulated."""

    cuda_version: int | None = 12_020

    def read(self, *, details: bool = False) -> Inventory:
        inventory = super().read(details=details)
        return msgspec.structs.replace(inventory, simulated=False, cuda_version=self.cuda_version)


class MpsBench(Bench):
    """A bench with MPS; ``directory`` is short, for sockets are in it."""

    def __init__(
        self,
        directory: Path,
        program: str,
        policy: Policy | None = None,
        *,
        server: str | None = None,
        children: list[subprocess.Popen[bytes]] | None = None,
        config: BrokerConfig | None = None,
    ) -> None:
        self.directory = directory
        self.program = program
        super().__init__(
            directory / "ledger.sqlite",
            policy=policy,
            server=server,
            children=children,
            config=config,
        )

    def open(self) -> Broker:
        if not isinstance(self.source, RealSource):
            self.source = RealSource(self.source.devices)
        return Broker(
            LiveLedger(self.path),
            self.source,
            self.policy,
            clock=self.clock,
            steady=self.steady,
            mps=self.directory / "mps",
            mps_program=self.program,
            config=self.config,
        )

    @property
    def daemons(self) -> Daemons:
        found = self.broker.core.mps.daemons
        assert found is not None
        return found

    def post(self, number: int) -> Post:
        """Return where our daemon of a device is."""
        return Post(self.device(number), os.getuid())

    def daemon(self, number: int) -> ControlDaemon:
        """Return the way to ask our daemon of a device."""
        return self.daemons.control(self.post(number))

    def gate(self) -> Gate:
        """Stop every fence before its daemon is ensured."""
        return Gate(self.daemons)

    def close(self) -> None:
        super().close()
        for path in (self.directory / "mps").glob("*"):
            pid = ControlDaemon(path, "", self.program).pid()
            if pid is not None:
                os.kill(pid, signal.SIGKILL)


class Gate:
    """Holds whoever prepares a fence until it is opened."""

    def __init__(self, daemons: Daemons) -> None:
        self.reached = threading.Semaphore(0)
        self.opened = threading.Event()
        self._ensure = daemons.ensure
        daemons.ensure = self._wait  # type: ignore[method-assign]

    def _wait(self, post: Post) -> ControlDaemon:
        self.reached.release()
        assert self.opened.wait(60)
        return self._ensure(post)


@contextmanager
def mps_bench(
    program: str, policy: Policy | None = None, config: BrokerConfig | None = None
) -> Iterator[MpsBench]:
    """Make a bench, and end it with its daemons."""
    with tempfile.TemporaryDirectory(prefix="gj") as name:
        made = MpsBench(Path(name), program, policy, config=config)
        try:
            yield made
        finally:
            made.close()
