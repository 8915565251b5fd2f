"""Jupyter servers of real Unix users, whose login knows several people by their tokens."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

from tests.conftest import end
from tests.hostile.puppets import Said
from tests.hub.hubs import free_port
from tests.integration.daemons import User, unprivileged

PATIENCE = 60.0
OWNER, READER, STRANGER = "token-of-owner", "token-of-reader", "token-of-stranger"
_CONFIG = f"""
from jupyter_server.auth import Authorizer, IdentityProvider, User

PEOPLE = {{{OWNER!r}: "owner", {READER!r}: "reader", {STRANGER!r}: "stranger"}}


class Tokens(IdentityProvider):
    async def get_user(self, handler):
        name = PEOPLE.get(handler.request.headers.get("Authorization", "").removeprefix("token "))
        handler._token_authenticated = name is not None
        return None if name is None else User(name)

    @property
    def auth_enabled(self):
        return True


class Doorman(Authorizer):
    def is_authorized(self, handler, user, action, resource):
        return user.username == "owner" or (user.username == "reader" and action == "read")


c.ServerApp.identity_provider_class = Tokens
c.ServerApp.authorizer_class = Doorman
c.ServerApp.jpserver_extensions = {{"genv_jupyter": True}}
c.ServerApp.allow_unauthenticated_access = False
c.ServerApp.open_browser = False
"""


class Jupyter:
    """A running Jupyter server."""

    def __init__(self, url: str) -> None:
        self.url = url

    def call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        query: dict[str, str] | None = None,
        **headers: str,
    ) -> Said:
        """Call our part of its REST API."""
        target = f"{self.url}/genv-jupyter/v1/{path}" + (f"?{urlencode(query)}" if query else "")
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(target, body, names, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return Said(answer.status, answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return Said(error.code, error.read())


@contextlib.contextmanager
def jupyter(top: Path, user: User) -> Iterator[Jupyter]:
    """Start a Jupyter server of a user in a directory of its own, and end it."""
    top.mkdir(mode=0o700)
    config = top / "jupyter_server_config.py"
    config.write_text(_CONFIG)
    for path in (top, config):
        os.chown(path, user.uid, user.gid)
    port = free_port()
    environ = {**os.environ, "HOME": str(top)}
    for name in ("CONFIG", "DATA", "RUNTIME"):
        environ[f"JUPYTER_{name}_DIR"] = str(top / name.lower())
    log = top / "log"
    with log.open("wb") as said:
        process = subprocess.Popen(
            [
                *unprivileged(user),
                *(sys.executable, "-m", "jupyter_server", f"--config={config}"),
                *("--ip=127.0.0.1", f"--port={port}", f"--ServerApp.root_dir={top}"),
            ],
            cwd=top,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
        )
    made = Jupyter(f"http://127.0.0.1:{port}")
    try:
        deadline = time.monotonic() + PATIENCE
        while True:
            assert process.poll() is None, log.read_text()
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                if made.call("GET", "health", Authorization=f"token {OWNER}").status == 200:
                    break
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield made
    finally:
        end(process.pid)
        process.wait()
