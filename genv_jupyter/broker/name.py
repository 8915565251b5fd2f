"""The name that a user's broker is found by: whoever has bound it is the broker."""

from __future__ import annotations

import errno
import http.client
import json
import socket
import time
from pathlib import Path
from typing import Any

from genv_jupyter import __version__
from genv_jupyter.api import rendezvous
from genv_jupyter.broker import directories
from genv_jupyter.errors import Unavailable

REPLACE_SECONDS = 10.0
BACKLOG = 1024


def take(replace: bool) -> socket.socket | None:
    """Bind the rendezvous; ``None`` when another broker of ours has it."""
    deadline = time.monotonic() + REPLACE_SECONDS
    asked = False
    while True:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        where = rendezvous.address()
        try:
            _bind(sock, where)
            return sock
        except OSError as error:
            sock.close()
            if error.errno != errno.EADDRINUSE:
                raise Unavailable(
                    f"The GPU broker cannot listen: {error}.",
                    hint="If GENV_JUPYTER_SOCKET is set, check that path (at most 107 bytes).",
                ) from error
        if not replace:
            return None
        if not asked:
            asked = True
            if not _ask_to_leave():
                return None
        if time.monotonic() > deadline:
            raise Unavailable("The older GPU broker does not leave.", hint="End it by its pid.")
        time.sleep(0.05)


def _bind(sock: socket.socket, where: str) -> None:
    if not where.startswith("\0"):
        try:
            directories.claim_socket(Path(where))
        except BlockingIOError as error:
            raise OSError(errno.EADDRINUSE, "another broker has this path") from error
    sock.bind(where)
    sock.listen(BACKLOG)
    sock.setblocking(False)


def _ask_to_leave() -> bool:
    """Ask the present broker to make way; say whether it does."""
    connection: Any = http.client.HTTPConnection("broker")
    try:
        connection.sock = rendezvous.connect()
        connection.request("POST", "/v1/replace", json.dumps({"version": __version__}))
        return int(connection.getresponse().status) == 200
    except (OSError, http.client.HTTPException):
        return True  # it has just left
    finally:
        connection.close()
