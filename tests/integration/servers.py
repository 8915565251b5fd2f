"""A Jupyter server with the extension, its kernels, and what tests ask of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.session import Session
from tornado.httpclient import HTTPClientError

from genv_jupyter.api.client import Client
from genv_jupyter.model import Environment

PATIENCE = 30.0
CONFIG = {
    "ServerApp": {
        "jpserver_extensions": {"genv_jupyter": True},
        "allow_unauthenticated_access": False,
    }
}

VISIBLE = "__import__('os').environ.get('CUDA_VISIBLE_DEVICES')"


class Answer:
    """Status and body of a REST call, refused or not."""

    def __init__(self, status: int, body: bytes) -> None:
        self.status = status
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Server:
    """The server of a test: REST calls, kernels and cells."""

    def __init__(self, app: Any, fetch: Callable[..., Awaitable[Any]]) -> None:
        self.app = app
        self.fetch = fetch
        self.client = Client(start=False)

    @property
    def host(self) -> Any:
        return self.app.web_app.settings["genv_jupyter_host"]

    async def call(self, method: str, *parts: str, body: Any = None, **more: Any) -> Answer:
        """Call the server's REST API."""
        text = None if body is None else body if isinstance(body, bytes) else json.dumps(body)
        if text is None and method in ("POST", "PUT", "PATCH"):
            text = ""
        try:
            answer = await self.fetch(*parts, method=method, body=text, **more)
        except HTTPClientError as error:
            assert error.response is not None, error
            answer = error.response
        return Answer(answer.code, answer.body)

    async def gpu(self, method: str, path: str, body: Any = None, **params: str) -> Answer:
        """Call our part of it."""
        return await self.call(
            method, "genv-jupyter", "v1", *path.split("/"), body=body, params=params
        )

    async def start_kernel(self, name: str = "python3") -> str:
        answer = await self.call("POST", "api", "kernels", body={"name": name, "path": ""})
        assert answer.status == 201, answer.body
        kernel = str(answer.json["id"])

        async def idle() -> bool:
            # Said after each request, and missed where the server has not subscribed yet.
            await talk.run("")
            answer = await self.gpu("GET", f"environments/{kernel}")
            return answer.status == 200 and answer.json["kernel_state"] == "idle"

        async with self.talk(kernel) as talk:
            await eventually(idle, f"{kernel} is idle")
        return kernel

    async def open_notebook(
        self, path: str, name: str = "python3", kind: str = "notebook"
    ) -> tuple[str, str]:
        """Open a session; return its id and its kernel's."""
        body = {
            "path": path,
            "name": path.rsplit("/", 1)[-1],
            "type": kind,
            "kernel": {"name": name},
        }
        answer = await self.call("POST", "api", "sessions", body=body)
        assert answer.status == 201, answer.body
        return answer.json["id"], answer.json["kernel"]["id"]

    async def environment(self, kernel: str) -> dict[str, Any]:
        answer = await self.gpu("GET", f"environments/{kernel}")
        assert answer.status == 200, answer.body
        return dict(answer.json)

    async def known(self, kernel: str, **wanted: Any) -> dict[str, Any]:
        """Wait until the broker knows something of a kernel."""

        async def look() -> dict[str, Any] | None:
            answer = await self.gpu("GET", f"environments/{kernel}")
            if answer.status != 200:
                return None
            found = answer.json
            return found if all(found[key] == value for key, value in wanted.items()) else None

        return await eventually(look, f"{kernel} with {wanted}")

    def direct(self, kernel: str) -> Environment:
        """Ask the broker, past the server."""
        return self.client.environment(kernel)

    def manager(self, kernel: str) -> Any:
        return self.app.kernel_manager.get_kernel(kernel)

    @contextlib.asynccontextmanager
    async def talk(self, kernel: str) -> AsyncIterator[Talk]:
        """Connect to a kernel as a front end does."""
        manager = self.manager(kernel)
        client = manager.client(session=Session(key=manager.session.key))
        client.start_channels(stdin=False, hb=False)
        try:
            await client.wait_for_ready(timeout=PATIENCE)
            yield Talk(client)
        finally:
            client.stop_channels()

    async def evaluate(self, kernel: str, expression: str) -> str:
        """Return the text form of an expression's value in a kernel."""
        async with self.talk(kernel) as talk:
            return await talk.evaluate(expression)


