"""A real Jupyter server in its own process, with JupyterLab and Notebook 7 and our extension."""

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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import nbformat
from nbformat.v4 import new_code_cell, new_notebook

from genv_jupyter.api import rendezvous
from tests.conftest import end_broker
from tests.integration.daemons import User, unprivileged

ROOT = Path(__file__).parents[2]
TOKEN = "a-token-of-this-test"
PATIENCE = 60.0
_SETTINGS = {
    "@jupyterlab/apputils-extension/notification.jupyterlab-settings": {"fetchNews": "false"}
}


class Jupyter:
    """A server with a directory of notebooks, and a broker of its own.

    Parameters
    ----------
    directory
        Where everything of it lives.
    environ
        Variables besides the tests' own: simulated devices, or a driver.
    arguments
        More of its command line.
    user
        Whose it is, where it is not the tests' own: one of a host whose daemon is used.
    """

    def __init__(
        self,
        directory: Path,
        environ: Mapping[str, str],
        *arguments: str,
        user: User | None = None,
    ) -> None:
        self.notebooks = directory / "notebooks"
        self.home = directory / "gpu"
        self.log = directory / "jupyter.log"
        self.arguments = arguments
        self.user = user
        for made in (self.notebooks, self.home):
            made.mkdir(mode=0o700)
        # The front end of this tree, also where another one is installed.
        extensions = directory / "path" / "labextensions"
        extensions.mkdir(parents=True)
        (extensions / "genv-jupyter").symlink_to(ROOT / "genv_jupyter" / "labextension")
        for name, settings in _SETTINGS.items():
            path = directory / "config" / "lab" / "user-settings" / name
            path.parent.mkdir(parents=True)
            path.write_text(json.dumps(settings))
        self.environ = {
            **os.environ,
            "GENV_JUPYTER_HOME": str(self.home),
            "JUPYTER_PATH": str(directory / "path"),
            "JUPYTER_CONFIG_DIR": str(directory / "config"),
            "JUPYTER_DATA_DIR": str(directory / "data"),
            "JUPYTER_RUNTIME_DIR": str(directory / "runtime"),
            "IPYTHONDIR": str(directory / "ipython"),
            **environ,
        }
        if user is not None:
            self.environ |= {"HOME": str(directory), "USER": user.name}
            del self.environ["GENV_JUPYTER_HOME"]
        self.port = _free_port()
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        finally:
            if self.user is None:
                home, simulate = (
                    self.environ.get(f"GENV_JUPYTER_{name}", "") for name in ("HOME", "SIMULATE")
                )
                end_broker(rendezvous.address(home, simulate))

    def start(self) -> None:
        """Start it, and return when it answers."""
        if self.user is not None:
            for path in (self.home.parent, *self.home.parent.rglob("*")):
                os.chown(path, self.user.uid, self.user.gid, follow_symlinks=False)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(() if self.user is None else unprivileged(self.user)),
                    *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"),
                    *(f"--port={self.port}", "--ServerApp.port_retries=0"),
                    f"--IdentityProvider.token={TOKEN}",
                    f"--ServerApp.root_dir={self.notebooks}",
                    "--LabApp.expose_app_in_browser=True",
                    *self.arguments,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environ,
                cwd=self.notebooks,
            )
        deadline = time.monotonic() + PATIENCE
        while True:
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                self.call("GET", "api/status")
                return
            ended = self.process.poll() is not None
            assert not ended, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.1)

    def stop(self) -> None:
        """End it, and its kernels with it."""
        process, self.process = self.process, None
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"It did not end:\n{self.log.read_text()[-4000:]}") from None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def page(self, notebook: str, *, app: str = "lab/tree") -> str:
        """Return the address of a notebook in JupyterLab, or in Notebook 7 (``notebooks``)."""
        reset = "&reset" if app == "lab/tree" else ""
        return f"{self.url}/{app}/{notebook}?token={TOKEN}{reset}"

    def notebook(self, name: str, *cells: str, kernel: str = "python3") -> str:
        """Write a notebook with these cells; return its name."""
        book = new_notebook(
            cells=[new_code_cell(cell) for cell in cells],
            metadata={"kernelspec": {"name": kernel, "display_name": kernel}},
        )
        nbformat.write(book, self.notebooks / name)
        return name

    def kernelspec(self, name: str, *argv: str, language: str = "python") -> str:
        """Install a kernelspec; return its name."""
        spec = self.home.parent / "path" / "kernels" / name / "kernel.json"
        spec.parent.mkdir(parents=True)
        spec.write_text(json.dumps({"argv": argv, "display_name": name, "language": language}))
        return name

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Call the Jupyter server; return what it answers."""
        request = urllib.request.Request(
            f"{self.url}/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"token {TOKEN}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def gpu(self, method: str, path: str, body: Any = None) -> Any:
        """Call our REST API through the Jupyter server."""
        return self.call(method, f"genv-jupyter/v1/{path}", body)

    def environment(self, notebook: str) -> Any:
        """Return the environment of a notebook's kernel, which must be there."""
        [session] = [
            session for session in self.call("GET", "api/sessions") if session["path"] == notebook
        ]
        return self.gpu("GET", f"environments/{session['kernel']['id']}")

    def open_kernel(self, notebook: str) -> str:
        """Start a kernel for a notebook as a browser does; return its id."""
        session = self.call(
            "POST",
            "api/sessions",
            {
                "path": notebook,
                "name": notebook,
                "type": "notebook",
                "kernel": {"name": "python3"},
            },
        )
        return str(session["kernel"]["id"])

    def until(self, true: Callable[[], bool]) -> None:
        """Wait until something is true."""
        deadline = time.monotonic() + PATIENCE
        while not true():
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)

    def close_kernels(self) -> None:
        """Shut all kernels down."""
        for session in self.call("GET", "api/sessions"):
            self.call("DELETE", f"api/sessions/{session['id']}")


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
