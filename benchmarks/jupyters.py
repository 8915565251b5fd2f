"""Jupyter servers for benchmarks: each a process of its own, with one extension and no other."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import psutil

TOKEN = "a-token-of-this-benchmark"
SECONDS = 60.0
EXTENSIONS = ("genv_jupyter", "jupyterlab_nvdashboard", "jupyterlab", "notebook")
"""Of these a server has the one that is measured."""


class Jupyter:
    """A running ``jupyter server``.

    Parameters
    ----------
    directory
        Where all of it lives; made.
    extension
        The one server extension that it has.
    environ
        Variables of its own.
    also
        More extensions.
    """

    def __init__(
        self,
        directory: Path,
        extension: str,
        environ: Mapping[str, str],
        *,
        also: Sequence[str] = (),
    ) -> None:
        self.directory = directory
        self.log = directory / "jupyter.log"
        directory.mkdir(parents=True, mode=0o700)
        (directory / "gpu").mkdir(mode=0o700)
        config = directory / "config"
        config.mkdir()
        chosen = {name: name == extension for name in EXTENSIONS} | dict.fromkeys(also, True)
        (config / "jupyter_server_config.json").write_text(
            json.dumps({"ServerApp": {"jpserver_extensions": chosen}})
        )
        self.environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("GENV_")},
            "GENV_JUPYTER_HOME": str(directory / "gpu"),
            "JUPYTER_CONFIG_DIR": str(config),
            "JUPYTER_DATA_DIR": str(directory / "data"),
            "JUPYTER_RUNTIME_DIR": str(directory / "runtime"),
            "IPYTHONDIR": str(directory / "ipython"),
            **environ,
        }
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            self.port = int(sock.getsockname()[1])
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root"]
        command += [f"--port={self.port}", "--ServerApp.port_retries=0", "--ip=127.0.0.1"]
        command += [f"--IdentityProvider.token={TOKEN}", f"--ServerApp.root_dir={self.directory}"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environ,
                cwd=self.directory,
            )
        deadline = time.monotonic() + SECONDS
        while True:
            with contextlib.suppress(OSError):
                self.call("GET", "api/status")
                return self
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Jupyter does not start:\n{self.log.read_text()[-4000:]}")
            time.sleep(0.1)

    def __exit__(self, *_: object) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    @property
    def pid(self) -> int:
        """The process id of the server."""
        assert self.process is not None
        return self.process.pid

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Call it; return what it answers."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"token {TOKEN}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def gpu(self, method: str, path: str, body: Any = None) -> Any:
        """Call our REST API."""
        return self.call(method, f"genv-jupyter/v1/{path}", body)

    def broker(self) -> int:
        """Return the process id of the broker; it is started if need be."""
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                return int(self.gpu("GET", "health")["pid"])
            except urllib.error.HTTPError as error:  # 503: it has not started yet
                if error.code != 503 or time.monotonic() > deadline:
                    raise
            time.sleep(0.2)


def family(pid: int) -> list[psutil.Process]:
    """Return a process and all that it has started and that live."""
    first = psutil.Process(pid)
    return [first, *first.children(recursive=True)]


def processor_seconds(*pids: int) -> float:
    """Return the processor time of processes and of all that they have started, ended or not."""
    spent = 0.0
    for process in (one for pid in pids for one in family(pid)):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            times = process.cpu_times()
            spent += times.user + times.system + times.children_user + times.children_system
    return spent


def own_memory(pid: int) -> int:
    """Return the bytes of memory that are a process's own."""
    return int(psutil.Process(pid).memory_full_info().uss)
