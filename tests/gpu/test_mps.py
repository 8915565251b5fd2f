"""What is believed about MPS, asked of a real GPU, in less than five minutes; skipped without one.

``python -m pytest -s tests/gpu/test_mps.py`` prints a table for ``docs/mps.md``. The whole path is
walked: a broker of its own gives the grants, and CUDA's driver is called as every framework does.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

from genv_jupyter.api import rendezvous
from genv_jupyter.api.client import Client
from genv_jupyter.isolation import processes
from genv_jupyter.isolation.mps_control import PROGRAM, ControlDaemon
from genv_jupyter.model import Environment, NewEnvironment, Request
from tests.conftest import end_broker

GIB = 2**30
SECONDS = 3.0
"""For which kernels of CUDA are counted."""

# A process that does what it is told: one JSON line back for each line. Memory is set again and
# again as the work, since that needs no compiler.
PROGRAM_TEXT = r"""
import ctypes, json, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
def begin():
    device, context = ctypes.c_int(), ctypes.c_void_p()
    for code in (cuda.cuInit(0), cuda.cuDeviceGet(ctypes.byref(device), 0),
                 cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device)):
        if code:
            return code
    return 0
def memory():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    return cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)), free.value, total.value
def units():
    found = ctypes.c_int()
    cuda.cuDeviceGetAttribute(ctypes.byref(found), 16, 0)
    return found.value
pointer = ctypes.c_uint64()
def allocate(size):
    return cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size))
def work(seconds):
    done, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        for _ in range(20):
            cuda.cuMemsetD32_v2(pointer, done, ctypes.c_size_t(16 * 2**20))
        if cuda.cuCtxSynchronize():
            return -1
        done += 20
    return done
# Writes where nothing is: a fatal error on the device.
PTX = b'''.version 6.0
.target sm_70
.address_size 64
.visible .entry crash()
{
  .reg .u64 %a;
  .reg .u32 %b;
  mov.u64 %a, 16;
  mov.u32 %b, 1;
  st.global.u32 [%a], %b;
  ret;
}
\0'''
def crash():
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    code = cuda.cuModuleLoadData(ctypes.byref(module), PTX)
    code = code or cuda.cuModuleGetFunction(ctypes.byref(function), module, b"crash")
    code = code or cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, None, None)
    return code or cuda.cuCtxSynchronize()
for line in sys.stdin:
    print(json.dumps(eval(line)), flush=True)
