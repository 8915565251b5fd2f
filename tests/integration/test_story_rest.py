"""The story of three notebooks over REST alone: a real server, real kernels, NVIDIA's bindings.

Nothing of ours is called in this process: it has what a script on another machine has, the
server's REST API and the channels of its kernels.
"""

from __future__ import annotations

import json
import re
import time
import urllib.error
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import websocket

from tests.browser.jupyter import PATIENCE, TOKEN, Jupyter
from tests.fakedriver import GIB, MIB, FakeDriver
from tests.fakedriver.fixtures import MakeDriver, fake_driver
from tests.fakedriver.remote import bare

__all__ = ["fake_driver"]

WHOLE = {"gpus": 1}
FOUR = {"memory": "4G"}
HALF = {"fraction": 0.5}
CONTEXT = 300 * MIB

VISIBLE = """
from cuda.bindings import driver as cuda
def visible():
    if error := int(cuda.cuInit(0)[0]):
        return error
    gpus = [cuda.cuDeviceGet(n)[1] for n in range(cuda.cuDeviceGetCount()[1])]
    return [cuda.cuDeviceGetUuid(gpu)[1].bytes.hex() for gpu in gpus]
"""
CHILD = f"""
import subprocess, sys
print(subprocess.check_output([sys.executable, "-c", {VISIBLE + "print(visible())"!r}], text=True))
"""
ALLOCATE = """
gpu = cuda.cuDeviceGet(0)[1]
error, context = cuda.cuCtxCreate(None, 0, gpu)
assert int(error) == 0, error
error, memory = cuda.cuMemAlloc({size})
assert int(error) == 0, error
"""


