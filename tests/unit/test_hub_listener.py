"""Strangers at the Hub's socket: few, and never in the way of whoever comes next."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from genv_jupyter.api import hub_door
from genv_jupyter.broker import hub_listener
from genv_jupyter.broker.hub_listener import HubListener
from genv_jupyter.isolation import pid_namespaces, processes


def test_outside_of_containers_strangers_are_counted_by_uid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each scope or service of a user is a cgroup: they would have as many places as they like."""
    monkeypatch.setattr(processes, "cgroup", lambda pid: f"/user.slice/run-{pid}.scope")
    assert {hub_door.Guest(pid, 1, 1000).origin for pid in (1, 2, os.getpid())} == {"uid 1000"}
    monkeypatch.setattr(pid_namespaces, "contained", lambda pid: True)
    assert hub_door.Guest(7, 1, 1000).origin == "/user.slice/run-7.scope"


def test_when_all_places_are_taken_the_oldest_of_the_largest_crowd_goes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    origins = iter(["few", "many", "many", "new", "newer"])

    class Guest(hub_door.Guest):
        def __init__(self, *known: Any) -> None:
            super().__init__(*known)
            self.origin = next(origins)

    monkeypatch.setattr(hub_listener, "Guest", Guest)
    monkeypatch.setattr(hub_listener, "MOST_STRANGERS", 3)

    async def story() -> None:
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(str(tmp_path / "a.sock"))
        process: Any = None  # nobody here proves anything, so it is not asked
        listener = HubListener(process, sock, process)
        await listener.open()
        came = []
        for number in range(4):
            came.append(await asyncio.open_unix_connection(tmp_path / "a.sock"))
            while len(listener.waiting) < min(number + 1, 3):
                await asyncio.sleep(0.01)
        assert await came[1][0].read() == b""
        while listener.strangers != {"few": 1, "many": 1, "new": 1}:
            await asyncio.sleep(0.01)
        assert [it.origin for it in listener.waiting] == ["few", "many", "new"]
        assert not any(reader.at_eof() for reader, _ in (came[0], came[2], came[3]))
        for _, writer in came:
            writer.close()
        while listener.strangers or listener.waiting:
            await asyncio.sleep(0.01)
        await listener.close(1)

    asyncio.run(asyncio.wait_for(story(), 20))