class Talk:
    """A connection to a kernel."""

    def __init__(self, client: Any) -> None:
        self.client = client

    async def evaluate(self, expression: str) -> str:
        reply = await self.reply(self.client.execute("", user_expressions={"it": expression}))
        assert reply["status"] == "ok", reply
        value = reply["user_expressions"]["it"]
        assert value["status"] == "ok", value
        return str(value["data"]["text/plain"])

    async def run(self, code: str) -> dict[str, Any]:
        """Run a cell and return the content of its reply."""
        return await self.reply(self.client.execute(code))

    async def reply(self, message: str) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            with contextlib.suppress(queue.Empty):
                reply = await self.client.get_shell_msg(timeout=1)
                if reply["parent_header"].get("msg_id") == message:
                    return dict(reply["content"])
        raise AssertionError("the kernel did not answer")


async def eventually(
    look: Callable[[], Awaitable[Any]], what: str, seconds: float = PATIENCE
) -> Any:
    """Wait until something is so, and return it."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = await look()
        if found:
            return found
        await asyncio.sleep(0.05)
    raise AssertionError(f"never: {what}")


def environ_of(pid: int) -> dict[str, str]:
    """Return what a process was started with."""
    pairs = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return dict(pair.decode().split("=", 1) for pair in pairs if pair)


async def started_with(server: Server, kernel: str) -> dict[str, str]:
    return environ_of(server.manager(kernel).provisioner.pid)


async def attach(server: Server, kernel: str, request: Mapping[str, Any]) -> Any:
    """Attach over REST, and return the environment."""
    answer = await server.gpu("PUT", f"environments/{kernel}", request)
    assert answer.status == 200, answer.body
    return answer.json


async def another_process(server: Server, kernel: str, old: int) -> dict[str, Any]:
    """Wait for the restart of a kernel to be known."""

    async def look() -> dict[str, Any] | None:
        found = await server.environment(kernel)
        return found if found["pid"] not in (None, old) else None

    return dict(await eventually(look, "another process"))


@pytest.fixture
def jp_server_config() -> dict[str, Any]:
    return json.loads(json.dumps(CONFIG))  # type: ignore[no-any-return]


@pytest.fixture
def provisioner_factory() -> Iterator[None]:
    """The factory is a singleton that remembers the last server's default."""
    from jupyter_client.provisioning import KernelProvisionerFactory

    KernelProvisionerFactory.clear_instance()
    yield
    KernelProvisionerFactory.clear_instance()


@pytest.fixture
def server(
    broker_home: Any,
    provisioner_factory: None,
    jp_serverapp: Any,
    jp_fetch: Any,
    jp_asyncio_loop: Any,
) -> Iterator[Server]:
    """A running server; it leaves, with its kernels, before its broker does."""
    running = Server(jp_serverapp, jp_fetch)

    async def ready() -> bool:
        return (await running.gpu("GET", "health")).status == 200

    jp_asyncio_loop.run_until_complete(eventually(ready, "a broker"))
    yield running

    async def leave() -> None:
        await jp_serverapp.cleanup_extensions()
        await jp_serverapp.cleanup_kernels()

    jp_asyncio_loop.run_until_complete(leave())


AddKernelspec = Callable[..., str]


@pytest.fixture
def add_kernelspec(jp_environ: None, jp_data_dir: Path) -> AddKernelspec:
    """Install a kernelspec for this test."""

    def add(
        name: str,
        argv: Sequence[str],
        *,
        language: str = "python",
        env: Mapping[str, str] | None = None,
        config: Mapping[str, Any] | None = None,
        provisioner: str = "genv-provisioner",
    ) -> str:
        directory = jp_data_dir / "kernels" / name
        directory.mkdir(parents=True)
        spec: dict[str, Any] = {
            "argv": list(argv),
            "display_name": name,
            "language": language,
            "env": dict(env or {}),
        }
        if config is not None:
            spec["metadata"] = {
                "kernel_provisioner": {"provisioner_name": provisioner, "config": dict(config)}
            }
        (directory / "kernel.json").write_text(json.dumps(spec))
        return name

    return add


IPYKERNEL = (sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}")


@pytest.fixture(scope="session")
def foreign_python(pytestconfig: pytest.Config) -> str:
    """A Python environment of its own with an older ipykernel, without subshells and without us.

    Made once, and kept in pytest's cache.
    """
    cache = pytestconfig.cache
    assert cache is not None
    directory = cache.mkdir("foreign-environment")
    python = directory / "bin" / "python"
    done = directory / "done"
    if not done.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", directory], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "ipykernel<7"], check=True)
        done.touch()
    return str(python)
