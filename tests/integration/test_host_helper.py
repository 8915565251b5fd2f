"""The daemon of a host with privileges separated: an ordinary user serves, a helper is root's."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from genv_jupyter.api.client import Client
from genv_jupyter.isolation import processes
from genv_jupyter.isolation.environ import MPS_MEMORY, MPS_PIPE
from genv_jupyter.isolation.mps_runner import name_of
from genv_jupyter.model import Environment, NewEnvironment, Request
from tests.debian import unpacked
from tests.fakedriver import FakeDriver, device, uuid
from tests.integration.daemons import User, as_user, make_users, serving
from tests.integration.helped import HelpedDaemon, Holders

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="NOT TESTED: only root has a root helper")


@pytest.fixture(scope="module")
def users() -> Iterator[dict[str, User]]:
    yield from make_users()


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gj") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="module")
def program(place: Path) -> str:
    path = place / "control"
    shutil.copy(unpacked("nvidia-cuda-mps") / "usr/bin/nvidia-cuda-mps-control", path)
    return str(path)


@pytest.fixture(scope="module")
def driver(place: Path) -> Iterator[FakeDriver]:
    """Two devices of a driver that everybody can load."""
    where = place / "driver"
    where.mkdir()
    with FakeDriver(where, {"devices": [device(0), device(1)]}) as driver:
        for library in where.glob("*.so*"):  # links into a cache that may be root's alone
            there = library.resolve()
            library.unlink()
            shutil.copy(there, library)
        subprocess.run(["chmod", "-R", "a+rwX", where], check=True)
        yield driver


@pytest.fixture(scope="module")
def daemon(users: dict[str, User], program: str, driver: FakeDriver) -> Iterator[HelpedDaemon]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in driver.environ.items():
            patch.setenv(name, value)
        with serving(
            patch, kind=HelpedDaemon, broker=users["adm"], program=program, spec=""
        ) as made:
            yield made


def test_the_broker_has_no_rights_and_the_helper_little_else(
    daemon: HelpedDaemon, users: dict[str, User]
) -> None:
    status = Path(f"/proc/{daemon.broker}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    me = users["adm"]
    assert set(fields["Uid"].split()) == {str(me.uid)}
    assert set(fields["Gid"].split()) == {str(me.gid)}
    assert {int(fields[name], 16) for name in ("CapPrm", "CapEff", "CapInh", "CapAmb")} == {0}
    print(daemon.log.read_text())
    assert daemon.helper is not None and processes.uid_of(daemon.helper) == 0
    maps = Path(f"/proc/{daemon.helper}/maps").read_text()
    for library in ("sqlite", "sqlalchemy", "nvidia-ml", "libssl", "_ssl"):
        assert library not in maps
    opened = {
        int(it.name): str(it.readlink()) for it in Path(f"/proc/{daemon.helper}/fd").iterdir()
    }
    lines = [it for number, it in opened.items() if number > 2]
    assert len(lines) == 1 and lines[0].startswith("socket:"), "its line, and nothing else"


@pytest.fixture(scope="module")
def holders(place: Path, driver: FakeDriver) -> Iterator[Holders]:
    made = Holders(place)
    yield made
    made.close()


def own(user: User, pid: int, request: Request | None) -> Environment:
    """Let a user make an environment for a process, and attach."""

    def call() -> Environment:
        client = Client(start=False)
        made = client.create(NewEnvironment(kind="command", pid=pid))
        return made if request is None else client.attach(made.id, request)

    return as_user(user, call)


def seen(user: User, environment: str) -> Environment:
    return as_user(user, lambda: Client(start=False).environment(environment))


def test_shared_grants_of_users_are_under_mps(
    daemon: HelpedDaemon, users: dict[str, User], holders: Holders
) -> None:
    ann = users["ann"]
    held = own(ann, holders.of(ann).pid, Request(fraction=0.5, devices=("0",)))
    (grant,) = held.grants
    assert grant.limits.memory.strength == "driver" and held.environ is not None
    assert held.environ[MPS_PIPE] == str(daemon.room / name_of(uuid(0), ann.uid))
    assert held.environ[MPS_MEMORY] is not None
    pipe = Path(held.environ[MPS_PIPE] or "")
    pid = peer_of(pipe)
    assert processes.uid_of(pid) == ann.uid
    found = pipe.stat()
    assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (ann.uid, 0o700)
    variables = Path(f"/proc/{pid}/environ").read_bytes()
    assert b"CUDA_VISIBLE_DEVICES=" + uuid(0).encode() in variables and b"GENV" not in variables


def peer_of(pipe: Path) -> int:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.connect(str(pipe / "control"))
        return processes.peer(sock)[0]
