"""One broker for all users of a host: the kernel says who calls, and none harms another."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from genv_jupyter.api.client import Client
from genv_jupyter.errors import (
    BrokerDown,
    Forbidden,
    GpuError,
    NoCapacity,
    NotYours,
    QuotaExceeded,
    TooMany,
)
from genv_jupyter.model import Environment, EnvironmentPatch, NewEnvironment, Request
from genv_jupyter.quotas import QuotaLimits
from tests.integration.daemons import Daemon, User, as_user, make_users, serving

HALF = Request(fraction=0.5)


@pytest.fixture(scope="module")
def users() -> Iterator[dict[str, User]]:
    yield from make_users()


@pytest.fixture(scope="module")
def daemon(users: dict[str, User]) -> Iterator[Daemon]:
    admins = f"c.Access.admin_groups = ['{users['adm'].name}ins']"
    with (
        pytest.MonkeyPatch.context() as patch,
        serving(patch, admins, "c.Access.identity_seconds = 0") as made,
    ):
        yield made


@pytest.fixture
def sleepers() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


def sleeper(user: User, started: list[subprocess.Popen[bytes]]) -> int:
    """A process of a user, whose environment it is."""
    process = subprocess.Popen(
        ["sleep", "600"], user=user.uid, group=user.gid, extra_groups=list(user.groups)
    )
    started.append(process)
    return process.pid


def own(user: User, pid: int, request: Request | None = HALF) -> Environment:
    """Let a user make an environment for a process, and attach."""

    def call() -> Environment:
        client = Client(start=False)
        made = client.create(NewEnvironment(kind="command", pid=pid, name="secret work"))
        return made if request is None else client.attach(made.id, request)

    return as_user(user, call)


def test_several_users_share_one_ledger(
    daemon: Daemon, users: dict[str, User], sleepers: list[subprocess.Popen[bytes]]
) -> None:
    held = [
        own(users[name], sleeper(users[name], sleepers), Request(gpus=1)) for name in ("ann", "bob")
    ]
    assert len({grant.device for it in held for grant in it.grants}) == 2
    assert {it.user for it in held} == {users["ann"].name, users["bob"].name}
    pid = sleeper(users["cat"], sleepers)
    with pytest.raises(NoCapacity) as refused:
        own(users["cat"], pid, HALF)
    assert users["ann"].name in refused.value.message
    assert "secret work" not in str(refused.value.payload())
    health = as_user(users["cat"], lambda: Client(start=False).health())
    assert (health.kind, health.pid) == ("host", daemon.pid)


def test_a_user_of_the_host_starts_no_broker_of_their_own(
    daemon: Daemon, users: dict[str, User]
) -> None:
    daemon.stop()
    with pytest.raises(BrokerDown, match="broker of this host does not answer") as refused:
        as_user(users["ann"], lambda: Client().health())
    assert "systemctl status genv-jupyter" in refused.value.hint
    daemon.start()
    assert as_user(users["ann"], lambda: Client().health()).pid == daemon.pid


def test_what_was_granted_outlives_a_crash_of_the_daemon(
    daemon: Daemon, users: dict[str, User], sleepers: list[subprocess.Popen[bytes]]
) -> None:
    held = own(users["ann"], sleeper(users["ann"], sleepers))
    daemon.kill()
    daemon.start()
    again = as_user(users["ann"], lambda: Client(start=False).environment(held.id))
    assert [grant.device for grant in again.grants] == [grant.device for grant in held.grants]


ACTIONS = {
    "attach": lambda client, it: client.attach(it.id, HALF),
    "attach with restart": lambda client, it: client.attach(it.id, HALF, restart=True),
    "detach": lambda client, it: client.detach(it.id),
    "rename": lambda client, it: client.patch(it.id, EnvironmentPatch(name="mine")),
    "forge a report": lambda client, it: client.patch(
        it.id, EnvironmentPatch(applied="live", cuda="not_initialized")
    ),
    "restart": lambda client, it: client.restart(it.id),
    "usage": lambda client, it: client.usage(it.id),
    "dry run on its credit": lambda client, it: client.place(HALF, it.id),
    "take its process": lambda client, it: client.create(NewEnvironment(kind="kernel", pid=it.pid)),
    "leave MPS": lambda client, it: client.leave(it.id),
}


@pytest.mark.parametrize("action", ACTIONS)
def test_only_owner_and_admin_may(
    daemon: Daemon,
    users: dict[str, User],
    sleepers: list[subprocess.Popen[bytes]],
    action: str,
) -> None:
    pid = sleeper(users["ann"], sleepers)
    held = own(users["ann"], pid)
    before = as_user(users["ann"], lambda: Client(start=False).environment(held.id))

    def call() -> None:
        ACTIONS[action](Client(start=False), held)

    for stranger in ("bob", "cat"):
        with pytest.raises(NotYours):
            as_user(users[stranger], call)
    after = as_user(users["ann"], lambda: Client(start=False).environment(held.id))
    assert after == before
    for allowed in ("ann", "adm"):
        if action == "take its process" and allowed == "adm":
            continue  # an administrator's environments are of their own processes, too
        try:
            as_user(users[allowed], call)
        except NotYours as error:
            raise AssertionError(f"{allowed} may {action}") from error
        except GpuError:
            pass  # it is allowed, and this environment has no kernel to do it with


def test_others_see_no_variables_and_no_processes(
    daemon: Daemon, users: dict[str, User], sleepers: list[subprocess.Popen[bytes]]
) -> None:
    held = own(users["ann"], sleeper(users["ann"], sleepers))
    assert held.environ and held.name == "secret work"
    for name, sees in (("bob", False), ("adm", True)):
        every = as_user(users[name], lambda: Client(start=False).environments())
        (seen,) = (it for it in every if it.id == held.id)
        assert (seen.environ is not None) == sees
        assert (seen.pid is not None, seen.name is not None) == (sees, sees)


def test_a_change_of_groups_takes_effect(
    daemon: Daemon, users: dict[str, User], sleepers: list[subprocess.Popen[bytes]]
) -> None:
    held = own(users["ann"], sleeper(users["ann"], sleepers))
    detach = lambda: Client(start=False).detach(held.id)  # noqa: E731
    with pytest.raises(NotYours):
        as_user(users["cat"], detach)
    admins = f"{users['adm'].name}ins"
    subprocess.run(["usermod", "--append", "--groups", admins, users["cat"].name], check=True)
    try:
        as_user(users["cat"], lambda: Client(start=False).health())  # is looked up beside this
        deadline = time.monotonic() + 20
        while True:
            try:
                as_user(users["cat"], detach)
                break
            except NotYours:
                assert time.monotonic() < deadline
    finally:
        subprocess.run(["gpasswd", "--delete", users["cat"].name, admins], check=True)


def test_files_are_the_daemon_s_alone(daemon: Daemon, users: dict[str, User]) -> None:
    assert stat.S_IMODE(daemon.state.stat().st_mode) == 0o700
    assert stat.S_IMODE(daemon.socket.stat().st_mode) == 0o666
    assert stat.S_IMODE(daemon.socket.parent.stat().st_mode) == 0o755
    (ledger,) = daemon.state.rglob("ledger.sqlite")

    def read() -> str:
        try:
            with ledger.open("rb"):
                return "read"
        except PermissionError:
            return "refused"

    def replace() -> str:
        try:
            daemon.socket.unlink()
            return "removed"
        except PermissionError:
            return "refused"

    assert as_user(users["ann"], read) == "refused"
    assert as_user(users["ann"], replace) == "refused"


def test_a_broken_configuration_is_not_taken_over(daemon: Daemon, users: dict[str, User]) -> None:
    usable = as_user(users["ann"], lambda: Client(start=False).devices()[0].memory_usable)
    assert usable == 24 * 2**30
    wait_for_reload(daemon, "c.PolicySettings.memory_headroom = '4GiB'", taken=True)
    usable = as_user(users["ann"], lambda: Client(start=False).devices(fresh=True)[0].memory_usable)
    assert usable == 20 * 2**30
    wait_for_reload(daemon, "c.PolicySettings.memory_headroom = 'much'", taken=False)
    health = as_user(users["ann"], lambda: Client(start=False).health())
    assert any("was not taken over" in said and "'much'" in said for said in health.notices)
    usable = as_user(users["ann"], lambda: Client(start=False).devices(fresh=True)[0].memory_usable)
    assert usable == 20 * 2**30
    wait_for_reload(daemon, "", taken=True)
    health = as_user(users["ann"], lambda: Client(start=False).health())
    assert not any("was not taken over" in said for said in health.notices)


def wait_for_reload(daemon: Daemon, line: str, *, taken: bool) -> None:
    """Change the configuration under a connection that stays open."""
    said = "was taken over" if taken else "is not taken over"
    before = daemon.log.read_text().count(said)
    daemon.configure(line)
    os.kill(daemon.pid, signal.SIGHUP)
    deadline = time.monotonic() + 20
    while daemon.log.read_text().count(said) == before:
        assert time.monotonic() < deadline, daemon.log.read_text()
        time.sleep(0.02)


def test_a_daemon_with_mistakes_in_its_configuration_does_not_start(
    users: dict[str, User], tmp_path: Path
) -> None:
    daemon = Daemon(tmp_path / "host")
    daemon.configure("c.PolicySettings.mps = 'x'", "c.Access.connections = 1")
    with pytest.raises(AssertionError, match="cannot be used") as refused:
        daemon.start()
    assert "'x'" in str(refused.value) and "connections" in str(refused.value)
    assert daemon.stop() == 1


def test_the_server_s_name_is_no_secret_and_no_key(daemon: Daemon, users: dict[str, User]) -> None:
    """Who knows another's server id can neither take it nor hear what is wanted of it."""
    server = str(uuid.uuid4())
    from genv_jupyter.model import KernelReport, ServerReport

    def register() -> None:
        client = Client(start=False)
        client.register_server(server, ServerReport(pid=os.getpid(), version="1"))

    def report() -> None:
        Client(start=False).report_kernel(server, str(uuid.uuid4()), KernelReport(phase="starting"))

    as_user(users["ann"], register)
    with pytest.raises(NotYours):
        as_user(users["bob"], register)
    with pytest.raises(GpuError, match="not registered"):
        as_user(users["bob"], report)
    with pytest.raises(GpuError, match="not registered"):
        as_user(users["bob"], lambda: Client(start=False).end_server(server))


