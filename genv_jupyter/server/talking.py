"""Talking to a kernel beside its other clients: one request, one reply."""

from __future__ import annotations

import asyncio
import contextlib
import queue
from collections.abc import AsyncIterator
from typing import Any

import zmq.asyncio
from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.session import Session


@contextlib.asynccontextmanager
async def channels(manager: Any) -> AsyncIterator[AsyncKernelClient]:
    """Connect to a kernel beside its other clients.

    With a session of its own: the manager's would make two clients with one identity, and the
    kernel's replies would go to either.
    """
    info = manager.get_connection_info(session=True)
    shared = manager.session
    info["session"] = Session(key=shared.key, signature_scheme=shared.signature_scheme)
    for key in ("curve_publickey", "curve_secretkey"):
        if isinstance(info.get(key), str):
            info[key] = info[key].encode("ascii")
    context = zmq.asyncio.Context.shadow(manager.context.underlying)
    client = AsyncKernelClient(context=context, **info)
    client.start_channels(shell=True, iopub=False, stdin=False, hb=False, control=True)
    try:
        yield client
    finally:
        client.stop_channels()


async def request(
    client: AsyncKernelClient,
    channel: str,
    kind: str,
    content: dict[str, Any],
    seconds: float | None,
    subshell: str | None = None,
) -> dict[str, Any] | None:
    """Send a request and return its reply's content; ``None`` when none comes in time."""
    asked = _send(client, channel, kind, content, subshell)
    receive = client.get_shell_msg if channel == "shell" else client.get_control_msg
    try:
        async with asyncio.timeout(seconds):
            while True:
                try:
                    reply = await receive(timeout=60)
                except queue.Empty:
                    continue
                if reply["parent_header"].get("msg_id") == asked:
                    return dict(reply["content"])
    except TimeoutError:
        return None


def _send(
    client: AsyncKernelClient,
    channel: str,
    kind: str,
    content: dict[str, Any],
    subshell: str | None = None,
) -> str:
    message = client.session.msg(kind, content)
    if subshell is not None:
        message["header"]["subshell_id"] = subshell
    (client.shell_channel if channel == "shell" else client.control_channel).send(message)
    return str(message["header"]["msg_id"])
