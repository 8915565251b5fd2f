"""What runs as root is little: its modules, its lines, and what it makes of whatever it is sent."""

from __future__ import annotations

import ast
import contextlib
import os
import pwd
import random
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genv_jupyter.api.rendezvous import HOST_SOCKET
from genv_jupyter.isolation import evidence, mps_runner, processes
from genv_jupyter.isolation.smi import install
from genv_jupyter.rootd import helper, mode, parent, relay, shelf, wire

OURS = {
    "genv_jupyter",
    "genv_jupyter.broker",
    "genv_jupyter.broker.__main__",
    "genv_jupyter.isolation",
    "genv_jupyter.isolation.evidence",
    "genv_jupyter.isolation.mps_runner",
    "genv_jupyter.isolation.patient",
    "genv_jupyter.isolation.processes",
    "genv_jupyter.rootd",
    "genv_jupyter.rootd.helper",
    "genv_jupyter.rootd.parent",
    "genv_jupyter.rootd.relay",
    "genv_jupyter.rootd.wire",
}
GPU = "GPU-1111111a-0000-4000-8000-000000000001"


def test_it_imports_next_to_nothing() -> None:
    code = (
        "import sys; import genv_jupyter.broker.__main__, genv_jupyter.rootd.parent; "
        "print(*sorted(sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(found.stdout.split())
    assert {it for it in loaded if it.startswith("genv_jupyter")} <= OURS
    others = {it.partition(".")[0] for it in loaded} - set(sys.stdlib_module_names)
    # What site-packages loads into every interpreter by itself is not ours to count.
    bare = subprocess.run(
        [sys.executable, "-c", "import sys; print(*sys.modules)"], capture_output=True, text=True
    )
    others -= {it.partition(".")[0] for it in bare.stdout.split()}
    assert others <= {"genv_jupyter", "msgspec", "typing_extensions"}  # the last is msgspec's
    assert not loaded & {
        "ctypes",
        "http",
        "logging",
        "ssl",
        "sqlite3",
        "asyncio",
        "multiprocessing",
    }


def lines_of(module: object) -> int:
    """Count lines of code: no comments, no docstrings, no blank ones."""
    source = Path(str(module.__file__)).read_text()  # type: ignore[attr-defined]
    tree, count = ast.parse(source), set[int]()
    words = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.expr | ast.stmt) and node not in words:
            if isinstance(node, ast.Expr) and node.value in words:
                continue
            count.add(node.lineno)
    return len(count)


def test_it_can_be_read_before_it_is_installed() -> None:
    mine = {each: lines_of(each) for each in (helper, wire, parent, mode)}
    assert mine[helper] + mine[wire] <= 400, mine
    assert mine[parent] <= 220 and mine[mode] <= 20 and lines_of(shelf) <= 30
    assert lines_of(relay) <= 50
    assert sum(map(lines_of, (mps_runner, processes, evidence))) <= 460


def test_the_parent_knows_where_things_are() -> None:
    assert str(parent.SOCKET) == HOST_SOCKET


