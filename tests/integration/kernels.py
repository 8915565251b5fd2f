"""Real ipykernels for the tests of `%gpu`, with or without somebody who plays their server."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from jupyter_client.manager import KernelManager

from genv_jupyter import __version__
from genv_jupyter.api.client import Client
from genv_jupyter.events import Want
from genv_jupyter.model import Environment, KernelReport, ServerReport
from tests.fakedriver.driver import FakeDriver

STARTUP = Path(__file__).parents[2] / "jupyter-config/ipython/startup/50-genv-jupyter.py"
TIMEOUT = 60


class Ran(NamedTuple):
    """What came of one cell."""

    status: str
    stdout: str
    stderr: str
    text: str
    html: str
    error: str
    traceback: list[str]

    @property
    def ok(self) -> bool:
        return self.status == "ok"


class Kernel:
    """An ipykernel that loads the startup file as an installed wheel has it.

    Parameters
    ----------
    directory
        A directory of the test's own.
    environ
        Variables besides those of this process; ``None`` unsets one.
    """

    def __init__(self, directory: Path, environ: Mapping[str, str | None] | None = None) -> None:
        startup = directory / "ipython" / "profile_default" / "startup"
        startup.mkdir(parents=True, exist_ok=True)
        shutil.copy(STARTUP, startup)
        self.environ = {**os.environ, "IPYTHONDIR": str(directory / "ipython")}
        self.update(environ or {})
        self.manager = KernelManager(kernel_name="python3")

    def update(self, environ: Mapping[str, str | None]) -> None:
        for name, value in environ.items():
            self.environ.pop(name, None)
            if value is not None:
                self.environ[name] = value

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        self.manager.start_kernel(env=dict(self.environ))
        self.connect()

    def connect(self) -> None:
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=TIMEOUT)

    def stop(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)

    @property
    def pid(self) -> int:
        pid = getattr(self.manager.provisioner, "pid", None)
        assert isinstance(pid, int)
        return pid

    def begin(self, code: str) -> str:
        """Send a cell and do not wait for it."""
        message: str = self.client.execute(code)
        return message

    def run(self, code: str) -> Ran:
        """Run a cell and return what came of it."""
        return self.finish(self.begin(code))

    def finish(self, sent: str) -> Ran:
        streams = {"stdout": "", "stderr": ""}
        text = html = ""
        while True:
            message = self.client.get_iopub_msg(timeout=TIMEOUT)
            if message["parent_header"].get("msg_id") != sent:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                streams[content["name"]] += content["text"]
            elif kind in ("execute_result", "display_data"):
                text += content["data"].get("text/plain", "")
                html += content["data"].get("text/html", "")
            elif kind == "status" and content["execution_state"] == "idle":
                break
        while True:
            reply = self.client.get_shell_msg(timeout=TIMEOUT)
            if reply["parent_header"].get("msg_id") == sent:
                break
        content = reply["content"]
        return Ran(
            content["status"],
            streams["stdout"],
            streams["stderr"],
            text,
            html,
            content.get("evalue", ""),
            content.get("traceback", []),
        )

    def value(self, expression: str) -> Any:
        """Return the value of an expression there."""
        from ast import literal_eval

        ran = self.run(expression)
        assert ran.ok, ran
        return literal_eval(ran.text)


class Server:
    """Plays the part of a Jupyter server towards the broker: this process is the server.

    ``driver`` is the fake driver below, where there is one.
    """

    driver: FakeDriver

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.id = str(uuid.uuid4())
        self.client = Client()
        self.client.register_server(self.id, ServerReport(pid=os.getpid(), version=__version__))
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self.client.end_server(self.id)
        self.client.close()

    def kernel(self, name: str, *, wrapped: bool = False, **variables: str | None) -> ServedKernel:
        return self._stack.enter_context(ServedKernel(self, name, variables, wrapped))


class ServedKernel(Kernel):
    """A kernel whose birth, restarts and end are told to the broker, as the provisioner does."""

    def __init__(
        self, server: Server, name: str, variables: Mapping[str, str | None], wrapped: bool
    ) -> None:
        self.server = server
        self.name = name
        self.id = str(uuid.uuid4())
        self.launch = 0
        self.variables = variables
        super().__init__(server.directory / name)
        self.manager.connection_file = str(server.directory / f"kernel-{self.id}.json")
        spec = self.manager.kernel_spec
        if wrapped and spec is not None:
            command = shlex.join([sys.executable, *spec.argv[1:]])
            spec.argv = ["sh", "-c", f"{command}; true"]

    def start(self) -> None:
        environment = self._starting()
        self.manager.start_kernel(env=dict(self.environ))
        self._running()
        assert environment.id == self.id
        self.connect()

    def restart(self) -> None:
        """Replace the process, as a server does."""
        self._report(phase="restarting")
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True, restart=True)
        self._starting()
        self.manager.start_kernel(env=dict(self.environ))
        self._running()
        self.connect()

    def stop(self) -> None:
        super().stop()
        self.server.client.end_kernel(self.server.id, self.id)

    def environment(self) -> Environment:
        return self.server.client.environment(self.id)

    def _starting(self) -> Environment:
        self.launch += 1
        environment = self._report(
            phase="starting", path=f"{self.name}.ipynb", unattached="hide", launch=self.launch
        )
        self.update({"GENV_JUPYTER_UNATTACHED": None, "GENV_JUPYTER_ENVIRONMENT": self.id})
        if environment.grants:
            self.update(environment.environ or {})
        else:
            self.update({"CUDA_VISIBLE_DEVICES": None, "GENV_JUPYTER_UNATTACHED": "hide"})
        self.update(self.variables)
        return environment

    def _running(self) -> None:
        self._report(phase="running", pid=self.pid, launch=self.launch)

    def _report(self, **facts: Any) -> Environment:
        return self.server.client.report_kernel(self.server.id, self.id, KernelReport(**facts))


def next_want(server: Server, action: str) -> Want:
    """Wait for what the broker wants of a server."""
    stream = server.client.events(server=server.id)
    try:
        for event in stream:
            for want in event.wants:
                if want.action == action:
                    return want
    finally:
        stream.close()
    raise AssertionError("The stream of events has ended.")
