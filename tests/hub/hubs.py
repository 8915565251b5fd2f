"""A JupyterHub with its proxy for tests, and what they ask of the servers that it starts.

Everything is on loopback, in a directory of its own, and ended by pid. Nothing here runs an event
loop in the calling thread, so tests with a browser may use it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import secrets
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

from tests.conftest import end

ROOT = Path(__file__).parents[2]
PROXY = ROOT / "node_modules" / ".bin" / "configurable-http-proxy"
PATIENCE = 90.0
Kind = Literal["local", "simple"]
"""``local``: servers of real Unix users. ``simple``: all servers have the Hub's own uid."""
_MODULE = "[sys.executable, '-m', 'jupyterhub.singleuser']"
_COLORS = re.compile(r"\x1b\[[0-9;]*m")


class Answer(NamedTuple):
    """Status and body of a call, refused or not."""

    status: int
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def call(
    method: str, url: str, body: Any = None, *, token: str | None = None, **headers: str
) -> Answer:
    """Call an HTTP API."""
    if token is not None:
        headers["Authorization"] = f"token {token}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return Answer(answer.status, answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, error.read())


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def until(look: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """Wait until something is so, and return it."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.05)
    return found


class Hub:
    """A JupyterHub.

    Parameters
    ----------
    top
        A directory of its own, into which every user can get.
    names
        Its users, by the tests' names for them (``ann``, ``bob``, ``cat``, ``adm``): what the Hub
        calls them. ``adm`` is an administrator of the Hub. Nobody has a password: any is right.
    kind
        Which spawner.
    environ
        Variables of the servers, such as ``GENV_JUPYTER_HOST_SOCKET``.

    Attributes
    ----------
    lines
        Of its configuration, after what is always there; read at every start.
    groups
        By name their members, or the whole of ``load_groups``' entry.
    roles, services
        Entries of ``load_roles`` and ``services``, besides those of the tests.
    """

    def __init__(
        self, top: Path, names: Mapping[str, str], kind: Kind, environ: Mapping[str, str]
    ) -> None:
        self.top, self.names, self.kind, self.environ = top, dict(names), kind, dict(environ)
        self.port, self.api_port, self.proxy_port = free_port(), free_port(), free_port()
        self.lines: list[str] = []
        self.groups: dict[str, Any] = {}
        self.roles: list[dict[str, Any]] = []
        self.services: list[dict[str, Any]] = []
        self.scopes: dict[str, Any] = {}
        self.log = top / "hub.log"
        self.token = secrets.token_hex(32)
        self._proxy_token = secrets.token_hex(32)
        self._tokens: dict[str, str] = {}
        self.process: subprocess.Popen[bytes] | None = None
        (top / "homes").mkdir(mode=0o755, parents=True)
        top.chmod(0o755)

    @property
    def url(self) -> str:
        """Where browsers find it, without a slash at the end."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def api_url(self) -> str:
        """Where its API is for services and servers: what ``HubAccess.api_url`` is set to."""
        return f"http://127.0.0.1:{self.api_port}/hub/api"

    # -- life -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Start it with its proxy, and return when it answers."""
        config = self.top / "jupyterhub_config.py"
        config.write_text("\n".join([*self._settings(), *self.lines, ""]))
        config.chmod(0o600)
        environ = {**os.environ, "CONFIGPROXY_AUTH_TOKEN": self._proxy_token}
        environ.pop("GENV_JUPYTER_HOST_SOCKET", None)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "jupyterhub", "-f", str(config)],
                cwd=self.top,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        process = self.process

        def serves() -> bool:
            assert process.poll() is None, self.said()
            try:
                return self.api("GET", "users").status == 200
            except (OSError, urllib.error.URLError):
                return False

        until(serves, "a JupyterHub")

    def stop(self) -> None:
        """End it, its proxy, and all servers and kernels."""
        process, self.process = self.process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.end_rest()

    def kill(self) -> None:
        """End the Hub as a crash does; proxy and servers live on."""
        process, self.process = self.process, None
        assert process is not None
        process.kill()
        process.wait()

    def end_rest(self) -> None:
        """End what a Hub that was killed has left, or what did not go with it."""
        marks = (
            f"CONFIGPROXY_AUTH_TOKEN={self._proxy_token}".encode(),
            f"JUPYTERHUB_API_URL={self.api_url}".encode(),
        )
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it ended meanwhile
                if not {*marks}.isdisjoint((entry / "environ").read_bytes().split(b"\0")):
                    end(int(entry.name))

    def said(self) -> str:
        """Return its log."""
        return _COLORS.sub("", self.log.read_text(errors="replace"))

    def _settings(self) -> Iterator[str]:
        roles = [{"name": "admin", "services": ["tests"]}, *self.roles]
        services = [{"name": "tests", "api_token": self.token}, *self.services]
        groups = {
            name: entry if isinstance(entry, dict) else {"users": entry, "properties": {}}
            for name, entry in self.groups.items()
        }
        settings: dict[str, Any] = {
            "JupyterHub.bind_url": f"{self.url}/",
            "JupyterHub.hub_bind_url": f"http://127.0.0.1:{self.api_port}",
            "ConfigurableHTTPProxy.api_url": f"http://127.0.0.1:{self.proxy_port}",
            "ConfigurableHTTPProxy.command": [str(PROXY)],
            "JupyterHub.authenticator_class": "dummy",
            "JupyterHub.load_groups": groups,
            "JupyterHub.load_roles": roles,
            "JupyterHub.services": services,
            "JupyterHub.custom_scopes": self.scopes,
            "JupyterHub.allow_named_servers": True,
            "Authenticator.allowed_users": {*self.names.values()},
            "Authenticator.admin_users": {self.names["adm"]} if "adm" in self.names else set(),
            "Spawner.environment": self.environ,
            "Spawner.args": ["--allow-root"],
            "Spawner.default_url": "/lab",
            "Spawner.start_timeout": 90,
            "Spawner.http_timeout": 90,
        }
        yield f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nc = get_config()"
        yield from (f"c.{name} = {value!r}" for name, value in settings.items())
        yield f"c.Spawner.cmd = {_MODULE}"
        homes = str(self.top / "homes")
        if self.kind == "local":
            yield "c.JupyterHub.spawner_class = 'tests.hub.spawners.RealUserSpawner'"
            yield f"c.RealUserSpawner.homes = {homes!r}"
        else:
            yield "c.JupyterHub.spawner_class = 'simple'"
            yield f"c.SimpleLocalProcessSpawner.home_dir_template = {homes + '/{username}'!r}"

    # -- what is asked of it --------------------------------------------------------------------

    def api(self, method: str, path: str, body: Any = None, *, token: str | None = None) -> Answer:
        """Call its API, as an administrator unless a token says otherwise."""
        return call(method, f"{self.url}/hub/api/{path}", body, token=token or self.token)

    def new_token(self, user: str, **more: Any) -> tuple[str, str]:
        """Make a token of a user; return it and its id. ``scopes`` and so on as the Hub's API."""
        answer = self.api("POST", f"users/{self.names[user]}/tokens", more)
        assert answer.status == 201, answer
        return answer.json["token"], answer.json["id"]

    def token_of(self, user: str) -> str:
        """Return a token with all that a user may."""
        if user not in self._tokens:
            self._tokens[user] = self.new_token(user)[0]
        return self._tokens[user]

    def revoke(self, user: str, token_id: str) -> None:
        """Revoke a token of a user."""
        answer = self.api("DELETE", f"users/{self.names[user]}/tokens/{token_id}")
        assert answer.status == 204, answer

    def ask_for(self, user: str, server: str = "", options: Any = None) -> Answer:
        """Ask for a server without waiting for it."""
        path = f"users/{self.names[user]}/" + (f"servers/{server}" if server else "server")
        return self.api("POST", path, options or {})

    def spawn(self, user: str, server: str = "", options: Any = None) -> Server:
        """Start a server of a user, or find the one that runs."""
        made = Server(self, user, server)
        if made.state() is None:
            answer = self.ask_for(user, server, options)
            assert answer.status in (201, 202), (answer, self.said())

        def ready() -> bool:
            found = made.state()
            assert found is not None, self.said()
            return bool(found["ready"])

        until(ready, f"a server of {user}")
        return made


