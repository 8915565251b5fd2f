"""The GPU page as a service of the tests' Hub, and what it is asked."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx

from tests.hub.beside import NAMES, running
from tests.hub.hubs import Hub, free_port
from tests.integration.daemons import Daemon

SCOPES = {
    "custom:genv-jupyter:admin": {"description": "Administer the GPUs of the host"},
    "custom:genv-jupyter:use": {"description": "Use GPUs"},
}


def serve(hub: Hub, daemon: Daemon) -> None:
    """Add the page to a Hub that has not been started yet, as docs/hub.md says."""
    hub.scopes |= SCOPES
    hub.roles += [
        {
            "name": "user",
            "scopes": ["self", "access:services!service=gpu", "custom:genv-jupyter:use!user"],
        },
        {
            "name": "gpu-admin",
            "scopes": ["custom:genv-jupyter:admin"],
            "users": [hub.names["adm"]],
        },
    ]
    command = [sys.executable, "-m", "genv_jupyter.hub", "--socket", str(daemon.hub_socket)]
    hub.services.append(
        {
            "name": "gpu",
            "url": f"http://127.0.0.1:{free_port()}",
            "command": command,
            "oauth_no_confirm": True,
            "oauth_client_allowed_scopes": [
                "access:services!service=gpu",
                "read:users:groups!user",
                "custom:genv-jupyter:use!user",
                "custom:genv-jupyter:admin",
            ],
        }
    )


@contextlib.contextmanager
def page_of_hub(*lines: str) -> Iterator[tuple[Hub, Daemon]]:
    """A Hub with the page, and a daemon."""
    with running("simple", {name: name for name in NAMES}, *lines, start=False) as found:
        hub, daemon = found
        serve(hub, daemon)
        hub.start()
        yield hub, daemon


class Holder:
    """Somebody's program that holds something, as the daemon has it from its Hub socket."""

    def __init__(self, hub: Hub, daemon: Daemon, user: str, name: str) -> None:
        self._process = subprocess.Popen(["sleep", "600"])
        self._client = httpx.Client(
            transport=httpx.HTTPTransport(uds=str(daemon.hub_socket)),
            base_url="http://gpu/v1/",
            headers={"Authorization": f"token {hub.token_of(user)}"},
        )
        new = {"kind": "command", "pid": self._process.pid, "name": name}
        self.id = str(self.call("POST", "environments", new)["id"])

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Call the daemon as the owner."""
        answer = self._client.request(method, path, json=body)
        assert answer.is_success, answer.text
        return answer.json()

    def attach(self, **request: Any) -> Any:
        """Ask for something."""
        return self.call("PUT", f"environments/{self.id}", request)

    @property
    def now(self) -> Any:
        """The environment as it is."""
        return self.call("GET", f"environments/{self.id}")

    def end(self) -> None:
        """End the program."""
        self._process.kill()
        self._process.wait()
        self._client.close()


@contextlib.contextmanager
def holding(hub: Hub, daemon: Daemon, user: str, name: str, **request: Any) -> Iterator[Holder]:
    """Somebody's program that holds what is asked for."""
    made = Holder(hub, daemon, user, name)
    try:
        if request:
            made.attach(**request)
        yield made
    finally:
        made.end()
