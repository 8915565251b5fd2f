"""The story of three people, in three IPython terminals and without any Jupyter server."""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import pexpect
import pytest

from genv_jupyter.api.client import Client
from tests.fakedriver.driver import FakeDriver
from tests.fakedriver.fixtures import driver, fake_driver
from tests.integration.kernels import STARTUP

__all__ = ["driver", "fake_driver"]

PROMPT = re.compile(r"In \[\d+\]: ")
SEEN = (
    "from cuda.bindings import driver as cuda; cuda.cuInit(0)",
    "gpus = [cuda.cuDeviceGet(i)[1] for i in range(cuda.cuDeviceGetCount()[1])]",
    "print('sees', [cuda.cuDeviceGetUuid(gpu)[1].bytes.hex() for gpu in gpus])",
)


class Terminal:
    """An IPython in a pseudo-terminal."""

    def __init__(self, ipython: Path, name: str) -> None:
        environ = {**os.environ, "IPYTHONDIR": str(ipython)}
        self.child = pexpect.spawn(
            sys.executable,
            ["-m", "IPython", "--no-banner", "--no-confirm-exit", "--simple-prompt"],
            env=environ,
            encoding="utf-8",
            timeout=60,
            dimensions=(50, 500),
        )
        self.name = name

    def __enter__(self) -> Self:
        self.child.expect(PROMPT)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.child.close(force=True)

    def __call__(self, line: str) -> str:
        """Type a line and return what came of it."""
        self.child.sendline(line)
        self.child.expect(PROMPT)
        said: str = self.child.before
        assert "Traceback" not in said, said
        return said.replace("\r\n", "\n").partition("\n")[2].strip()

    def sees(self) -> list[str]:
        """Return the UUIDs that NVIDIA's library finds there; CUDA is initialised by this."""
        for line in SEEN:
            said = self(line)
        return re.findall(r"'([0-9a-f]{32})'", said)

    def leave(self) -> None:
        self.child.sendline("exit")
        self.child.expect(pexpect.EOF)
        self.child.close()


@pytest.fixture
def terminal(driver: FakeDriver, tmp_path: Path) -> Iterator[Callable[[str], Terminal]]:
    startup = tmp_path / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    shutil.copy(STARTUP, startup)
    with ExitStack() as stack:
        yield lambda name: stack.enter_context(Terminal(tmp_path / "ipython", name))


def bare(uuid: str) -> str:
    return uuid.removeprefix("GPU-").replace("-", "")


def test_story(driver: FakeDriver, terminal: Callable[[str], Terminal]) -> None:
    first, second = driver.uuids
    llm, debug, viz = terminal("llm"), terminal("debug"), terminal("viz")

    assert "Attached." in llm("%gpu attach 1 --name llm")
    assert "Attached." in debug("%gpu attach --memory 4G --name debug")
    assert "Attached." in viz("%gpu attach 0.5 --name viz")
    assert llm.sees() == [bare(first)]
    assert viz.sees() == [bare(second)]
    held = {env.name: [grant.device for grant in env.grants] for env in Client().environments()}
    assert held == {"llm": [first], "debug": [second], "viz": [second]}
    assert "Attached already." in viz("%gpu attach 0.5"), "Run All"

    before = {env.name: env for env in Client().environments()}
    refused = " ".join(debug("%gpu attach 1").split())  # however it is wrapped
    assert refused.startswith("No GPU is free for a whole device.")
    assert re.search(r"GPU 0: llm of \S+ holds all of it since \d\d:\d\d \(\d+ (s|min)\)", refused)
    assert re.search(r"GPU 1: viz of \S+ holds .* and 50 % since", refused)
    assert {env.name: env for env in Client().environments()} == before, "nobody was disturbed"

    llm("context = cuda.cuCtxCreate(None, 0, gpus[0])")
    assert "leave it to free" in llm("%gpu release")
    assert "llm of" in debug("%gpu attach 1") and "draining" in debug("%gpu attach 1")
    llm.leave()
    while "llm" in {env.name for env in Client().environments()}:
        time.sleep(0.1)  # until the broker has seen its end; the test's timeout is the limit
    assert "all free" in debug("%gpu devices")
    assert "CUDA is already initialised" in viz("%gpu attach 1"), "too late there"
    assert "Attached." in debug("%gpu attach 1")
    assert debug.sees() == [bare(first)]
    assert "Restart it by hand" in viz("%gpu attach 1 --restart")

    assert "debug (here)" in debug("%gpu devices")
    assert "viz" in debug("%gpu envs")
    viz.leave()
    debug.leave()