class Server:
    """A single-user server: its REST API, through the proxy, as its own user or another."""

    def __init__(self, hub: Hub, user: str, name: str = "") -> None:
        self.hub, self.user, self.name = hub, user, name
        self.url = f"{hub.url}/user/{hub.names[user]}/" + (f"{name}/" if name else "")

    def state(self) -> dict[str, Any] | None:
        """Return what the Hub knows of it; ``None`` when there is none."""
        answer = self.hub.api("GET", f"users/{self.hub.names[self.user]}?include_stopped_servers")
        found = answer.json["servers"].get(self.name)
        return found if found is not None and not found.get("stopped") else None

    @property
    def pid(self) -> int:
        """Its process, as the Hub started it."""
        answer = self.hub.api("GET", f"users/{self.hub.names[self.user]}?include_stopped_servers")
        return int(answer.json["servers"][self.name]["state"]["pid"])

    def stop(self) -> None:
        """Have the Hub end it, and wait until that is so."""
        path = f"users/{self.hub.names[self.user]}/"
        path += f"servers/{self.name}" if self.name else "server"
        answer = self.hub.api("DELETE", path)
        assert answer.status in (202, 204), answer
        until(lambda: self.state() is None, f"the end of {self.url}")

    def call(self, method: str, path: str, body: Any = None, *, by: str | None = None) -> Answer:
        """Call the Jupyter server, as its own user or as another."""
        token = self.hub.token_of(by or self.user)
        return call(method, self.url + path, body, token=token)

    def gpu(self, method: str, path: str, body: Any = None, *, by: str | None = None) -> Answer:
        """Call our REST API through it."""
        return self.call(method, f"genv-jupyter/v1/{path}", body, by=by)

    def start_kernel(self, name: str = "python3") -> str:
        """Start a kernel, and return its id when its environment is known."""
        answer = self.call("POST", "api/kernels", {"name": name})
        assert answer.status == 201, answer
        kernel = str(answer.json["id"])
        self.run(kernel, "pass")
        until(
            lambda: self.gpu("GET", f"environments/{kernel}").status == 200,
            f"the environment of {kernel}",
        )
        return kernel

    def run(self, kernel: str, code: str) -> str:
        """Run a cell; return all that it says: text, results and errors."""
        with ThreadPoolExecutor(1) as pool:  # a thread has no event loop that could be in the way
            return pool.submit(lambda: asyncio.run(self._run(kernel, code))).result(PATIENCE * 2)

    async def _run(self, kernel: str, code: str) -> str:
        address = f"ws{self.url.removeprefix('http')}api/kernels/{kernel}/channels"
        headers = {"Authorization": f"token {self.hub.token_of(self.user)}"}
        channels = await websocket_connect(HTTPRequest(address, headers=headers))
        message = uuid.uuid4().hex
        header = {"msg_id": message, "msg_type": "execute_request", "username": "", "version": "5"}
        await channels.write_message(
            json.dumps(
                {
                    "header": {**header, "session": message, "date": ""},
                    "parent_header": {},
                    "metadata": {},
                    "content": {"code": code, "silent": False, "allow_stdin": False},
                    "channel": "shell",
                    "buffers": [],
                }
            )
        )
        said, replied, idle = "", False, False
        while not (replied and idle):
            text = await channels.read_message()
            assert text is not None, "the kernel's channels were closed"
            found = json.loads(text)
            if found["parent_header"].get("msg_id") != message:
                continue
            kind, content = found["msg_type"], found["content"]
            replied = replied or kind == "execute_reply"
            idle = idle or (kind == "status" and content["execution_state"] == "idle")
            said += _said(kind, content)
        channels.close()
        while await channels.read_message() is not None:
            pass  # until it is closed
        return _COLORS.sub("", said)


def _said(kind: str, content: Mapping[str, Any]) -> str:
    if kind == "stream":
        return str(content["text"])
    if kind in ("execute_result", "display_data"):
        return str(content["data"].get("text/plain", "")) + "\n"
    if kind == "error":
        return "\n".join([*content["traceback"], f"{content['ename']}: {content['evalue']}", ""])
    return ""


def need_hub() -> None:
    """Skip where no Hub can be started."""
    if not PROXY.exists():
        pytest.skip("NOT TESTED: JupyterHub; `npm ci` installs configurable-http-proxy")
