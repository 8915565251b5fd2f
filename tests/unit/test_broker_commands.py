"""Environments of commands: they end with their process, and drain for what that leaves behind."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from genv_jupyter.devices.source import ProcessReading
from genv_jupyter.errors import NoCapacity
from genv_jupyter.model import Environment, EnvironmentPatch, NewEnvironment
from tests.unit.brokers import GIB, WHOLE, Bench, bench


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path, "1x24GiB") as made:
        yield made


def command(host: Bench, process: subprocess.Popen[bytes]) -> Environment:
    """Start a command with the whole device, as `jupyter gpu run` does."""
    new = NewEnvironment(kind="command", pid=process.pid, name="train")
    made = host.broker.create(host.me, new)
    host.broker.attach(host.me, made.id, WHOLE, cuda="not_initialized", peer_pid=process.pid)
    body = EnvironmentPatch(applied="live", cuda="not_initialized")
    return host.broker.patch(host.me, made.id, body)


def test_nobody_is_refused_because_of_a_command_that_has_just_ended(host: Bench) -> None:
    first, second = host.process(), host.process()
    held = command(host, first)
    with pytest.raises(NoCapacity, match="train"):
        command(host, second)
    host.end(first)
    assert command(host, second).state == "granted"  # no round of the housekeeper in between
    assert held.id not in host.broker.books.environments


def test_a_dry_run_sees_it_too(host: Bench) -> None:
    first = host.process()
    command(host, first)
    host.end(first)
    assert len(host.broker.place(host.me, WHOLE).grants) == 1


def test_what_a_command_leaves_behind_drains(host: Bench) -> None:
    process = host.process()
    held = command(host, process)
    child = subprocess.Popen(
        ["sleep", "600"], env={**os.environ, "GENV_JUPYTER_ENVIRONMENT": held.id}
    )
    host.children.append(child)
    listed = host.source.devices[0].processes
    assert listed is not None
    listed.append(ProcessReading(child.pid, GIB, "compute"))
    host.tick()
    host.end(process)
    for _ in range(2):
        host.tick()
        left = host.broker.environment(host.me, held.id)
        assert (left.state, [grant.state for grant in left.grants]) == ("draining", ["draining"])
        assert "processes that it started still use" in (left.reason or "")
    with pytest.raises(NoCapacity, match=r"train of .* is draining"):
        command(host, host.process())
    host.end(child)
    listed.clear()
    host.tick()
    host.tick()
    assert held.id not in host.broker.books.environments
    assert host.broker.devices()[0].grants == ()


def test_verbs_come_in_between_the_parts_of_a_round(
    host: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, free, done = host.broker, list[bool](), list[str]()

    def ask() -> None:
        free.append(broker.lock.acquire(timeout=10))
        broker.lock.release()

    def pause() -> None:
        other = threading.Thread(target=ask)
        other.start()
        other.join()
        done.append("pause")

    parts = [lambda: done.append("one"), lambda: done.append("other")]
    monkeypatch.setattr(broker.housekeeper, "parts", lambda: parts)
    monkeypatch.setattr("genv_jupyter.broker.service._let_others_in", pause)
    broker.tick(read=False)
    assert done[:4] == ["pause", "one", "pause", "other"]
    assert all(free) and len(free) == 5