class Notebook:
    """A notebook with a kernel of its own."""

    def __init__(self, jupyter: Jupyter, name: str) -> None:
        self.jupyter = jupyter
        self.kernel = jupyter.open_kernel(name)
        self.path = f"environments/{self.kernel}"

    @property
    def now(self) -> dict[str, Any]:
        return dict(self.jupyter.gpu("GET", self.path))

    @property
    def held(self) -> list[tuple[str, int, str]]:
        return [(g["device"], g["memory"], g["state"]) for g in self.now["grants"]]

    def attach(self, request: dict[str, Any], *, restart: bool = False) -> dict[str, Any]:
        query = "?restart=true" if restart else ""
        return dict(self.jupyter.gpu("PUT", self.path + query, request))

    def refused(self, request: dict[str, Any], code: str) -> dict[str, Any]:
        """Attach in vain, and see that nothing has changed for anybody."""
        before = everything(self.jupyter)
        with pytest.raises(urllib.error.HTTPError) as refusal:
            self.attach(request)
        error = dict(json.loads(refusal.value.read()))
        assert (refusal.value.code, error["code"]) == (409, code), error
        assert error["hint"]
        assert everything(self.jupyter) == before
        return error

    def release(self) -> dict[str, Any]:
        return dict(self.jupyter.gpu("DELETE", self.path))

    def restart(self) -> None:
        """Ask for a restart, and return when another process runs."""
        old = self.now["pid"]
        self.jupyter.gpu("POST", f"{self.path}/restart")
        self.until(lambda now: now["pid"] not in (None, old) and now["applied"] in ("live", None))

    def until(self, so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until its environment is so, and return it."""
        deadline = time.monotonic() + PATIENCE
        while not so(now := self.now):
            assert time.monotonic() < deadline, f"it never became so: {now}"
            time.sleep(0.05)
        return now

    def run(self, code: str) -> str:
        """Run a cell over the kernel's channels, and return what it printed."""
        session, asked = uuid.uuid4().hex, uuid.uuid4().hex
        header = {
            "msg_id": asked,
            "session": session,
            "username": "",
            "date": "",
            "msg_type": "execute_request",
            "version": "5.3",
        }
        message = {
            "channel": "shell",
            "header": header,
            "parent_header": {},
            "metadata": {},
            "content": {"code": code, "silent": False, "allow_stdin": False},
        }
        address = self.jupyter.url.replace("http", "ws")
        channels = websocket.create_connection(
            f"{address}/api/kernels/{self.kernel}/channels?session_id={session}",
            header=[f"Authorization: token {TOKEN}"],
            timeout=PATIENCE,
        )
        try:
            channels.send(json.dumps(message))
            return _printed(channels, asked)
        finally:
            channels.close()

    def sees(self) -> list[str]:
        """Return what NVIDIA's library finds there; CUDA is initialised by this."""
        return list(json.loads(self.run(f"{VISIBLE}\nimport json; print(json.dumps(visible()))")))


def _printed(channels: websocket.WebSocket, asked: str) -> str:
    """Read until a cell has replied and its output has ended."""
    printed, left = "", {"execute_reply", "idle"}
    while left:
        answer = json.loads(channels.recv())
        if answer["parent_header"].get("msg_id") != asked:
            continue
        kind, content = answer["msg_type"], answer["content"]
        if kind == "stream":
            printed += content["text"]
        elif kind == "execute_reply":
            assert content["status"] == "ok", content
            left.discard(kind)
        elif kind == "status":
            left.discard(content["execution_state"])
    return printed.strip()


def everything(jupyter: Jupyter) -> dict[str, Any]:
    """Return all that a failed attempt must leave alone."""
    environments = {
        row["id"]: {key: row[key] for key in ("request", "grants", "state", "pid", "environ")}
        for row in jupyter.gpu("GET", "environments")
    }
    devices = {row["uuid"]: row["grants"] for row in jupyter.gpu("GET", "devices")}
    return {"environments": environments, "devices": devices}


@pytest.fixture
def driver(fake_driver: MakeDriver) -> FakeDriver:
    return fake_driver()


@pytest.fixture
def jupyter(driver: FakeDriver, tmp_path: Path) -> Iterator[Jupyter]:
    with Jupyter(tmp_path, driver.environ) as running:
        yield running
        running.close_kernels()


def test_story(driver: FakeDriver, jupyter: Jupyter) -> None:
    first, second = driver.uuids
    assert jupyter.gpu("GET", "health")["simulated"] is False
    llm, debug, viz = (
        Notebook(jupyter, name) for name in ("llm.ipynb", "debug.ipynb", "viz.ipynb")
    )

    # Without a grant a kernel, and what it starts, sees no device.
    no_device = "100"
    assert llm.run(CHILD) == no_device

    # Each gets what it asks for, at once, and sees that and no more through NVIDIA's library.
    capacity = jupyter.gpu("GET", "devices")[0]["memory_usable"]
    assert llm.attach(WHOLE)["applied"] == "live"
    assert debug.attach(FOUR)["applied"] == "live"
    assert viz.attach(HALF)["applied"] == "live"
    assert llm.held == [(first, capacity, "granted")]
    assert debug.held == [(second, 4_000_000_000, "granted")]
    assert viz.held == [(second, capacity // 2, "granted")]
    for notebook, device, size in ((llm, first, 9), (debug, second, 1), (viz, second, 5)):
        assert notebook.sees() == bare(device)
        notebook.run(ALLOCATE.format(size=size * GIB))
    for notebook, request in ((llm, WHOLE), (debug, FOUR), (viz, HALF)):  # Run All
        before = notebook.now["grants"]
        assert notebook.attach(request)["grants"] == before

    # NVML's list of processes tells the broker who uses what.
    for notebook, device, size in ((llm, first, 9), (debug, second, 1), (viz, second, 5)):
        [process] = notebook.until(lambda now: now["processes"] != [])["processes"]
        expected = (notebook.now["pid"], device, CONTEXT + size * GIB)
        assert (process["pid"], process["device"], process["memory"]) == expected
    used = {row["uuid"]: row["memory_used"] for row in jupyter.gpu("GET", "devices")}
    assert used == {first: CONTEXT + 9 * GIB, second: 2 * CONTEXT + 6 * GIB}

    # The second notebook asks for a whole device, and is told who holds what since when.
    error = debug.refused(WHOLE, "no_capacity")
    assert error["message"].startswith("No GPU is free for a whole device.")
    since = r"since \d\d:\d\d \(\d+ (s|min)\)"
    assert re.search(rf"GPU 0: llm\.ipynb of \S+ holds all of it {since}", error["message"])
    assert re.search(rf"GPU 1: viz\.ipynb of \S+ holds .* and 50 % {since}", error["message"])
    held = {(holder["device"], holder["name"]) for holder in error["details"]["holders"]}
    assert held == {(first, "llm.ipynb"), (second, "viz.ipynb")}
    assert debug.sees() == bare(second)

    # The first gives its device back while CUDA lives there: nobody gets it before its restart.
    draining = llm.release()
    assert draining["state"] == "draining"
    assert "restart to free" in draining["reason"]
    assert "llm.ipynb" in debug.refused(WHOLE, "no_capacity")["message"]
    error = viz.refused({"devices": [first], "memory": "1G"}, "no_capacity")
    assert "draining" in error["message"]
    assert llm.release()["state"] == "draining"
    llm.restart()
    assert llm.now["state"] == "released"
    assert llm.run(CHILD) == no_device

    # There is room now, but CUDA lives in the second notebook: too late, and nothing is lost.
    assert "restart" in debug.refused(WHOLE, "cuda_initialized")["hint"]
    assert debug.held == [(second, 4_000_000_000, "granted")]
    granted = debug.attach(WHOLE, restart=True)
    assert granted["applied"] == "at_restart"
    assert {(g["device"], g["state"]) for g in granted["grants"]} == {
        (first, "granted"),
        (second, "draining"),
    }
    assert debug.sees() == bare(second)
    debug.restart()
    assert debug.held == [(first, capacity, "granted")]
    assert debug.sees() == bare(first)

    # The third was never disturbed.
    assert viz.held == [(second, capacity // 2, "granted")]
    assert viz.run("print(int(cuda.cuMemFree(memory)[0]))") == "0"
    holders = {row["uuid"]: len(row["grants"]) for row in jupyter.gpu("GET", "devices")}
    assert holders == {first: 1, second: 1}
