"""Many processes take turns while holders and brokers are killed: never two, and never a stop."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from genv_jupyter import Client
from genv_jupyter.api import rendezvous
from genv_jupyter.errors import UnknownEnvironment
from genv_jupyter.model import NewEnvironment, Request

ENVIRONMENTS = 4
TURNS = 6

# Each turn takes a lock of its own that the system frees with its process: two at once would see.
PROGRAM = """
import fcntl, os, sys, time
from genv_jupyter import turn
files = [open(path, "w") for path in sys.argv[2:]]
print("ready", flush=True)
sys.stdin.readline()
for number in range(int(sys.argv[1])):
    with turn():
        try:
            for file in files:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("two at once", flush=True)
            os._exit(3)
        time.sleep(0.02)
        for file in files:
            fcntl.flock(file, fcntl.LOCK_UN)
    print("turn", number, flush=True)
"""


@pytest.mark.simulate("2x24GiB")
def test_turns_survive_any_kill(broker_home: Path, tmp_path: Path) -> None:
    client = Client()
    devices = [device.uuid for device in client.devices()]
    locks = {uuid: str(tmp_path / uuid) for uuid in devices}
    holders = [subprocess.Popen(["sleep", "600"]) for _ in range(ENVIRONMENTS)]
    running: list[subprocess.Popen[str]] = []
    try:
        for number, holder in enumerate(holders):
            environment = client.create(NewEnvironment(kind="command", pid=holder.pid))
            # Some on the one device, some on the other, some on both: a circle, if there could be.
            wanted = [devices, devices[:1], devices[1:], devices][number]
            client.attach(environment.id, Request(devices=tuple(wanted), memory="1G"))
            running.append(
                subprocess.Popen(
                    [sys.executable, "-c", PROGRAM, str(TURNS), *(locks[it] for it in wanted)],
                    env={**os.environ, "GENV_JUPYTER_ENVIRONMENT": environment.id},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
        for process in running:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
        for process in running:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        chance = random.Random(7)
        for _ in range(3):
            time.sleep(chance.uniform(0.1, 0.6))
            os.kill(broker(), signal.SIGKILL)
        running[0].kill()  # in its turn, or waiting for it
        said = [process.communicate(timeout=120)[0] for process in running]
        assert [process.returncode for process in running] == [-signal.SIGKILL, 0, 0, 0], said
        assert all(text.count("turn") == TURNS for text in said[1:])
    finally:
        for child in (*running, *holders):
            child.kill()
            child.communicate()


@pytest.mark.simulate("2x24GiB")
def test_who_gets_another_device_or_ends_while_it_waits(broker_home: Path) -> None:
    client = Client()
    holders = [subprocess.Popen(["sleep", "600"]) for _ in range(3)]
    try:
        on_first, on_second, moved = (
            client.create(NewEnvironment(kind="command", pid=holder.pid)).id for holder in holders
        )
        for environment, index in ((on_first, "0"), (on_second, "1"), (moved, "0")):
            client.attach(environment, Request(devices=(index,), memory="1G"))
        first, second, waiting = (client.turn(it) for it in (on_first, on_second, moved))
        assert b'"yours"' in first.read_line() and b'"yours"' in second.read_line()
        assert on_first.encode() in waiting.read_line()
        client.attach(moved, Request(devices=("1",), memory="1G"), cuda="not_initialized")
        first.close()
        line = waiting.read_line()
        assert b'"waiting"' in line and on_second.encode() in line, "never two on one device"
        holders[2].kill()
        holders[2].wait()
        while line:
            line = waiting.read_line()
            assert b'"yours"' not in line
        with pytest.raises(UnknownEnvironment):
            client.turn(moved)
        second.close()
    finally:
        for holder in holders:
            holder.kill()
            holder.wait()


def test_bad_input_gets_no_place_in_line(broker_home: Path) -> None:
    client = Client()
    path = f"environments/{client.create(NewEnvironment(kind='command', pid=os.getpid())).id}/turn"
    for query, status in (
        ({"timeout": "-1"}, 400),
        ({"timeout": "soon"}, 400),
        ({"timeout": "0"}, 422),
        ({"since": "yesterday"}, 400),
        ({"since": "2026-01-01T00:00:00"}, 400),
        ({"since": "9" * 40}, 400),
    ):
        answer = client.call("POST", path, query=query)
        assert answer[0] == status and b'"hint"' in answer[1], (query, answer)
    assert client.call("POST", "environments/nobody/turn")[0] == 404
    stream = client.turn(path.split("/")[1], timeout=5)
    assert b'"yours"' in stream.read_line(), "nothing is shared: nothing to wait for"
    stream.close()


def broker() -> int:
    """Return the pid of the broker, starting one where none is."""
    with rendezvous.ensure_broker() as sock:
        return rendezvous.peer(sock)[0]
