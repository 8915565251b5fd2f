"""The GPU page as a service of the tests' Hub, and what it is asked."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

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
def page_of_hub(*lines: str, **more: Any) -> Iterator[tuple[Hub, Daemon]]:
    """A Hub with the page, and a daemon."""
    with running("simple", {name: name for name in NAMES}, *lines, start=False, **more) as found:
        hub, daemon = found
        serve(hub, daemon)
        hub.start()
        yield hub, daemon
