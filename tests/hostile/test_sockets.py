"""The sockets of a host daemon against whoever does not speak HTTP, or does not listen.

One user misbehaves in every way there is, others fill all connections that they are allowed, and a
third one works meanwhile. How long that one waits is told beside a quiet run, and judged by nobody:
the machine has other things to do, too.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import socket
import statistics
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from genv_jupyter.api.client import Client
from genv_jupyter.errors import TooMany
from genv_jupyter.model import NewEnvironment, Request
from tests.integration.daemons import Daemon, User, as_user, serving

ALLOWED = 3400
"""Connections of one user here: three of them have more than 10,000 open together."""
TRIED = 3600
ROUNDS = 100
MOST_MEMORY = 600 * 2**20
"""Bytes that the daemon may come to have, with all of that."""
CHUNKED = b"PUT /v1/environments/x HTTP/1.1\r\nHost: b\r\nTransfer-Encoding: chunked\r\n\r\n"
GET = b"GET /v1/devices HTTP/1.1\r\nHost: b\r\n\r\n"


@pytest.fixture(scope="module")
def daemon(users: dict[str, User]) -> Iterator[Daemon]:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < 3 * ALLOWED + 1000:
        pytest.skip(f"NOT TESTED: 10,000 connections; the limit of open files here is {most}")
    line = f"c.Access.connections = {ALLOWED}"
    with pytest.MonkeyPatch.context() as patch, serving(patch, line) as made:
        yield made


def put(body: bytes, *, length: int | str | None = None) -> bytes:
    size = len(body) if length is None else length
    head = f"PUT /v1/environments/x HTTP/1.1\r\nHost: b\r\nContent-Length: {size}\r\n\r\n"
    return head.encode() + body


REFUSED: dict[str, tuple[bytes, int]] = {
    "a head of 10 MB": (b"GET /v1/health HTTP/1.1\r\nX: " + b"a" * 10_000_000, 413),
    "100,000 headers": (b"GET /v1/health HTTP/1.1\r\n" + b"X: y\r\n" * 100_000 + b"\r\n", 413),
    "a body of 10 MB": (put(b"x" * 10_000_000), 413),
    "a length of 10^17": (put(b"", length=10**17), 413),
    "a negative length": (put(b"", length=-1), 400),
    "a length in words": (put(b"", length="ten"), 400),
    "two lengths": (put(b"{}", length="2\r\nContent-Length: 3"), 400),
    "chunks": (CHUNKED + b"2\r\n{}\r\n0\r\n\r\n", 400),
    "chunks without a size": (CHUNKED + b"xyz\r\n\r\n", 400),
    "a chunk of 2^64": (CHUNKED + b"FFFFFFFFFFFFFFFFF\r\n", 400),
    "chunks and a length": (put(b"0\r\n\r\n", length="5\r\nTransfer-Encoding: chunked"), 400),
    "HTTP/1.0": (b"GET /v1/health HTTP/1.0\r\n\r\n", 400),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    "a folded header": (b"GET /v1/health HTTP/1.1\r\nA: b\r\n c\r\n\r\n", 400),
    "a null in a header": (b"GET /v1/health HTTP/1.1\r\nA: \0\r\n\r\n", 400),
    "a proxy's target": (b"GET http://x/v1/health HTTP/1.1\r\nHost: b\r\n\r\n", 400),
    "noise": (bytes(range(256)) * 16 + b"\r\n\r\n", 400),
    "json": (b'{"gpus": 1}\r\n\r\n', 400),
    "an unknown verb": (b"BREW /v1/health HTTP/1.1\r\nHost: b\r\n\r\n", 405),
    "a body that is no JSON": (put(b"{"), 400),
    "a body that is deep": (put(b"[" * 100_000), 400),
}


def connect(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(str(path))  # waits where many do
    sock.settimeout(20)
    return sock


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_request_is_refused_in_words(
    daemon: Daemon, users: dict[str, User], kind: str
) -> None:
    sent, status = REFUSED[kind]

    def send() -> bytes:
        with connect(daemon.socket) as sock:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                sock.sendall(sent)
            said = b""
            while b"\r\n\r\n" not in said or not said.endswith(b"}"):
                piece = sock.recv(65536)
                if not piece:
                    break
                said += piece
            return said

    said = as_user(users["cat"], send)
    head, _, body = said.partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode()), said[:300]
    assert json.loads(body).keys() == {"code", "message", "hint", "details"}
    assert "Traceback" not in daemon.log.read_text()


def test_pipelined_requests_are_answered_in_order(daemon: Daemon, users: dict[str, User]) -> None:
    paths = ["health", "nowhere", "devices", "quota"] * 20

    def send() -> list[int]:
        with connect(daemon.socket) as sock:
            for path in paths:
                sock.sendall(f"GET /v1/{path} HTTP/1.1\r\nHost: b\r\n\r\n".encode())
            file = sock.makefile("rb")
            statuses = []
            for _ in paths:
                statuses.append(int(file.readline().split()[1]))
                length = 0
                while (line := file.readline()) != b"\r\n":
                    name, _, value = line.partition(b":")
                    length = int(value) if name.lower() == b"content-length" else length
                file.read(length)
            return statuses

    assert as_user(users["cat"], send) == [200, 404, 200, 200] * 20


# -- many at once ---------------------------------------------------------------------------------


class Attacker:
    """A child that has become somebody, does something, says so, and goes on until it is ended."""

    def __init__(self, user: User, act: Callable[[], int], go_on: Callable[[], None]) -> None:
        read, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
                resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
                os.setgroups([])
                os.setresgid(user.gid, user.gid, user.gid)
                os.setresuid(user.uid, user.uid, user.uid)
                os.write(write, str(act()).encode())
                os.close(write)
                go_on()
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        os.close(write)
        with os.fdopen(read) as file:
            self.done = int(file.read() or -1)

    def end(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def idle(path: Path) -> tuple[Callable[[], int], Callable[[], None]]:
    """Open connections and say nothing; return how many were let in."""
    kept: list[socket.socket] = []

    def act() -> int:
        kept.extend(connect(path) for _ in range(TRIED))
        # A refusal is a line that can be read; who was let in is told nothing.
        poll = select.poll()
        for sock in kept:
            poll.register(sock, select.POLLIN)
        deadline = time.monotonic() + 60
        while len(poll.poll(0)) < TRIED - ALLOWED and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(0.5)  # for those that ought not to be refused
        return len(kept) - len(poll.poll(0))

    return act, lambda: signal.pause() and None


def misbehave(path: Path) -> tuple[Callable[[], int], Callable[[], None]]:
    """Half requests, answers that nobody reads, and a byte now and then."""
    slow: list[socket.socket] = []
    kept: list[socket.socket] = []

    def act() -> int:
        for number in range(400):
            sock = connect(path)
            sock.settimeout(0.05)
            with contextlib.suppress(OSError):  # nobody reads so much
                match number % 5:
                    case 0:  # half a head, byte by byte from now on
                        sock.sendall(b"GET /v1/health HTTP/1.1\r\nX: ")
                        slow.append(sock)
                    case 1:  # half a body
                        sock.sendall(put(b"x" * 200_000, length=250_000))
                    case 2:  # many answers, none of them read
                        sock.sendall(GET * 2000)
                    case 3:  # all events, none of them read
                        sock.sendall(b"GET /v1/events HTTP/1.1\r\nHost: b\r\n\r\n")
                    case _:
                        sock.sendall(REFUSED[[*REFUSED][number // 5 % len(REFUSED)]][0])
            kept.append(sock)
        return len(kept)

    def go_on() -> None:
        while True:
            for sock in slow:
                with contextlib.suppress(OSError):
                    sock.send(b"a")
            time.sleep(0.05)

    return act, go_on


def memory(pid: int, what: str = "VmRSS") -> int:
    """Return what a process has of memory, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    line = next(it for it in lines if it.startswith(what))
    return int(line.split()[1]) * 1024


