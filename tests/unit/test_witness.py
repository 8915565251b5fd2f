"""Why a process is no client of MPS: found out while nobody waits for the broker's lock."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import pytest

from genv_jupyter.broker.witness import PENDING, Witness
from genv_jupyter.isolation import processes
from genv_jupyter.ledger.rows import GrantRow
from genv_jupyter.model import Process

PIPE = "/run/mps/of-this-device"


class Lock:
    """The broker's lock, which says whether anybody has it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.held = 0

    def __enter__(self) -> None:
        self._lock.acquire()
        self.held += 1

    def __exit__(self, *_: object) -> None:
        self.held -= 1
        self._lock.release()


class Scene:
    """One grant under MPS whose process waits at its daemon, and whoever asks there."""

    def __init__(self, log: Path) -> None:
        process = os.getpid()
        start = processes.start_of(process)
        assert start is not None
        self.lock, self.asked = Lock(), list[str]()
        self.told, self.touched = list[str](), list[str]()
        self.meanwhile: Callable[[], None] = lambda: None
        self.grant = GrantRow(
            id=1, environment="e", device="GPU-0", owner="local:1000", memory=8, compute=None,
            exclusive=False, counted_memory=8, counted_compute=0, counted_exclusive=False,
            state="granted", applied=None, since=0.0, mps=True,
        )  # fmt: skip
        own = {"e": (Process(pid=process, start=start, device="GPU-0", memory=1),)}
        books = SimpleNamespace(
            on_device={"GPU-0": {"e": self.grant}},
            environments={"e": object()},
            touch=self.touched.append,
        )
        self.core: Any = SimpleNamespace(
            books=books,
            usage={"GPU-0": SimpleNamespace(own=own)},
            clock=lambda: 4e9,
            powers=SimpleNamespace(variable=self.variable),
            record=lambda kind, row, *, device, reason: self.told.append(reason),
        )
        self.written = log
        log.write_text(f"[1] NEW CLIENT {process} push client to pending list\n")
        self.witness = Witness(self)  # type: ignore[arg-type]

    def variable(self, pid: int, name: str) -> str:
        self._asked("variable")
        return PIPE

    def control(self, post: object) -> Any:
        return SimpleNamespace(clients=self.clients, log=self.log)

    def clients(self) -> dict[int, int]:
        self._asked("clients")
        return {}

    def log(self, name: str) -> BinaryIO:
        self._asked(name)
        self.meanwhile()
        return self.written.open("rb")

    def _asked(self, what: str) -> None:
        assert not self.lock.held, f"{what} was asked for under the broker's lock"
        self.asked.append(what)

    def look(self) -> None:
        self.witness.look(self.core, self.lock)  # type: ignore[arg-type]

    def steady(self) -> float:
        return 0.0

    def trouble(self, post: object) -> None:
        return None

    def path(self, post: object) -> Path:
        return Path(PIPE)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "control.log")


def test_the_cause_is_found_without_the_lock(scene: Scene) -> None:
    scene.look()
    assert scene.asked == ["clients", "variable", "control.log"]
    verdict = scene.witness.verdicts[1]
    assert not verdict.verified and verdict.cause is not None and verdict.cause.endswith(PENDING)
    assert scene.told == [verdict.cause] and scene.touched == ["e"]


def test_what_was_found_of_a_grant_that_is_over_by_then_is_told_nobody(scene: Scene) -> None:
    scene.meanwhile = scene.core.books.on_device["GPU-0"].clear
    scene.look()
    assert "control.log" in scene.asked
    assert scene.witness.verdicts == {} and scene.told == []
