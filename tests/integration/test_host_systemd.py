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

UNITS = Path(__file__).parents[2] / "examples" / "systemd"
HAND_OVER = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
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
    for unit in UNITS.glob("genv-jupyter.*"):
        text = unit.read_text().replace("/opt/genv-jupyter/bin/jupyter-gpu", "/bin/true")
        (place / unit.name).write_text(text)
    checked = subprocess.run(
        [program, "verify", *map(str, place.glob("genv-jupyter.*"))],
        capture_output=True,
        text=True,
        check=False,
    )
    ours = [line for line in checked.stderr.splitlines() if "genv-jupyter" in line]
    assert (checked.returncode, ours) == (0, [])


def test_a_socket_is_taken_over_and_systemd_is_told(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = place / "broker.sock"
    monkeypatch.setenv("GENV_JUPYTER_HOST_SOCKET", str(path))
    for name in ("GENV_JUPYTER_HOME", "GENV_JUPYTER_SIMULATE"):
        monkeypatch.delenv(name, raising=False)
    (place / "etc").mkdir(mode=0o755)
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard,
        socket.socket(socket.AF_UNIX) as listening,
    ):
        heard.bind(str(place / "notify"))
        heard.settimeout(20)
        listening.bind(str(path))
        listening.listen()
        environ = os.environ | {
            "GENV_JUPYTER_SIMULATE": "1x24GiB",
            "NOTIFY_SOCKET": str(place / "notify"),
            "WATCHDOG_USEC": "60000000",
            "LISTEN_FDS": "1",
        }
        command = [sys.executable, "-m", "genv_jupyter.broker", "--host", "--socket", str(path)]
        command += ["--config", str(place / "etc"), "--state", str(place / "state")]
        process = subprocess.Popen(
            [sys.executable, "-c", HAND_OVER, str(listening.fileno()), *command],
            env=environ,
            pass_fds=[listening.fileno()],
            stderr=subprocess.DEVNULL,
        )
        try:
            assert told(heard, "READY=1") == []
            assert Client(start=False).health().pid == process.pid
            process.send_signal(signal.SIGHUP)
            assert "RELOADING=1" in told(heard, "READY=1")
            process.terminate()
            told(heard, "STOPPING=1")
            assert process.wait(30) == 0
            assert path.exists(), "the socket is systemd's"
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
