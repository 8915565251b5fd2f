"""Jupyter as a process of its own, as people start it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from genv_jupyter.api.client import Client
from genv_jupyter.errors import GpuError

PATIENCE = 60.0
TOKEN = "of-this-test"


class Jupyter:
    """A Jupyter server process."""

    def __init__(self, directory: Path, *options: str) -> None:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/"
        self.log = directory / "jupyter.log"
        command = [
            *(sys.executable, "-m", "jupyter", "server", "--allow-root", "--no-browser"),
            *("--ip=127.0.0.1", f"--port={port}", f"--IdentityProvider.token={TOKEN}"),
            f"--ServerApp.root_dir={directory}",
            "--ServerApp.jpserver_extensions={'genv_jupyter': True}",
            *options,
        ]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def call(self, method: str, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"token {TOKEN}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read() or b"null")

    def wait(self) -> None:
        def up() -> bool:
            with contextlib.suppress(OSError):
                self.call("GET", "api")
                return True
            return False

        until(up, f"a server: {self.log.read_text()}")

    def start_kernel(self, **body: str) -> str:
        return str(self.call("POST", "api/kernels", body)["id"])

    def stop(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)
        self.process.wait(PATIENCE)


def until(look: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.05)
    raise AssertionError(f"never: {what}")


StartJupyter = Callable[..., Jupyter]


@pytest.fixture
def jupyter(broker_home: Path, tmp_path: Path) -> Iterator[StartJupyter]:
    started: list[Jupyter] = []

    def start(*options: str) -> Jupyter:
        running = Jupyter(tmp_path, *options)
        started.append(running)
        running.wait()
        return running

    yield start
    for running in started:
        if running.process.poll() is None:
            running.stop()


def environ_of(client: Client, kernel: str) -> dict[str, str]:
    pid = until(lambda: known(client, kernel), "the kernel is known").pid
    pairs = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return dict(pair.decode().split("=", 1) for pair in pairs if pair)


def known(client: Client, kernel: str) -> Any:
    try:
        environment = client.environment(kernel)
    except GpuError:
        return None
    return environment if environment.pid is not None else None


@pytest.fixture
def client() -> Iterator[Client]:
    client = Client(start=False)
    yield client
    client.close()


def test_a_server_starts_its_broker_and_is_every_kernels_provisioner(
    jupyter: StartJupyter, client: Client
) -> None:
    server = jupyter("--GenvJupyterApp.auto_attach=0.5")
    until(lambda: reachable(client), "a broker that the server started")
    kernel = server.start_kernel(name="python3")
    env = environ_of(client, kernel)
    assert env["CUDA_VISIBLE_DEVICES"].startswith("GPU-")
    server.stop()
    assert client.environments() == []  # said in good order, not found out


def reachable(client: Client) -> bool:
    try:
        return bool(client.health().pid)
    except GpuError:
        return False


def test_what_a_killed_server_left_is_freed(jupyter: StartJupyter, client: Client) -> None:
    server = jupyter("--GenvJupyterApp.auto_attach=1")
    until(lambda: reachable(client), "a broker")
    kernel = server.start_kernel(name="python3")
    until(lambda: known(client, kernel), "the kernel is known")
    server.stop(signal.SIGKILL)
    until(lambda: not client.environments(), "the kernel's environment ends")
    assert all(not device.grants for device in client.devices())


def test_without_a_driver_jupyter_and_its_kernels_start(
    jupyter: StartJupyter, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GENV_JUPYTER_SIMULATE")
    server = jupyter()
    until(lambda: reachable(client), "a broker")
    health = server.call("GET", "genv-jupyter/v1/health")
    if health["driver"] is None:
        pytest.skip("this host has a working NVIDIA driver")
    assert server.call("GET", "genv-jupyter/v1/devices") == []
    kernel = server.start_kernel(name="python3")
    assert environ_of(client, kernel)["GENV_JUPYTER_UNATTACHED"] == "hide"
    said = [line for line in server.log.read_text().splitlines() if health["driver"] in line]
    assert len(said) == 1, server.log.read_text()


@pytest.mark.parametrize(
    "options",
    [
        ["--KernelProvisionerFactory.default_provisioner_name=local-provisioner"],
        ["--GenvJupyterApp.enabled=False"],
    ],
)
def test_who_does_not_want_it_has_kernels_as_without_it(
    jupyter: StartJupyter, options: list[str]
) -> None:
    server = jupyter(*options)
    server.start_kernel(name="python3")
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text()
    (kernel,) = [
        pid for pid in children.split() if b"ipykernel" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    environ = Path(f"/proc/{kernel}/environ").read_bytes()
    assert b"GENV_JUPYTER_ENVIRONMENT" not in environ
    assert b"GENV_JUPYTER_UNATTACHED" not in environ


def test_a_request_that_cannot_be_read_is_refused_at_the_start(
    broker_home: Path, tmp_path: Path
) -> None:
    server = Jupyter(tmp_path, "--GenvJupyterApp.auto_attach=1.5")
    try:
        server.wait()
        # Jupyter itself starts, without the extension, and says why.
        assert "1.5 GPUs cannot be given" in server.log.read_text()
    finally:
        if server.process.poll() is None:
            server.stop()


def test_a_server_that_hangs_up_leaves_no_thread_behind(
    jupyter: StartJupyter, client: Client
) -> None:
    server = jupyter()
    until(lambda: reachable(client), "a broker")
    pid = client.health().pid
    os.kill(pid, signal.SIGSTOP)
    try:
        server.stop()  # a broker that hangs does not keep the server from leaving
        assert server.process.returncode == 0
    finally:
        os.kill(pid, signal.SIGCONT)
