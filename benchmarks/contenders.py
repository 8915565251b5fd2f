"""The ways to attach and detach that are compared, each with the same number of live others.

Every contender has 256 devices of 24 GiB, on which the others hold 200 MiB each, and ``once``
attaches 200 MiB to one environment more and gives them back.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from genv_jupyter.api.client import Client
from genv_jupyter.api.doors import user_name
from genv_jupyter.broker import directories
from genv_jupyter.broker.service import Broker
from genv_jupyter.devices.simulated import SimulatedSource
from genv_jupyter.isolation import processes
from genv_jupyter.ledger.live import PRAGMAS, LiveLedger
from genv_jupyter.ledger.records import RecordsLedger
from genv_jupyter.ledger.rows import DeviceRow, EnvironmentRow, GrantRow
from genv_jupyter.model import Principal, Request
from genv_jupyter.units import WHOLE

DEVICES = 256
SPEC = f"{DEVICES}x24GiB"
SHARE = 200 * 2**20
REQUEST = Request(memory="200MiB")
MEASURED = "00000000-0000-4000-8000-ffffffffffff"


class Contender(Protocol):
    """Something that can attach and detach."""

    def once(self) -> None:
        """Attach, and detach again."""


# -- ours -----------------------------------------------------------------------------------------


def seed(path: Path, others: int) -> None:
    """Fill a ledger with ``others`` environments, each with a grant, and one without."""
    owner = f"local:{os.getuid()}"
    ledger = LiveLedger(path)
    ledger.open()
    with ledger.transaction() as change:
        uuids = [device.uuid for device in SimulatedSource.from_spec(SPEC).devices]
        for uuid in uuids:
            change.put_device(
                DeviceRow(uuid=uuid, memory_capacity=24 * 2**30, compute_capacity=WHOLE)
            )
        for number in range(others):
            name = f"00000000-0000-4000-8000-{number:012x}"
            change.put_environment(_environment(name, owner, "granted"))
            change.add_grant(_grant(number + 1, name, owner, uuids[number % DEVICES]))
        change.put_environment(_environment(MEASURED, owner, "released"))
    ledger.close()


def _environment(name: str, owner: str, state: Any) -> EnvironmentRow:
    """A kernel's environment; this process plays the kernel, so that nobody frees it."""
    start = processes.start_of(os.getpid())
    row = EnvironmentRow.nobody(owner)
    changes = {"id": name, "user": user_name(os.getuid()), "kind": "kernel", "launch": 1}
    changes |= {"name": "a.ipynb", "pid": os.getpid(), "start": start, "state": state}
    fields = {field: getattr(row, field) for field in row.__struct_fields__}
    return EnvironmentRow(**{**fields, **changes, "created": time.time()})


def _grant(number: int, environment: str, owner: str, device: str) -> GrantRow:
    return GrantRow(
        id=number,
        environment=environment,
        device=device,
        owner=owner,
        memory=SHARE,
        compute=None,
        exclusive=False,
        counted_memory=SHARE,
        counted_compute=0,
        counted_exclusive=False,
        state="granted",
        applied="live",
        since=time.time(),
    )


class InProcess:
    """(a) The broker itself, without a socket, with its ledgers on disk."""

    def __init__(self, directory: Path, others: int) -> None:
        self.path = directory / "ledger.sqlite"
        seed(self.path, others)
        self.ledger = LiveLedger(self.path)
        records = RecordsLedger(directory / "records.sqlite")
        records.open()
        self.broker = Broker(self.ledger, SimulatedSource.from_spec(SPEC), records=records)
        uid = os.getuid()
        self.me = Principal(realm="local", id=str(uid), name=user_name(uid))

    def once(self) -> None:
        pid = os.getpid()
        self.broker.attach(self.me, MEASURED, REQUEST, cuda="not_initialized", peer_pid=pid)
        self.broker.detach(self.me, MEASURED, cuda="not_initialized", peer_pid=pid)

    def statements_of_one(self) -> list[tuple[str, Any]]:
        """Return the SQL of one attach and detach, with its parameters."""
        said: list[tuple[str, Any]] = []
        self.ledger.trace = lambda text, parameters: said.append((text, parameters))
        self.once()
        self.ledger.trace = None
        return said

    def close(self) -> None:
        self.broker.close()


