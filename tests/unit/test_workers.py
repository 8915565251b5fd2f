"""Worker processes with their parts of a grant."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from genv_jupyter import workers
from genv_jupyter.api.client import Client
from genv_jupyter.errors import Conflict, UnknownEnvironment
from genv_jupyter.isolation import live
from genv_jupyter.isolation.caps import LIMIT
from genv_jupyter.isolation.environ import MARKER
from genv_jupyter.model import NewEnvironment, Request

GIB = 2**30


@pytest.fixture
def environment(broker_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Make this process one that has an environment."""
    found = Client().create(NewEnvironment(kind="command", pid=os.getpid()))
    monkeypatch.setenv(MARKER, found.id)
    yield found.id
    Client().detach(found.id)


def variable(name: str) -> str | None:
    return os.environ.get(name)


def ask(processes: int, method: str = "spawn") -> list[str | None]:
    with ProcessPoolExecutor(processes, **workers.parts(processes, method=method)) as pool:
        return list(pool.map(variable, [LIMIT, "CUDA_VISIBLE_DEVICES"]))


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_each_worker_has_its_part(environment: str, method: str) -> None:
    given = Client().attach(environment, Request(memory="8GiB", processes=2))
    assert ask(2, method) == [str(4 * GIB), given.grants[0].device]


def test_a_whole_device_is_divided_too(environment: str) -> None:
    given = Client().attach(environment, Request(gpus=1))
    assert ask(2)[0] == str(given.grants[0].memory // 2)


def test_more_than_planned_are_refused(environment: str) -> None:
    with pytest.raises(Conflict, match="Nothing is attached"):
        workers.parts(2)
    Client().attach(environment, Request(memory="8GiB"))
    with pytest.raises(Conflict, match="made for 1 process, and 3 are") as refusal:
        workers.parts(3)
    assert "--processes 3" in refusal.value.hint


def test_without_an_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MARKER, raising=False)
    with pytest.raises(UnknownEnvironment):
        workers.parts(2)


def test_a_fork_of_a_process_that_uses_cuda_is_told(
    environment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Client().attach(environment, Request(memory="8GiB", processes=2))
    monkeypatch.setattr(live, "_seen_initialized", True)
    with pytest.raises(RuntimeError, match="method 'spawn'"):
        workers.start({})
    with pytest.raises(BrokenProcessPool):
        ask(2, "fork")
    assert "torch" not in sys.modules
