"""The host daemon and callers in containers: a pid is a claim, and is proved or refused."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from genv_jupyter.api.client import Client
from genv_jupyter.errors import NotYours, UnknownEnvironment, UnknownProcess
from genv_jupyter.isolation.environ import MARKER
from genv_jupyter.kernel import pids
from genv_jupyter.kernel.session import Session
from genv_jupyter.model import (
    Environment,
    KernelReport,
    NewEnvironment,
    Request,
    ServerReport,
)
from tests.integration.daemons import Daemon, User, as_user, make_users, serving
from tests.integration.namespaces import (
    born,
    entered,
    first_in,
    host_numbers,
    host_pid,
    need_namespaces,
    sandbox,
)

HALF = Request(fraction=0.5)
TWO = ("sh", "-c", "sleep 600 & sleep 600 & echo ready; wait")


@pytest.fixture(scope="module")
def users() -> Iterator[dict[str, User]]:
    yield from make_users()


@pytest.fixture(scope="module", params=["root", "unprivileged"])
def daemon(users: dict[str, User], request: pytest.FixtureRequest) -> Iterator[Daemon]:
    """A daemon that may trace everybody, and one as the systemd unit has it, which may not."""
    need_namespaces()
    user = None if request.param == "root" else users["cat"]
    with pytest.MonkeyPatch.context() as patch, serving(patch, user=user) as made:
        yield made


@pytest.fixture
def running() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        inside = first_in(process)
        if inside is not None:  # with it all others in there
            os.kill(inside, signal.SIGKILL)
        with process:  # waits, and closes what it wrote to
            process.kill()


def made_for(pid: int) -> Environment:
    return Client(start=False).create(NewEnvironment(kind="command", pid=pid))


def waiting() -> tuple[int, int]:
    """Start a process that waits; return its pid here and on the host. It ends with us."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, str(host_pid()).encode())
        os.closerange(3, write + 1)  # what those above read would never end
        while True:
            signal.pause()
    return pid, int(os.read(read, 20))


def gone(user: User, environment: str) -> bool:
    """Say whether an environment ends, as that of a process that has ended."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            as_user(user, lambda: Client(start=False).environment(environment))
        except UnknownEnvironment:
            return True
        time.sleep(0.05)
    return False


def test_a_caller_is_who_it_is_on_the_host(
    daemon: Daemon, users: dict[str, User], running: list[subprocess.Popen[bytes]]
) -> None:
    """Although the host has another process of that user under the pid that it says."""
    ann = users["ann"]
    decoy = subprocess.Popen(["sleep", "600"], user=ann.uid, group=ann.gid)
    running.append(decoy)

    def call() -> tuple[int, int, Environment, Environment]:
        client = Client(start=False)
        held = client.attach(made_for(os.getpid()).id, HALF)
        freed = client.detach(held.id, cuda="not_initialized")
        return os.getpid(), host_pid(), held, freed

    inner, outer, held, freed = born(ann, call, pid=decoy.pid)
    assert (inner, held.pid) == (decoy.pid, outer)
    assert held.grants and not freed.grants  # its own word: the broker knows who asked
    assert gone(ann, held.id)
    assert decoy.poll() is None


def test_its_children_are_who_they_are(daemon: Daemon, users: dict[str, User]) -> None:
    def call() -> tuple[int, int | None, int]:
        inner, outer = waiting()
        return inner, made_for(inner).pid, outer

    inner, known, outer = born(users["ann"], call)
    assert known == outer != inner


def test_a_server_and_its_kernel_in_a_container(daemon: Daemon, users: dict[str, User]) -> None:
    server, kernel = str(uuid.uuid4()), str(uuid.uuid4())

    def call() -> tuple[int | None, int]:
        client = Client(start=False)
        client.register_server(server, ServerReport(pid=os.getpid(), version="1"))
        client.report_kernel(server, kernel, KernelReport(phase="starting", launch=1))
        inner, outer = waiting()
        told = KernelReport(phase="running", launch=1, pid=inner)
        return client.report_kernel(server, kernel, told).pid, outer

    known, outer = born(users["ann"], call)
    assert known == outer
    assert gone(users["ann"], kernel)  # both have ended, and the daemon has seen it of both


def test_a_namespace_below_the_caller_s(daemon: Daemon, users: dict[str, User]) -> None:
    """A kernel in a sandbox of its own has the pid that its server knows it by."""

    def call() -> tuple[Environment, tuple[int, ...]]:
        found = made_for(3)
        assert found.pid is not None
        return found, host_numbers(found.pid)

    def first() -> None:
        inner = sandbox(users["ann"], "sh", "-c", "echo ready; exec sleep 600")
        assert (inner.pid, first_in(inner)) == (2, 3)

    found, numbers = born(users["ann"], call, first=first)
    assert numbers == (found.pid, 3, 1)


@pytest.mark.parametrize("pid", [1, 3, 4_000_000, 0, -1])
def test_what_is_not_proved_is_refused(
    daemon: Daemon, users: dict[str, User], running: list[subprocess.Popen[bytes]], pid: int
) -> None:
    """Pid 1 is root's; pid 3 there is none here, but in another container of the same user."""
    other = sandbox(users["ann"], *TWO)
    running.append(other)

    def call() -> None:
        assert os.getpid() == 2
        made_for(pid)

    def ids() -> set[str]:
        return {it.id for it in as_user(users["ann"], Client(start=False).environments)}

    before = ids()
    with pytest.raises(UnknownProcess, match=f"No process {pid} of yours"):
        born(users["ann"], call)
    assert ids() <= before


