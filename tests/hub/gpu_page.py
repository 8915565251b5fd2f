"""The GPU page as a service of the tests' Hub, and what it is asked."""

from __future__ import annotations

import base64
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
    """Add the page to a Hub that has not been started yet, as docs/admin-page.md says."""
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


class Visitor:
    """A browser without a window: it has logged in at the Hub, and calls as the page does."""

    def __init__(self, hub: Hub, user: str) -> None:
        self.url = f"{hub.url}/services/gpu/"
        self.client = httpx.Client(follow_redirects=True, timeout=60)
        asked = self.client.get(self.url)
        assert "/hub/login" in str(asked.url), asked.text
        form = {"username": hub.names[user], "password": "", "_xsrf": self._xsrf("/hub/")}
        page = self.client.post(asked.url, data=form)
        assert str(page.url) == self.url, page.text
        self.page = page

    def _xsrf(self, path: str) -> str:
        return next(
            str(one.value)
            for one in self.client.cookies.jar
            if (one.name, one.path) == ("_xsrf", path)
        )

    @property
    def xsrf(self) -> str:
        """The token against forged requests, as the page reads it."""
        return self._xsrf("/services/gpu/")

    @property
    def token(self) -> str:
        """The visitor's token at the Hub: nobody but the service should ever see it."""
        cookie = next(one for one in self.client.cookies.jar if one.name == "service-gpu")
        return base64.b64decode(str(cookie.value).split("|")[4].partition(":")[2]).decode()

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
        """Call the REST API as the page does; a header may be replaced, or left out (empty)."""
        sent = {"X-XSRFToken": self.xsrf, "Sec-Fetch-Site": "same-origin"}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.request(
            method,
            f"{self.url}genv-jupyter/v1/{path}",
            json=body,
            headers={name: value for name, value in sent.items() if value},
        )