def test_everybody_may_open_so_many_connections(
    users: dict[str, User], monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(monkeypatch, "c.Access.connections = 8") as daemon:
        socks: list[socket.socket] = []  # of a child: they close when it ends

        def flood() -> tuple[int, str]:
            for _ in range(30):
                sock = socket.socket(socket.AF_UNIX)
                sock.settimeout(10)
                sock.connect(str(daemon.socket))
                socks.append(sock)
            refused = [sock for sock in socks[8:] if b"too_many" in sock.recv(4096)]
            try:
                Client(start=False).health()
            except TooMany as error:
                return len(refused), error.code
            return len(refused), "let in"

        assert as_user(users["ann"], flood) == (22, "too_many")
        deadline = time.monotonic() + 20
        while True:  # until the daemon has seen them close
            try:
                as_user(users["ann"], lambda: Client(start=False).health())
                break
            except TooMany:
                assert time.monotonic() < deadline
        # While one keeps all of theirs open, another is served.
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.setresuid(users["ann"].uid, users["ann"].uid, users["ann"].uid)
                while flood()[1] != "too_many":
                    pass
                os.write(write, b"1")
                signal.pause()
            finally:
                os._exit(0)
        try:
            assert os.read(read, 1) == b"1"
            with pytest.raises(TooMany):
                as_user(users["ann"], lambda: Client(start=False).health())
            assert as_user(users["bob"], lambda: Client(start=False).health()).kind == "host"
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(read)
            os.close(write)


def test_quotas_are_set_by_administrators_and_bind_everywhere(
    daemon: Daemon, users: dict[str, User], sleepers: list[subprocess.Popen[bytes]]
) -> None:
    lab = f"group:{users['ann'].name[:-3]}lab"
    bounded = QuotaLimits(devices=0.5)
    for name in ("ann", "cat"):
        with pytest.raises(Forbidden):
            as_user(users[name], lambda: Client(start=False).set_quota(lab, bounded))
        with pytest.raises(Forbidden):
            as_user(users[name], lambda: Client(start=False).quota_rules())
        with pytest.raises(Forbidden):
            as_user(users[name], lambda: Client(start=False).quota(users["adm"].name))
    as_user(users["adm"], lambda: Client(start=False).set_quota(lab, bounded))
    try:
        own(users["ann"], sleeper(users["ann"], sleepers))
        with pytest.raises(QuotaExceeded) as refused:  # in another environment of the same user
            own(users["ann"], sleeper(users["ann"], sleepers), Request(fraction=0.1))
        assert refused.value.details["rule"] == lab
        own(users["cat"], sleeper(users["cat"], sleepers), Request(gpus=1))  # in no such group
        seen = as_user(users["adm"], lambda: Client(start=False).quota(users["ann"].name))
        (devices,) = (it for it in seen.quantities if it.quantity == "devices")
        assert (devices.used, devices.limit, devices.left, devices.rule) == (0.5, 0.5, 0, lab)
        daemon.kill()
        daemon.start()  # what was set outlives the daemon
        rules = as_user(
            users["adm"],
            lambda: [(it.scope, it.source, it.by) for it in Client(start=False).quota_rules()],
        )
        assert rules == [(lab, "set", users["adm"].name)]
    finally:
        as_user(users["adm"], lambda: Client(start=False).unset_quota(lab))
    with pytest.raises(NoCapacity):
        own(users["ann"], sleeper(users["ann"], sleepers), Request(gpus=2))


def test_a_daemon_that_is_not_root_serves_everybody(
    users: dict[str, User],
    monkeypatch: pytest.MonkeyPatch,
    sleepers: list[subprocess.Popen[bytes]],
) -> None:
    with serving(monkeypatch, user=users["cat"]) as daemon:
        assert daemon.state.stat().st_uid == users["cat"].uid
        held = own(users["ann"], sleeper(users["ann"], sleepers))
        with pytest.raises(NotYours):
            as_user(users["bob"], lambda: Client(start=False).detach(held.id))
        again = as_user(users["ann"], lambda: Client(start=False).detach(held.id))
        assert {grant.state for grant in again.grants} <= {"draining"}
        daemon.kill()
        daemon.start()
        assert as_user(users["bob"], lambda: Client(start=False).health()).kind == "host"


def test_a_socket_that_somebody_else_put_there_is_not_believed(
    users: dict[str, User], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a directory that anybody could have made, only root's or one's own process is."""
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o1777)
        path = Path(place, "broker.sock")
        monkeypatch.setenv("GENV_JUPYTER_HOST_SOCKET", str(path))
        for name in ("GENV_JUPYTER_HOME", "GENV_JUPYTER_SIMULATE"):
            monkeypatch.delenv(name, raising=False)
        with socket.socket(socket.AF_UNIX) as trap:
            trap.bind(str(path))
            path.chmod(0o666)
            pid = os.fork()
            if pid == 0:  # whose process listens is what the other end sees
                os.setresuid(users["bob"].uid, users["bob"].uid, users["bob"].uid)
                trap.listen()
                signal.pause()
                os._exit(0)
            try:
                with pytest.raises(BrokerDown, match=r"is not believed|does not answer") as refused:
                    deadline = time.monotonic() + 20
                    while True:
                        try:
                            as_user(users["ann"], lambda: Client().health())
                        except BrokerDown as error:  # until it listens
                            if "refused" not in str(error) or time.monotonic() > deadline:
                                raise
                assert f"uid {users['bob'].uid}" in refused.value.message
            finally:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def misbehave(path: Path, ready: int) -> None:
    """Open connections of every bad kind, and keep them."""
    kept = []
    bad = [
        b"GET /v1/health HTTP/1.1\r\nHost: bro",
        b"PUT /v1/environments/x HTTP/1.1\r\nContent-Length: 100\r\n\r\n{",
        b"GET /v1/events HTTP/1.1\r\nHost: broker\r\n\r\n",
        b"POST /v1/placements HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
        b"GET /v1/health HTTP/1.1\r\nX: " + b"a" * 10_000_000 + b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        os.urandom(4096),
        b"GET /v1/devices HTTP/1.1\r\nHost: broker\r\n\r\n" * 2000,
        b"",
    ]
    for number in range(90):
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(0.2)
        sock.connect(str(path))
        with contextlib.suppress(OSError):  # it was refused meanwhile, or nobody reads so much
            sock.sendall(bad[number % len(bad)])
        kept.append(sock)
    os.write(ready, b"1")
    signal.pause()


def test_who_misbehaves_keeps_nobody_waiting(
    daemon: Daemon, users: dict[str, User], sleepers: list[subprocess.Popen[bytes]]
) -> None:
    pid = sleeper(users["bob"], sleepers)
    held = own(users["bob"], pid)
    read, ready = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setresuid(users["ann"].uid, users["ann"].uid, users["ann"].uid)
            misbehave(daemon.socket, ready)
        finally:
            os._exit(0)
    try:
        assert os.read(read, 1) == b"1"

        def work() -> int:
            client = Client(start=False)
            return sum(client.attach(held.id, HALF).id == held.id for _ in range(20))

        assert as_user(users["bob"], work) == 20
        assert as_user(users["adm"], lambda: Client(start=False).health()).pid == daemon.pid
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(read)
        os.close(ready)
    assert "Traceback" not in daemon.log.read_text()


def test_what_was_asked_for_is_written_down(
    daemon: Daemon, users: dict[str, User], sleepers: list[subprocess.Popen[bytes]]
) -> None:
    held = own(users["ann"], sleeper(users["ann"], sleepers))
    with pytest.raises(NotYours):
        as_user(users["bob"], lambda: Client(start=False).detach(held.id))
    with pytest.raises(Forbidden):
        as_user(users["bob"], lambda: Client(start=False).audit())
    deadline = time.monotonic() + 20
    while True:  # it is written beside what is going on
        found = as_user(users["adm"], lambda: Client(start=False).audit(held.id))
        if len(found) == 2:
            break
        assert time.monotonic() < deadline, found
    refused, attached = found
    assert (refused.actor, refused.action, refused.status) == (users["bob"].key, "DELETE", 403)
    assert refused.said is not None and refused.said.startswith("not_yours: ")
    assert (attached.name, attached.action, attached.status) == (users["ann"].name, "PUT", 200)
    assert f'"who": "{users["bob"].key}"' in daemon.log.read_text()
