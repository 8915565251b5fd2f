"""The host daemon under systemd: its socket is handed over, and it says how it is."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from genv_jupyter.api.client import Client
from tests.hub.door import Caller

UNITS = Path(__file__).parents[2] / "examples" / "systemd"
HAND_OVER = """
import fcntl, os, sys
held = [fcntl.fcntl(int(it), fcntl.F_DUPFD, 100) for it in sys.argv[1].split(",")]
for number, descriptor in enumerate(held, 3):
    os.dup2(descriptor, number)
os.environ["LISTEN_PID"] = str(os.getpid())
os.execv(sys.argv[2], sys.argv[2:])
"""


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="genv-jupyter-systemd-") as name:
        yield Path(name)


def test_units_are_what_systemd_understands(place: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("NOT TESTED: the units; systemd-analyze is not there")
    for unit in UNITS.glob("genv-jupyter*"):
        text = unit.read_text().replace("/opt/genv-jupyter/bin/jupyter-gpu", "/bin/true")
        (place / unit.name).write_text(text)
    (place / "genv-jupyter.service.d").mkdir()
    shutil.copy(UNITS / "hub.conf", place / "genv-jupyter.service.d")
    checked = subprocess.run(
        [program, "verify", *(str(it) for it in place.glob("genv-jupyter*") if it.is_file())],
        capture_output=True,
        text=True,
        check=False,
    )
    ours = [line for line in checked.stderr.splitlines() if "genv-jupyter" in line]
    assert (checked.returncode, ours) == (0, [])


def test_sockets_are_taken_over_and_systemd_is_told(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = place / "broker.sock"
    monkeypatch.setenv("GENV_JUPYTER_HOST_SOCKET", str(path))
    for name in ("GENV_JUPYTER_HOME", "GENV_JUPYTER_SIMULATE"):
        monkeypatch.delenv(name, raising=False)
    (place / "etc").mkdir(mode=0o755)
    settings = place / "etc" / "jupyter_genv_config.py"
    settings.write_text("c.HubAccess.api_url = 'http://127.0.0.1:9/hub/api'\n")  # nobody is there
    settings.chmod(0o644)
    hub = place / "hub.sock"
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard,
        socket.socket(socket.AF_UNIX) as listening,
        socket.socket(socket.AF_UNIX) as for_hub,
    ):
        heard.bind(str(place / "notify"))
        heard.settimeout(20)
        listening.bind(str(path))
        listening.listen()
        for_hub.bind(str(hub))
        for_hub.listen()
        environ = os.environ | {
            "GENV_JUPYTER_SIMULATE": "1x24GiB",
            "NOTIFY_SOCKET": str(place / "notify"),
            "WATCHDOG_USEC": "60000000",
            "LISTEN_FDS": "2",
            "LISTEN_FDNAMES": "hub:genv-jupyter.socket",
        }
        command = [sys.executable, "-m", "genv_jupyter.broker", "--host", "--socket", str(path)]
        command += ["--config", str(place / "etc"), "--state", str(place / "state")]
        handed = [for_hub.fileno(), listening.fileno()]
        process = subprocess.Popen(
            [sys.executable, "-c", HAND_OVER, ",".join(map(str, handed)), *command],
            env=environ,
            pass_fds=handed,
            stderr=subprocess.DEVNULL,
        )
        try:
            assert told(heard, "READY=1") == []
            assert Client(start=False).health().pid == process.pid
            assert Caller(hub, None)("GET", "health").status == 401
            assert Caller(hub, "a-token")("GET", "health").json["code"] == "unavailable"
            process.send_signal(signal.SIGHUP)
            assert "RELOADING=1" in told(heard, "READY=1")
            process.terminate()
            told(heard, "STOPPING=1")
            assert process.wait(30) == 0
            assert path.exists() and hub.exists(), "they are systemd's"
        finally:
            process.kill()
            process.wait()


def told(heard: socket.socket, until: str) -> list[str]:
    """Return what systemd is told until it hears something; it may hear of the watchdog before."""
    found: list[str] = []
    while True:
        lines = heard.recv(4096).decode().splitlines()
        if until in lines:
            return found
        found += [line for line in lines if line != "WATCHDOG=1"]


def test_a_socket_for_a_hub_that_nobody_has_named_is_refused(place: Path) -> None:
    (place / "etc").mkdir(mode=0o755)
    command = [sys.executable, "-m", "genv_jupyter.broker", "--host"]
    command += ["--socket", str(place / "run" / "broker.sock"), "--state", str(place / "state")]
    command += ["--config", str(place / "etc"), "--hub-socket", str(place / "run" / "hub.sock")]
    environ = os.environ | {"GENV_JUPYTER_SIMULATE": "1x24GiB"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Set HubAccess.api_url" in done.stderr and "Traceback" not in done.stderr