class Floor:
    """(d) The same statements through the bare sqlite3 module, on a copy of the same ledger."""

    def __init__(self, directory: Path, model: InProcess) -> None:
        self.statements = model.statements_of_one()
        path = directory / "floor.sqlite"
        with (
            contextlib.closing(sqlite3.connect(model.path)) as source,
            contextlib.closing(sqlite3.connect(path)) as copy,
        ):
            source.backup(copy)
        self.connection = sqlite3.connect(path, isolation_level=None)
        for name, value in PRAGMAS.items():
            self.connection.execute(f"PRAGMA {name}={value}")
        self.cursor = self.connection.cursor()

    def once(self) -> None:
        for text, parameters in self.statements:
            self.cursor.execute(text, parameters)

    def close(self) -> None:
        self.connection.close()


class OverSocket:
    """(b) A client and a broker process, as a kernel's magic uses them."""

    def __init__(self, directory: Path, others: int) -> None:
        os.environ["GENV_JUPYTER_HOME"] = str(directory / "home")
        os.environ["GENV_JUPYTER_SIMULATE"] = SPEC
        seed(directories.live_directory(SPEC) / "ledger.sqlite", others)
        self.client = Client(timeout=60)
        self.pid = self.client.health().pid

    def once(self) -> None:
        self.client.attach(MEASURED, REQUEST, cuda="not_initialized")
        self.client.detach(MEASURED, cuda="not_initialized")

    def close(self) -> None:
        self.client.close()
        end(self.pid)


def end(pid: int, seconds: float = 15.0) -> None:
    """End a process that is not our child, and wait until it is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            os.kill(pid, 0)
            time.sleep(0.02)
        raise TimeoutError(f"the broker (pid {pid}) does not end")


# -- genv 1.4.3 -----------------------------------------------------------------------------------


class GenvFunctions:
    """(c) genv's Python functions, in this process."""

    def __init__(self, directory: Path, others: int) -> None:
        self.directory = directory / "genv"
        self.directory.mkdir()
        with self.variables():
            self._seed(others)

    @contextlib.contextmanager
    def variables(self) -> Iterator[None]:
        """Run with the variables of an active environment of genv."""
        ours = {
            "GENV_TMPDIR": str(self.directory),
            "GENV_ENVIRONMENT_ID": "measured",
            "GENV_GPU_MEMORY": "200mi",
            "PATH": f"{Path(__file__).parent / 'stand_in'}:{os.environ['PATH']}",
        }
        before = dict(os.environ)
        os.environ.update(ours)
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)

    def _seed(self, others: int) -> None:
        import genv.core.devices
        import genv.core.envs
        from genv.entities import Device, Env

        names = [f"env-{number}" for number in range(others)]
        now = time.strftime("%d/%m/%Y %H:%M:%S")
        with genv.core.envs.State() as envs:
            for name in (*names, "measured"):
                config = Env.Config(None, "200mi", 1)
                envs.envs.append(
                    Env(name, os.getuid(), now, user_name(os.getuid()), config, [os.getpid()], [])
                )
        with genv.core.devices.State() as devices:
            if len(devices) != DEVICES:
                raise RuntimeError(f"genv sees {len(devices)} devices instead of {DEVICES}")
            for number, name in enumerate(names):
                attachment = Device.Attachement(name, "200mi", now)
                devices.devices[number % DEVICES].attachments.append(attachment)

    def once(self) -> None:
        import genv.sdk

        with self.variables():
            if len(list(genv.sdk.attach(gpus=1))) != 1:
                raise RuntimeError("genv attached nothing")
            genv.sdk.detach()


class GenvCommand(GenvFunctions):
    """(c) genv's command: one process to attach, one to detach."""

    def once(self) -> None:
        genv = Path(sys.executable).parent / "genv"
        with self.variables():
            for words in (("attach", "--count", "1"), ("detach",)):
                subprocess.run([genv, *words], check=True, stdout=subprocess.DEVNULL)


def available() -> bool:
    """Say whether genv is installed here."""
    return shutil.which("genv", path=str(Path(sys.executable).parent)) is not None
