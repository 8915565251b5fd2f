"""Fixtures of every suite: a clean environment, and a broker that ends with its test."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import socket
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from genv_jupyter.api import rendezvous
from genv_jupyter.isolation import processes

pytest_plugins = ("pytest_jupyter.jupyter_server",)

# Whatever the developer's shell says about GPUs, tests start from nothing, and neither read nor
# write what Jupyter and IPython keep in the home directory. At import, so that fixtures of wider
# scope and the processes they start see it too.
_OURS = re.compile(r"(GENV|CUDA)_.*|NVIDIA_VISIBLE_DEVICES|JUPYTER_DEFAULT_PROVISIONER_NAME|JPY_.*")
for _name in [name for name in os.environ if _OURS.fullmatch(name)]:
    del os.environ[_name]
_jupyter = tempfile.TemporaryDirectory(prefix="genv-jupyter-tests-")
for _name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
    os.environ[_name] = str(Path(_jupyter.name, _name.lower()))

# A shell that starts the tests in the background has them ignore it, and their programs would too.
signal.signal(signal.SIGINT, signal.default_int_handler)

SIMULATE = "2x24GiB"
TEARDOWN_SECONDS = 120


def pytest_unconfigure() -> None:
    _jupyter.cleanup()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Bound a teardown: pytest-timeout stops its clock when a test fails, and what a failed test
    leaves half done (a ZeroMQ context with an open socket) can hold its teardown for ever.
    """

    def late(*_: object) -> None:
        pytest.fail(f"The teardown of {item.nodeid} took more than {TEARDOWN_SECONDS} s.")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(TEARDOWN_SECONDS)
    try:
        return (yield)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def broker_home(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A broker of this test alone, started by whoever needs it first, ended afterwards.

    Sets ``GENV_JUPYTER_HOME`` and ``GENV_JUPYTER_SIMULATE`` (``@pytest.mark.simulate("1x80GiB")``
    chooses other devices) for this process and all that it starts.
    """
    marker = request.node.get_closest_marker("simulate")
    home = tmp_path / "gpu"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("GENV_JUPYTER_HOME", str(home))
    monkeypatch.setenv("GENV_JUPYTER_SIMULATE", marker.args[0] if marker else SIMULATE)
    known = {rendezvous.address()}
    yield home
    # A test may have chosen other devices, or a driver, on its way: those brokers are its own too.
    known |= {rendezvous.address(), rendezvous.address(str(home), "")}
    for where in known:
        end_broker(where)


@pytest.fixture(scope="session", autouse=True)
def no_broker_is_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A broker outlives whoever started it, so one that a test forgot is easily missed."""
    yield
    ours = str(tmp_path_factory.getbasetemp())
    left = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile, or is another user's
            if b"genv_jupyter.broker" not in (process / "cmdline").read_bytes():
                continue
            environ = dict(
                entry.split("=", 1)
                for entry in (process / "environ").read_text(errors="replace").split("\0")
                if "=" in entry
            )
            if environ.get("GENV_JUPYTER_HOME", "").startswith(ours):
                left.append(f"{process.name}, of {environ.get('PYTEST_CURRENT_TEST')}")
                end(int(process.name))
    assert left == [], "these brokers were still there, and were ended now"


def end_broker(where: str, timeout: float = 10.0) -> None:
    """End the broker that listens at ``where``, if one does: that process and no other."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(timeout)
        try:
            sock.connect(where)
        except OSError:
            return
        pid, uid, _ = processes.peer(sock)
    if pid <= 0 or uid != os.getuid():
        return
    end(pid, timeout)


def end(pid: int, timeout: float = 10.0) -> None:
    """End a process, politely first; it fails the test to need more than that."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):  # it ended in this very moment
                signal.pidfd_send_signal(process, number)
            if select.select([process], [], [], timeout)[0]:
                break
        with contextlib.suppress(ChildProcessError):  # somebody else's child: theirs to reap
            os.waitpid(pid, os.WNOHANG)
    finally:
        os.close(process)
    if number == signal.SIGKILL:
        pytest.fail(f"Process {pid} did not end within {timeout:.0f} s of SIGTERM.")
