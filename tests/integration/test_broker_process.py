"""The user broker as a process: started on demand, found, left, replaced, killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from genv_jupyter import Client, __version__
from genv_jupyter.api import connection, rendezvous
from genv_jupyter.errors import BrokerDown, GpuError, NoCapacity
from genv_jupyter.model import NewEnvironment, Request

ASK = "from genv_jupyter import Client; h = Client().health(); print(h.pid, h.ledger)"


def wait_for(condition: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail("it did not happen")
        time.sleep(0.02)


def ask(**environ: str) -> tuple[int, str]:
    """Let a process of its own find (or start) the broker."""
    found = subprocess.run(
        [sys.executable, "-c", ASK],
        env={**os.environ, **environ},
        check=True,
        capture_output=True,
        text=True,
    )
    pid, ledger = found.stdout.split()
    return int(pid), ledger


def listening() -> bool:
    try:
        rendezvous.connect(timeout=1).close()
    except OSError:
        return False
    return True


def test_two_at_once_start_one(broker_home: Path) -> None:
    asked = [
        subprocess.Popen([sys.executable, "-c", ASK], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    answers = {process.communicate(timeout=60)[0] for process in asked}
    assert len(answers) == 1 and answers.pop()


def test_found_whatever_the_temporary_directories_are(broker_home: Path, tmp_path: Path) -> None:
    first = ask(TMPDIR=str(tmp_path), XDG_RUNTIME_DIR=str(tmp_path))
    assert ask(TMPDIR="/tmp", XDG_RUNTIME_DIR="/nonexistent", HOME=str(tmp_path)) == first


def test_started_from_a_hidden_kernel_it_does_not_inherit_the_hiding(broker_home: Path) -> None:
    pid, _ = ask(CUDA_VISIBLE_DEVICES="", GENV_JUPYTER_ENVIRONMENT="x", LD_PRELOAD="")
    environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    names = {variable.partition(b"=")[0] for variable in environ}
    assert not names & {b"CUDA_VISIBLE_DEVICES", b"GENV_JUPYTER_ENVIRONMENT", b"LD_PRELOAD"}
    assert os.getsid(pid) != os.getsid(0)


def test_leaves_when_idle_and_not_before(broker_home: Path) -> None:
    broker = subprocess.Popen(
        [sys.executable, "-m", "genv_jupyter.broker", "--user", "--idle-seconds", "0.5"]
    )
    holder = subprocess.Popen(["sleep", "600"])
    try:
        wait_for(listening)
        client = Client(start=False)
        client.create(NewEnvironment(kind="command", pid=holder.pid))
        client.close()
        time.sleep(2.5)
        assert broker.poll() is None
        holder.kill()
        holder.wait()
        assert broker.wait(timeout=20) == 0
    finally:
        for process in (broker, holder):
            process.kill()
            process.wait()


def test_killed_it_comes_back_with_what_it_answered(broker_home: Path) -> None:
    client = Client()
    me = client.create(NewEnvironment(kind="command", pid=os.getpid())).id
    before = client.attach(me, Request(fraction=0.5), cuda="not_initialized")
    pid = client.health().pid
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not listening())
    assert client.environment(me).grants == before.grants
    assert client.health().pid != pid


def test_replaced_by_a_newer_version_without_losing_grants(
    broker_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client()
    me = client.create(NewEnvironment(kind="command", pid=os.getpid())).id
    before = client.attach(me, Request(gpus=1), cuda="not_initialized")
    old = client.health().pid
    newer = (
        "import genv_jupyter; genv_jupyter.__version__ = '0.99.0'\n"
        "import sys\n"
        "from genv_jupyter.broker.process import main\n"
        "sys.exit(main(replace=True, idle_seconds=60))"
    )
    process = subprocess.Popen([sys.executable, "-c", newer], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["started"] is True
        assert client.health().version == "0.99.0" and client.health().pid != old
        assert client.environment(me).grants == before.grants
        rendezvous.start_broker(replace=True)  # ours is older now: the newer one stays
        assert client.health().pid == process.pid
    finally:
        process.terminate()
        process.wait(timeout=20)
        assert process.stdout is not None
        process.stdout.close()


def test_a_newer_client_has_an_older_broker_replaced(broker_home: Path) -> None:
    older = (
        "import genv_jupyter; genv_jupyter.__version__ = '0.0.1'\n"
        "from genv_jupyter.broker.process import main\n"
        "main(replace=False, idle_seconds=60)"
    )
    process = subprocess.Popen([sys.executable, "-c", older], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["started"] is True
        client = Client()
        client.health()
        assert client.health().version == __version__
        assert process.wait(timeout=20) == 0
    finally:
        process.kill()
        process.communicate()


def test_another_major_version_is_refused_in_words(
    broker_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "__version__", "7.1")
    status, answer = Client().call("GET", "health")
    assert status == 426 and json.loads(answer)["code"] == "version"


def test_a_name_taken_by_another_user_is_said(
    broker_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as squatter:
        squatter.bind(rendezvous.address())
        squatter.listen()
        where = rendezvous.address()
        monkeypatch.setattr(os, "getuid", lambda: 4242)
        monkeypatch.setattr(rendezvous, "address", lambda: where)
        with pytest.raises(BrokerDown, match="taken by a process of uid"):
            Client().health()
        monkeypatch.undo()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_a_path_where_another_user_listens_is_not_believed(
    broker_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    anybodys = broker_home.parent / "anybodys"
    anybodys.mkdir()
    anybodys.chmod(0o1777)
    path = anybodys / "theirs.sock"
    code = (
        "import os, socket, sys\n"
        "sock = socket.socket(socket.AF_UNIX); sock.bind(sys.argv[1])\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "sock.listen(); print(flush=True); sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as squatter:
        assert squatter.stdout is not None and squatter.stdout.readline()
        monkeypatch.setenv("GENV_JUPYTER_SOCKET", str(path))
        with pytest.raises(BrokerDown, match="uid 65534, which is not believed"):
            Client(timeout=2).health()
        squatter.kill()
    monkeypatch.delenv("GENV_JUPYTER_SOCKET")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_another_user_is_turned_away(broker_home: Path) -> None:
    Client().health()
    intruder = (
        "import os, socket, sys\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "sock = socket.socket(socket.AF_UNIX); sock.connect(sys.argv[1].replace('@', chr(0)))\n"
        "head = ('GET /v1/environments HTTP/1.1', 'Host: x', 'Connection: close', '', '')\n"
        "sock.sendall('\\r\\n'.join(head).encode())\n"
        "print(sock.makefile('rb').read().decode())"
    )
    where = rendezvous.address().replace("\0", "@")
    answer = subprocess.run(
        [sys.executable, "-c", intruder, where], capture_output=True, text=True, check=True
    ).stdout
    assert answer.startswith("HTTP/1.1 401 ") and '"code": "unauthenticated"' in answer


def test_a_directory_of_others_is_refused(broker_home: Path) -> None:
    broker_home.rmdir()
    broker_home.symlink_to("/tmp")
    with pytest.raises(GpuError, match="not a directory of yours"):
        Client().health()


def test_a_relative_directory_is_that_of_whoever_starts_it(
    broker_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(broker_home.parent)
    monkeypatch.setenv("GENV_JUPYTER_HOME", broker_home.name)
    assert Client().health().pid
    assert list(broker_home.glob("*/ledger.sqlite"))


def test_the_files_are_of_this_user_alone(broker_home: Path) -> None:
    Client().health()
    for path in [broker_home, *broker_home.rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0 or not path.is_dir(), path
        assert path.stat().st_mode & 0o022 == 0, path


def test_a_bad_simulation_is_said_and_nothing_starts(
    broker_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GENV_JUPYTER_SIMULATE", "2xlots")
    with pytest.raises(GpuError, match="does not describe simulated GPUs"):
        Client().health()


def test_events_follow_changes_and_stay_silent_otherwise(broker_home: Path) -> None:
    client = Client()
    stream = client.events()
    first = next(stream)
    assert first.snapshot and len(first.devices) == 2 and first.health is not None
    me = client.create(NewEnvironment(kind="command", pid=os.getpid(), name="test")).id
    seen = next(stream)
    assert [e.id for e in seen.environments] == [me] and seen.revision > first.revision
    client.attach(me, Request(memory="4G"), cuda="not_initialized")
    seen = next(stream)
    assert [len(d.grants) for d in seen.devices] == [1]
    sock = stream._connection.sock
    assert sock is not None
    sock.settimeout(2.5)
    assert stream.read_line() == b"", "something was sent while nothing changed"
    stream.close()


def test_errors_leave_in_one_shape(broker_home: Path) -> None:
    client = Client()
    for method, path, body, status, code in [
        ("GET", "nothing", None, 404, "unknown_route"),
        ("POST", "health", b"{}", 405, "method_not_allowed"),
        ("PUT", "environments/x", b"{", 400, "bad_request"),
        ("PUT", "environments/x", b'{"gpus": 1, "color": "red"}', 400, "bad_request"),
        ("PUT", "environments/x", b'{"gpus": 1}', 404, "unknown_environment"),
        ("PUT", "environments/x?cuda=perhaps", b'{"gpus": 1}', 400, "bad_request"),
        ("POST", "placements", b'{"fraction": 1.5}', 422, "out_of_range"),
        ("GET", "events?since=yesterday", None, 400, "bad_request"),
    ]:
        got, answer = client.call(method, path, body)
        error = json.loads(answer)
        assert (got, error["code"]) == (status, code), (path, answer)
        assert error.keys() == {"code", "message", "hint", "details"}
    with pytest.raises(NoCapacity):
        me = client.create(NewEnvironment(kind="command", pid=os.getpid())).id
        client.attach(me, Request(gpus=2))
        other = subprocess.Popen(["sleep", "60"])
        try:
            second = client.create(NewEnvironment(kind="command", pid=other.pid)).id
            client.attach(second, Request(memory="1G"))
        finally:
            other.kill()
            other.wait()


def test_two_at_once_at_a_path_start_one(
    broker_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GENV_JUPYTER_SOCKET", str(broker_home / "broker.sock"))
    asked = [
        subprocess.Popen([sys.executable, "-c", ASK], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    answers = {process.communicate(timeout=60)[0] for process in asked}
    rendezvous.start_broker()  # one more, while the first serves
    answers.add("{} {}\n".format(*ask()))
    assert len(answers) == 1 and answers.pop()


def test_a_configuration_is_obeyed_and_its_mistakes_are_told(
    broker_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file keeps a broker, and so a kernel, from starting."""
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path))
    (tmp_path / "jupyter_genv_config.py").write_text(
        "c.PolicySettings.memory_headroom = '4GiB'\nc.PolicySettings.mps = 'sometimes'\n"
    )
    (tmp_path / "jupyter_genv_config.json").write_text("{")
    client = Client()
    (told,) = {device.memory_usable for device in client.devices()}
    notices = client.health().notices
    assert told == 20 * 2**30
    assert [said for said in notices if "'sometimes'" in said and "PolicySettings.mps" in said]
    assert [said for said in notices if "jupyter_genv_config.json cannot be read" in said]


def test_garbage_is_not_looked_for_among_what_was_imported(broker_home: Path) -> None:
    program = (
        "import gc, os, sys\n"
        "from genv_jupyter.broker import process\n"
        "def say(said):\n"
        "    print(said.get('ready'), gc.get_freeze_count(), flush=True)\n"
        "    os._exit(0)\n"
        "process._say = say\n"
        "process.main(replace=False, idle_seconds=60)\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()
    assert said[0] == "True"
    assert int(said[1]) > 50_000