@pytest.mark.parametrize("place", ["/", "/run", "/tmp", "/etc", "/nowhere-yet"])
def test_no_directory_of_the_whole_host_is_given_to_the_broker(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``--socket /broker.sock`` would have it: then all of the host were the broker's."""

    def never(*_: object, **__: object) -> None:
        raise AssertionError(f"{place} is changed")

    for change in ("fchown", "fchmod", "mkdir"):
        monkeypatch.setattr(os, change, never)
    with pytest.raises(parent.Unsafe, match="choose a directory below it"):
        parent._give(Path(place), pwd.getpwnam("nobody"), 0o755)


def test_systemd_is_told_what_a_service_says_of_itself_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        woken = list[int]()
        before = signal.signal(signal.SIGIO, lambda number, _: woken.append(number))
        line = relay.Relay()
        try:
            assert not line.pass_on()
            for data in (
                b"MAINPID=1",
                b"WATCHDOG=trigger",
                b"READY=1\nMAINPID=1",
                b"READY=1\nFDSTORE=1",
                b"STATUS=\x1b[31m",
                b"X=" + b"x" * 4096,
                b"READY=1\nSTATUS=serving /the/socket",
                b"RELOADING=1\nMONOTONIC_USEC=12",
            ):
                woken.clear()
                line.brokers.send(data)
                assert not line.pass_on() and woken, "whoever waits for signals is woken"
        finally:
            for one in (line.ours, line.brokers):
                one.close()
            signal.signal(signal.SIGIO, before)
        assert heard.recv(4096) == b"READY=1\nSTATUS=serving /the/socket"
        assert heard.recv(4096) == b"RELOADING=1\nMONOTONIC_USEC=12"


def test_nvidia_smi_is_laid_where_a_program_may_be_run_and_is_root_s_alone(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    if os.getuid() != 0:
        pytest.skip("NOT TESTED: only root lays it")
    with tempfile.TemporaryDirectory(prefix="gj") as name:
        top = Path(name)
        top.chmod(0o755)
        run, lib = top / "run", top / "lib"
        real = os.access
        monkeypatch.setattr(
            install.os,
            "access",
            lambda path, mode: run not in Path(path).parents and real(path, mode),
        )  # as where /run is mounted noexec
        assert shelf.lay("/the/socket", (run, lib)) == str(lib)
        for path in (lib, *lib.rglob("*")):
            assert path.stat().st_uid == 0 and path.stat().st_mode & 0o026 == 0o004
        os.chown(lib, 65533, -1)
        assert shelf.lay("/the/socket", (run, lib)) is None
        said = capfd.readouterr().err
        assert f"no program may be run from {run}; {lib} is not root's alone" in said


# -- whatever it is sent ---------------------------------------------------------------------------


def serve(tmp_path: Path, *messages: bytes) -> list[bytes]:
    """Send messages to a helper that may do nothing; return its answers before it ends."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(10)
    rules = helper.Rules(tmp_path, None, 2**31, 999)  # nobody is an ordinary user
    with ours, theirs:
        for message in messages:
            ours.send(message)
        ours.shutdown(socket.SHUT_WR)
        made = helper.Helper(theirs, rules)
        made._beside = lambda uid, ask, verb: made._answer(ask, None)  # type: ignore[method-assign]
        with contextlib.suppress(helper.Hostile):
            made.serve()
        theirs.shutdown(socket.SHUT_RDWR)
        answers = []
        while data := ours.recv(wire.MOST_ANSWERED):
            answers.append(data)
        return answers


def asked(kind: str, rest: dict[str, object]) -> bytes:
    return msgspec.json.encode({"type": kind, "id": 1, **rest})


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=40),
    st.sampled_from([GPU, "start", "SIGKILL", "default", "get_server_list", "control.log", "../x"]),
    st.lists(st.integers(), max_size=3),
)
NAMES = ["verb", "uid", "device", "command", "name", "pid", "start", "signal", "mode", "expected"]
KINDS = ["Hello", "Mps", "MpsSay", "MpsLog", "MpsLeft", "Look", "Signal", "SetMode", "Ask", ""]


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("room")


@settings(max_examples=300, deadline=None)
@given(data=st.binary(min_size=1, max_size=2 * wire.MOST_ASKED))
def test_bytes_do_nothing(room: Path, data: bytes) -> None:
    assert serve(room, data) == [] and list(room.iterdir()) == []


@settings(max_examples=500, deadline=None)
@given(kind=st.sampled_from(KINDS), rest=st.dictionaries(st.sampled_from(NAMES), VALUES))
def test_what_looks_like_a_question_is_answered_refused_or_the_end(
    room: Path, kind: str, rest: dict[str, object]
) -> None:
    """Nobody is an ordinary user here: whatever is about one is refused."""
    found = [msgspec.json.decode(it, type=wire.Answer) for it in serve(room, asked(kind, rest))]
    for answer in found:
        assert answer.id == 1
        if kind in ("Mps", "MpsSay", "MpsLog", "Signal"):
            assert answer.kind == "refused" and answer.value is None
    assert list(room.iterdir()) == []


def test_mutations_of_good_questions(room: Path) -> None:
    """Single bytes changed, left out and doubled: 2,000 of them."""
    chance = random.Random(7)
    good = [
        asked("Mps", {"verb": "start", "uid": 5000, "device": GPU}),
        asked("MpsSay", {"uid": 5000, "device": GPU, "command": "terminate_client 12 34"}),
        asked("Signal", {"pid": 1, "start": 0, "uid": 5000, "signal": "SIGKILL"}),
        asked("SetMode", {"device": GPU, "mode": "default", "expected": "exclusive_process"}),
    ]
    answered = 0
    for _ in range(2000):
        data = bytearray(chance.choice(good))
        at = chance.randrange(len(data))
        change = chance.randrange(3)
        if change == 0:
            data[at] = chance.randrange(256)
        elif change == 1:
            del data[at]
        else:
            data[at:at] = data[: chance.randrange(1, len(data))]
        for answer in serve(room, bytes(data)):
            answered += 1
            decoded = msgspec.json.decode(answer, type=wire.Answer)
            assert b"SetMode" in data or decoded.kind == "refused"
    assert 0 < answered < 2000 and list(room.iterdir()) == []
