"""Whom visitors' tokens are shown to: the daemon, and nobody who listens in its place."""

from __future__ import annotations

import asyncio
import os
import stat
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from genv_jupyter.errors import BrokerDown
from genv_jupyter.hub import upstream
from genv_jupyter.hub.upstream import Upstream, believed

SECRET = "a-secret-token"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]"


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that others get through to."""
    with tempfile.TemporaryDirectory(prefix="genv-jupyter-up-") as made:
        Path(made).chmod(0o755)
        (Path(made) / "hub").mkdir(mode=0o755)
        yield Path(made) / "hub"


def call_at(path: Path, call: Callable[[Upstream], Awaitable[object]], heard: list[bytes]) -> None:
    """Call where somebody listens, who writes down what is heard."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(65536))
        writer.write(OK)
        writer.close()

    async def story() -> None:
        server = await asyncio.start_unix_server(serve, path)
        client = Upstream(str(path))
        try:
            await call(client)
        finally:
            await client.close()
            server.close()
            await server.wait_closed()

    asyncio.run(asyncio.wait_for(story(), 20))


async def ask(client: Upstream) -> None:
    assert (await client.call(SECRET, "GET", "devices")).status == 200


async def listen(client: Upstream) -> None:
    async with client.events(SECRET, "events") as answer:
        assert answer.status_code == 200


@pytest.mark.parametrize("call", [ask, listen])
def test_the_daemon_is_shown_the_token(
    place: Path, call: Callable[[Upstream], Awaitable[object]]
) -> None:
    heard: list[bytes] = []
    call_at(place / "hub.sock", call, heard)
    assert SECRET.encode() in b"".join(heard)


@pytest.mark.parametrize("call", [ask, listen])
def test_another_is_shown_nothing(
    place: Path, call: Callable[[Upstream], Awaitable[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[bytes] = []
    place.chmod(0o777)
    with pytest.raises(BrokerDown, match="is not believed"):
        call_at(place / "hub.sock", call, heard)
    assert b"".join(heard) == b""
    monkeypatch.setattr(upstream, "believed", lambda socket, uid: True)
    call_at(place / "other.sock", call, heard)
    assert SECRET.encode() in b"".join(heard)


def test_who_is_believed(place: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("NOT TESTED: sockets in directories of others; only root gives them away")
    path = str(place / "hub.sock")
    assert believed(path, 0) and believed(path, 4711)  # root's directory: root has let it listen
    os.chown(place, 4711, 4711)
    assert [believed(path, uid) for uid in (0, 4711, 4712)] == [True, True, False]
    place.chmod(0o757)
    assert not believed(path, 0)
    place.chmod(0o755)
    place.parent.chmod(0o777)
    assert not believed(path, 0)
    place.parent.chmod(0o777 | stat.S_ISVTX)
    assert believed(path, 0)
    assert not believed("/nowhere/at/all/hub.sock", 0)