"""


class User:
    """A process with an environment of its own."""

    def __init__(self, client: Client, request: Request | None, **variables: str) -> None:
        self.client = client
        self.holder = subprocess.Popen(["sleep", "600"])
        self.id = client.create(NewEnvironment(kind="command", pid=self.holder.pid)).id
        environ = dict(os.environ)
        if request is not None:
            granted = client.attach(self.id, request)
            self.grant = granted.grants[0]
            for name, value in (granted.environ or {}).items():
                environ.pop(name, None) if value is None else environ.update({name: value})
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM_TEXT],
            env={**environ, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def hear(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def __call__(self, line: str) -> Any:
        self.tell(line)
        return self.hear()

    def now(self) -> Environment:
        return self.client.environment(self.id)

    def close(self) -> None:
        for one in (self.process, self.holder):
            one.kill()
            one.wait()


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    if not Path("/proc/driver/nvidia/version").exists():
        pytest.skip("NOT TESTED on a GPU: there is no NVIDIA driver here")
    if shutil.which(PROGRAM) is None:
        pytest.skip(f"NOT TESTED on a GPU: {PROGRAM} is not installed")
    with tempfile.TemporaryDirectory(prefix="gj") as home:
        monkeypatch.setenv("GENV_JUPYTER_HOME", home)
        monkeypatch.delenv("GENV_JUPYTER_SIMULATE", raising=False)
        yield Client()
        end_broker(rendezvous.address())
        for path in Path(home).glob("*/mps/*"):
            pid = ControlDaemon(path, "").pid()
            if pid is not None:
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def users(client: Client) -> Iterator[list[User]]:
    made: list[User] = []
    yield made
    for user in made:
        user.close()


@pytest.fixture(scope="module")
def table() -> Iterator[dict[str, str]]:
    rows: dict[str, str] = {}
    yield rows
    if rows:
        pynvml.nvmlInit()
        name = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0))
        print(f"\n\n{name}, driver {pynvml.nvmlSystemGetDriverVersion()}")
        print("\n| what | seen |\n|---|---|")
        print("\n".join(f"| {what} | {seen} |" for what, seen in rows.items()))


def until(look: Any, what: str, seconds: float = 15.0) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if (found := look()) is not None:
            return found
        time.sleep(0.1)
    raise AssertionError(f"never: {what}")


def verified(user: User) -> bool | None:
    return user.now().grants[0].limits.memory.verified


def test_a_client_has_its_cap_and_another_has_its_own(
    client: Client, users: list[User], table: dict[str, str]
) -> None:
    one, other = (User(client, Request(memory="4GiB")) for _ in range(2))
    users.extend((one, other))
    assert one("begin()") == other("begin()") == 0
    assert until(lambda: verified(one), "the daemon knows it as a client") is True
    code, free, total = one("memory()")
    table["free and total under a cap of 4 GiB"] = f"{free / GIB:.2f} and {total / GIB:.2f} GiB"
    assert code == 0 and free <= 4 * GIB
    refused = one(f"allocate({4 * GIB})")
    table["error above the cap"] = str(refused)
    assert refused == 2
    assert other(f"allocate({2 * GIB})") == 0, "only the offender is refused"
    assert one(f"allocate({GIB})") == 0


def test_a_ceiling_is_seen(client: Client, users: list[User], table: dict[str, str]) -> None:
    half, free = User(client, Request(fraction=0.5)), User(client, Request(memory="2GiB"))
    users.extend((half, free))
    assert half("begin()") == free("begin()") == 0
    seen = half("units()"), free("units()")
    table["multiprocessors with a ceiling of 50 %, and without"] = f"{seen[0]} and {seen[1]}"
    assert seen[0] <= seen[1] * 0.55


@pytest.mark.parametrize("mps", ["on", "off"])
def test_how_much_two_do_at_once(
    client: Client, users: list[User], table: dict[str, str], mps: Any
) -> None:
    two = [User(client, Request(devices=("0",), fraction=0.5, mps=mps)) for _ in range(2)]
    users.extend(two)
    for user in two:
        assert user("begin()") == user(f"allocate({GIB})") == 0
    alone = two[0](f"work({SECONDS})")
    for user in two:
        user.tell(f"work({SECONDS})")
    done = [user.hear() for user in two]
    assert min(alone, *done) > 0
    how = "under MPS" if mps == "on" else "taking turns"
    table[f"two half shares at once against one of them alone, {how}"] = f"{sum(done) / alone:.2f}"


def test_a_bypass_is_told(client: Client, users: list[User], table: dict[str, str]) -> None:
    user = User(client, Request(memory="4GiB"), CUDA_MPS_PIPE_DIRECTORY="/nonexistent/other")
    users.append(user)
    assert user("begin()") == 0
    _, free, _ = user("memory()")
    assert free > 4 * GIB, "without a daemon it has no cap"
    began = time.monotonic()
    reason = until(lambda: user.now().reason, "it is told")
    table["a bypass is told after"] = f"{time.monotonic() - began:.1f} s"
    assert "works without MPS" in reason


def test_taken_off_and_killed_the_other_lives(
    client: Client, users: list[User], table: dict[str, str]
) -> None:
    one, other = (User(client, Request(memory="4GiB")) for _ in range(2))
    users.extend((one, other))
    for user in (one, other):
        assert user("begin()") == user(f"allocate({GIB})") == 0
    other.tell("work(4)")
    one.tell("work(60)")
    time.sleep(1)
    began = time.monotonic()
    client.leave(one.id)
    table["taken off after"] = f"{time.monotonic() - began:.2f} s"
    start = processes.start_of(one.process.pid)
    assert processes.send(one.process.pid, start, signal.SIGKILL)
    assert other.hear() > 0
    table["the other, after one was taken off and killed"] = "works"


def test_a_fatal_error_is_told_to_all_and_over_when_they_are_gone(
    client: Client, users: list[User], table: dict[str, str]
) -> None:
    one, other = (User(client, Request(devices=("0",), memory="4GiB")) for _ in range(2))
    users.extend((one, other))
    for user in (one, other):
        assert user("begin()") == user(f"allocate({GIB})") == 0
        assert until(lambda user=user: verified(user), "it is a client") is True
    table["error of a process that writes where nothing is"] = str(one("crash()"))
    began = time.monotonic()
    until(lambda: True if "is lost" in (other.now().reason or "") else None, "the other is told")
    table["a fatal error is told to the other after"] = f"{time.monotonic() - began:.1f} s"
    table["what the other can still do"] = "work" if other("work(0.1)") > 0 else "nothing"
    for user in (one, other):
        user.process.kill()
        user.process.wait()
    began = time.monotonic()

    def works() -> User | None:
        user = User(client, Request(devices=("0",), memory="1GiB"))
        users.append(user)
        under = user.grant.limits.memory.strength == "driver"
        return user if under and user("begin()") == 0 else None

    until(works, "a new process works under MPS")
    table["a new process works under MPS after"] = f"{time.monotonic() - began:.1f} s"


DARK = {
    "the driver": """
cuda = ctypes.CDLL("libcuda.so.1")
def look():
    return cuda.cuInit(0)
""",
    "the runtime": """
import importlib.metadata
files = importlib.metadata.files("nvidia-cuda-runtime")
(name,) = [it for it in files if it.name.startswith("libcudart.so")]
runtime = ctypes.CDLL(str(name.locate()))
def look():
    return runtime.cudaGetDeviceCount(ctypes.byref(ctypes.c_int()))
""",
    "PyTorch": """
import torch
def look():
    return 0 if torch.cuda.is_available() else 100
""",
}


@pytest.mark.parametrize("which", DARK)
def test_what_a_look_in_the_dark_costs(table: dict[str, str], client: Client, which: str) -> None:
    """Whether one that has found nothing finds what is shown to it later: any answer is one."""
    code = f"""
import ctypes, os
{DARK[which]}
first = look()
del os.environ["CUDA_VISIBLE_DEVICES"]
print(first, look())
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=60,
    )
    if done.returncode:
        pytest.skip(f"NOT TESTED with {which}: {done.stderr.splitlines()[-1]}")
    first, second = done.stdout.split()
    finds = "finds the device" if second == "0" else f"still finds none (error {second})"
    table[f"{which} looked while all was hidden (error {first}); shown a device it"] = finds
    assert int(first) != 0