def test_who_came_from_outside(
    daemon: Daemon, users: dict[str, User], running: list[subprocess.Popen[bytes]]
) -> None:
    """Itself it can prove; where the daemon may not look, nobody else in there."""
    box = sandbox(users["ann"], *TWO)
    running.append(box)
    inside = first_in(box)
    assert inside is not None

    def itself() -> tuple[int | None, int]:
        return made_for(os.getpid()).pid, host_pid()

    known, outer = entered(users["ann"], inside, itself)
    assert known == outer
    if daemon.user is not None:
        with pytest.raises(UnknownProcess):
            entered(users["ann"], inside, lambda: made_for(2))
        return
    found = entered(users["ann"], inside, lambda: made_for(2))
    assert found.pid is not None and host_numbers(found.pid) == (found.pid, 2)


def as_environment(server: str, pid: int) -> None:
    made_for(pid)


def as_server(server: str, pid: int) -> None:
    Client(start=False).register_server(server, ServerReport(pid=pid, version="1"))


def as_kernel(server: str, pid: int) -> None:
    client, kernel = Client(start=False), str(uuid.uuid4())
    as_server(server, os.getpid())
    client.report_kernel(server, kernel, KernelReport(phase="starting", launch=1))
    client.report_kernel(server, kernel, KernelReport(phase="running", launch=1, pid=pid))


@pytest.mark.parametrize("forged", [as_environment, as_server, as_kernel])
def test_another_user_s_process_is_refused(
    daemon: Daemon,
    users: dict[str, User],
    running: list[subprocess.Popen[bytes]],
    forged: Callable[[str, int], None],
) -> None:
    """On the host by its pid there, in a container by its pid in there."""
    bob = users["bob"]
    sleeper = subprocess.Popen(["sleep", "600"], user=bob.uid, group=bob.gid)
    running.append(sleeper)
    server = str(uuid.uuid4())
    with pytest.raises(NotYours, match="belongs to another user"):
        as_user(users["ann"], lambda: forged(server, sleeper.pid))
    box = sandbox(bob, *TWO)
    running.append(box)
    inside = first_in(box)
    assert inside is not None
    with pytest.raises(UnknownProcess, match="No process 2 of yours"):
        entered(users["ann"], inside, lambda: forged(server, 2))


def test_a_caller_in_a_container_is_not_taken_for_whoever_has_its_pid_on_the_host(
    daemon: Daemon, users: dict[str, User], running: list[subprocess.Popen[bytes]]
) -> None:
    ann = users["ann"]
    other = subprocess.Popen(["sleep", "600"], user=ann.uid, group=ann.gid)
    running.append(other)
    made = as_user(ann, lambda: made_for(other.pid))
    claims = {MARKER: made.id}

    def call() -> tuple[int, Environment | None, Environment | None, bool]:
        os.environ.update(claims)
        client = Client(start=False)
        shell = SimpleNamespace(config={}, user_ns={})
        by_marker = Session(shell, client).environment()
        return os.getpid(), pids.find(client), by_marker, pids.same()

    inside = born(ann, call, pid=other.pid)
    assert inside == (other.pid, None, None, False)
    assert as_user(ann, lambda: pids.same())
    assert as_user(ann, lambda: pids.find(Client(start=False))) is None
    mine = as_user(ann, lambda: (made_for(os.getpid()), pids.find(Client(start=False))))
    assert mine[0] == mine[1]