def work(user: User) -> list[float]:
    """Attach and look, as a user who knows nothing of all that; return seconds of each round."""

    def rounds() -> list[float]:
        client = Client(start=False, timeout=60)
        mine = client.create(NewEnvironment(kind="command", pid=os.getpid())).id
        waited = []
        for number in range(ROUNDS):
            began = time.perf_counter()
            client.attach(mine, Request(memory=f"{1 + number % 2}G"))
            client.devices()
            waited.append(time.perf_counter() - began)
        return waited

    return as_user(user, rounds)


def told(waited: list[float]) -> str:
    ordered = sorted(waited)
    last = ordered[int(len(ordered) * 0.99)]
    return f"{statistics.median(ordered) * 1000:.1f} ms, p99 {last * 1000:.1f} ms"


def test_others_are_served_whatever_some_do(
    daemon: Daemon,
    users: dict[str, User],
    record_property: Callable[[str, object], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    quiet, before = work(users["bob"]), memory(daemon.pid)
    attackers: list[Attacker] = []
    strangers = User("no account", 3_999_001, 3_999_001, ())
    try:
        for user in (users["ann"], users["adm"], strangers):
            attackers.append(Attacker(user, *idle(daemon.socket)))
            assert attackers[-1].done == ALLOWED, "so many were let in"
        attackers.append(Attacker(users["cat"], *misbehave(daemon.socket)))
        assert attackers[-1].done == 400
        busy, after = work(users["bob"]), memory(daemon.pid, "VmHWM")
        for user in (users["ann"], User("another", 3_999_002, 3_999_002, ())):
            with pytest.raises(TooMany):  # uids without an account are counted together
                as_user(user, lambda: Client(start=False).health())
        assert as_user(None, lambda: Client(start=False).health()).kind == "host"
    finally:
        for attacker in attackers:
            attacker.end()
    assert len(quiet) == len(busy) == ROUNDS
    assert after < MOST_MEMORY, f"{after / 2**20:.0f} MiB"
    said = (
        f"attach and devices: quiet {told(quiet)}; beside {3 * ALLOWED + 400} connections of "
        f"others {told(busy)}; daemon {before / 2**20:.0f} -> {after / 2**20:.0f} MiB"
    )
    record_property("latency", said)
    with capsys.disabled():
        print(f"\n{said}")
    deadline = time.monotonic() + 60
    while True:  # until it has seen them all close
        with contextlib.suppress(TooMany):
            as_user(users["ann"], lambda: Client(start=False).health())
            break
        assert time.monotonic() < deadline
    assert "Traceback" not in daemon.log.read_text()
    assert len(work(users["bob"])) == ROUNDS


def test_large_bodies_of_one_user_are_read_some_at_a_time(
    daemon: Daemon, users: dict[str, User]
) -> None:
    """So that nobody fills the daemon's memory; others' are read meanwhile."""
    before = memory(daemon.pid)
    halves: list[socket.socket] = []

    def act() -> int:
        for _ in range(300):
            halves.append(sock := connect(daemon.socket))
            sock.settimeout(0.02)
            with contextlib.suppress(OSError):
                sock.sendall(put(b"x" * 250_000, length=256_000))
        return len(halves)

    attacker = Attacker(users["ann"], act, lambda: signal.pause() and None)
    try:
        grown = memory(daemon.pid) - before
        assert grown < 40 * 2**20, f"{grown / 2**20:.0f} MiB for {attacker.done} halves"

        def large() -> int:
            with connect(daemon.socket) as sock:
                sock.sendall(put(b" " * 200_000))
                return int(sock.recv(100).split()[1])

        assert as_user(users["bob"], large) == 400
    finally:
        attacker.end()


def test_an_event_stream_that_nobody_reads_ends(daemon: Daemon, users: dict[str, User]) -> None:
    """And it costs no more than what is kept for it."""
    process = subprocess.Popen(["sleep", "600"], user=users["bob"].uid)

    def change(times: int) -> None:
        client = Client(start=False)
        mine = client.create(NewEnvironment(kind="command", pid=process.pid)).id
        for number in range(times):
            client.attach(mine, Request(memory=f"{1 + number % 2}G", name="x" * 200))

    def deaf() -> int:
        socks = [connect(daemon.socket) for _ in range(20)]
        for sock in socks:
            sock.sendall(b"GET /v1/events HTTP/1.1\r\nHost: b\r\n\r\n")
            sock.recv(16)
        return len(socks)

    before = memory(daemon.pid)
    attacker = Attacker(users["ann"], deaf, lambda: signal.pause() and None)
    try:
        as_user(users["bob"], lambda: change(400))
        assert memory(daemon.pid) - before < 100 * 2**20
    finally:
        attacker.end()
        process.kill()
        process.wait()
