"""A process with real ``pynvml`` and ``cuda-bindings`` that does what a test tells it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from types import TracebackType
from typing import Any, Self

from tests.fakedriver.driver import FakeDriver

# It prints one JSON value for each line it reads: what the expression gives, None for a statement,
# {"nvml": code} for an error of pynvml.
_PROGRAM = r"""
import json, os, signal, sys
import pynvml as nvml
from cuda.bindings import driver as cuda

def plain(value):
    if isinstance(value, (tuple, list)):
        return [plain(each) for each in value]
    if isinstance(value, bytes):
        return value.rstrip(b"\0 ").decode()
    if value is None or isinstance(value, (str, bool)):
        return value
    return int(value)

def started():
    nvml.nvmlInit()
    return [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]

def processes(handle, list_them=nvml.nvmlDeviceGetComputeRunningProcesses):
    return [(p.pid, p.usedGpuMemory, p.gpuInstanceId) for p in list_them(handle)]

def used(handle):
    return nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2).used

def context(ordinal=0):
    return cuda.cuCtxCreate(None, 0, cuda.cuDeviceGet(ordinal)[1])

def allocate(size):
    return cuda.cuMemAlloc(size)[0]

def visible():
    error = cuda.cuInit(0)[0]
    count = 0 if error else cuda.cuDeviceGetCount()[1]
    gpus = [cuda.cuDeviceGet(ordinal)[1] for ordinal in range(count)]
    return error, [cuda.cuDeviceGetUuid(gpu)[1].bytes.hex() for gpu in gpus]

def in_fork(function):
    read, write = os.pipe()
    if not (pid := os.fork()):
        os.write(write, json.dumps(plain(function())).encode())
        os._exit(0)
    os.close(write)
    with open(read) as answer:
        result = json.load(answer)
    os.waitpid(pid, 0)
    return result

def visible_with(**variables):
    return in_fork(lambda: (os.environ.update(variables), visible())[1])

for line in sys.stdin:
    try:
        source = json.loads(line)
        try:
            answer = plain(eval(source))
        except SyntaxError:
            answer = exec(source, globals())
    except nvml.NVMLError as error:
        answer = {"nvml": error.value}
    print(json.dumps(answer), flush=True)
"""


def bare(*uuids: str) -> list[str]:
    """UUIDs as ``visible()`` gives them: hexadecimal digits only."""
    return [name.partition("-")[2].replace("-", "") for name in uuids]


class Remote:
    """A Python process under a fake driver; its names: ``cuda``, ``nvml``, and some helpers.

    Parameters
    ----------
    driver
        Its driver.
    **variables
        More of its environment.
    """

    def __init__(self, driver: FakeDriver, **variables: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **driver.environ, **variables},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.kill()
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def __call__(self, source: str) -> Any:
        """Evaluate an expression there, or execute a statement, and return what it gave."""
        self.begin(source)
        return self.answer()

    def begin(self, source: str) -> None:
        """As a call, without waiting for the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(source) + "\n")
        self._process.stdin.flush()

    def has_answered(self, within: float) -> bool:
        """Return whether the answer comes within that many seconds."""
        assert self._process.stdout is not None
        return bool(select.select([self._process.stdout], [], [], within)[0])

    def answer(self, timeout: float = 60.0) -> Any:
        """Return the answer to ``begin``; fail if there is none."""
        assert self._process.stdout is not None
        if not self.has_answered(within=timeout):
            raise AssertionError("The process does not answer.")
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError(f"The process ended: {self._process.wait()}")
        return json.loads(line)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def wait(self, timeout: float = 60.0) -> int:
        """Return how it ended: an exit status, or minus a signal's number."""
        return self._process.wait(timeout)
