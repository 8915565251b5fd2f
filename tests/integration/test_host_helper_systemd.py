"""The parent of broker and helper under systemd: what it is handed goes to whoever serves."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from genv_jupyter.api.client import Client
from genv_jupyter.isolation import processes
from tests.integration.daemons import User, make_users
from tests.integration.helped import UNIT, reaching
from tests.integration.test_host_systemd import HAND_OVER, told

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="NOT TESTED: only root has a root helper")


@pytest.fixture(scope="module")
def users() -> Iterator[dict[str, User]]:
    yield from make_users()


def test_the_broker_serves_the_sockets_and_says_how_it_is(
    users: dict[str, User], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GENV_JUPYTER_HOME", "GENV_JUPYTER_SIMULATE"):
        monkeypatch.delenv(name, raising=False)
    with (
        tempfile.TemporaryDirectory(prefix="genv-jupyter-systemd-") as name,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard,
        socket.socket(socket.AF_UNIX) as listening,
    ):
        place = Path(name)
        for directory in (place, place / "etc", place / "run", place / "stage"):
            directory.mkdir(exist_ok=True)
            directory.chmod(0o755)
        path = place / "run" / "broker.sock"
        monkeypatch.setenv("GENV_JUPYTER_HOST_SOCKET", str(path))
        heard.bind(str(place / "notify"))
        (place / "notify").chmod(0o666)
        heard.settimeout(30)
        listening.bind(str(path))
        path.chmod(0o666)
        listening.listen()
        environ = os.environ | {
            "GENV_JUPYTER_SIMULATE": "1x24GiB",
            "NOTIFY_SOCKET": str(place / "notify"),
            "WATCHDOG_USEC": "2000000",
            "LISTEN_FDS": "1",
        }
        command = [sys.executable, "-P", "-m", "genv_jupyter.broker", "--host"]
        command += ["--as", users["adm"].name, "--socket", str(path)]
        command += ["--config", str(place / "etc"), "--state", str(place / "state")]
        command += ["--mps-directory", str(place / "mps")]
        words = [sys.executable, "-c", HAND_OVER, str(listening.fileno())]
        process = subprocess.Popen(
            [*words, shutil.which("env") or "env", *reaching(place / "stage", command)],
            env=environ,
            pass_fds=[listening.fileno()],
            stderr=subprocess.DEVNULL,
        )
        try:
            assert told(heard, "READY=1") == []
            heard.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            broker = Client(start=False).health().pid
            found = processes.stat(broker)
            assert found is not None and found.parent == process.pid
            assert processes.uid_of(broker) == users["adm"].uid
            while True:  # what was under way before it was wanted to be known from whom
                said, about, _, _ = heard.recvmsg(4096, 64)
                teller = struct.unpack("3i", about[0][2])[0]
                if teller:
                    break
            assert said == b"WATCHDOG=1", "the watchdog is fed"
            assert teller == process.pid, "by the one that NotifyAccess=main believes"
            process.send_signal(signal.SIGHUP)
            assert "RELOADING=1" in told(heard, "READY=1")
            process.terminate()
            told(heard, "STOPPING=1")
            assert process.wait(30) == 0
            assert path.exists(), "it is systemd's"
        finally:
            process.kill()
            process.wait()


def test_the_unit_keeps_little_and_systemd_thinks_so(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("NOT TESTED: the sandbox of the unit; systemd-analyze is not there")
    asked = [program, "security", "--offline=true", "--no-pager", "--json=short", str(UNIT)]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    if done.returncode and "unrecognized option" in done.stderr:
        pytest.skip("NOT TESTED: this systemd-analyze knows no --offline")
    assert done.returncode == 0, done.stderr
    failed = {row["name"] for row in json.loads(done.stdout) if row["set"] is False}
    assert not failed & {
        "NoNewPrivileges=",
        "NotifyAccess=",
        "PrivateTmp=",
        "ProtectHome=",
        "ProtectKernelModules=",
        "RestrictSUIDSGID=",
        "CapabilityBoundingSet=~CAP_SYS_ADMIN",
        "CapabilityBoundingSet=~CAP_NET_ADMIN",
        "CapabilityBoundingSet=~CAP_SYS_MODULE",
        "CapabilityBoundingSet=~CAP_SYS_RAWIO",
        "SystemCallArchitectures=",
    }, failed


def test_what_users_work_through_outlives_the_unit() -> None:
    unit = dict(
        line.split("=", 1)
        for line in UNIT.read_text().splitlines()
        if "=" in line and not line.startswith("#")
    )
    assert unit["RuntimeDirectory"] == "genv-jupyter-mps"
    assert (unit["RuntimeDirectoryPreserve"], unit["RuntimeDirectoryMode"]) == ("yes", "0711")
    assert unit["NotifyAccess"] == "main", "users' programs run in it, too"
    assert "User" not in unit and "--as genv-jupyter" in unit["ExecStart"]
    assert "StateDirectory" not in unit, "systemd would give the ledger to root at each start"
