"""The directory of the Hub's socket is root's: whoever can rename it chooses what is mounted."""

from __future__ import annotations

import os
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from genv_jupyter.api import rendezvous
from genv_jupyter.hub.upstream import believed
from genv_jupyter.isolation import processes
from tests.hub.door import Caller, connected
from tests.integration.daemons import User, as_user, make_users, serving
from tests.integration.helped import HelpedDaemon

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="NOT TESTED: only root has a root helper")
HUB = "c.HubAccess.api_url = 'http://127.0.0.1:9/hub/api'"  # nobody is there


class WithHub(HelpedDaemon):
    """A daemon for which root listens for users of a Hub."""

    def command(self) -> list[str]:
        self.hub_socket = self.top / "hub" / "hub.sock"
        return [*super().command(), "--hub-socket", str(self.hub_socket)]


@pytest.fixture(scope="module")
def users() -> Iterator[dict[str, User]]:
    yield from make_users()


@pytest.fixture(scope="module")
def daemon(users: dict[str, User]) -> Iterator[WithHub]:
    with (
        pytest.MonkeyPatch.context() as patch,
        serving(patch, HUB, kind=WithHub, broker=users["adm"]) as made,
    ):
        yield made


def test_the_broker_serves_what_root_has_opened(daemon: WithHub, users: dict[str, User]) -> None:
    path, broker = daemon.hub_socket, users["adm"]
    assert as_user(users["bob"], lambda: Caller(path, None)("GET", "health").status) == 401
    with connected(path) as sock:
        uid = processes.peer(sock)[1]
    assert rendezvous._believed(str(path), uid) and believed(str(path), uid)
    assert processes.uid_of(daemon.broker) == broker.uid


def test_its_directory_is_out_of_the_broker_s_hands(
    daemon: WithHub, users: dict[str, User]
) -> None:
    place = daemon.hub_socket.parent
    for path in (place, place.parent):
        found = path.stat()
        assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (0, 0o755)

    def try_to_swap() -> list[str]:
        said = []
        for attempt in (
            lambda: place.rename(place.with_name("away")),
            lambda: daemon.hub_socket.unlink(),
            lambda: (place / "other").touch(),
        ):
            try:
                attempt()
            except PermissionError:
                continue
            said.append("done")
        return said

    assert as_user(users["adm"], try_to_swap) == []


def test_it_listens_again_after_a_crash_and_there_is_one_alone(daemon: WithHub) -> None:
    second = subprocess.run(daemon.command(), capture_output=True, text=True, check=False)
    assert second.returncode == 1 and "another one listens" in second.stderr
    assert Caller(daemon.hub_socket, None)("GET", "health").status == 401
    daemon.kill()
    daemon.start()
    assert Caller(daemon.hub_socket, None)("GET", "health").status == 401


@pytest.mark.parametrize(
    ("within", "said"), [("run/hub", "run is not root's alone"), (None, "Nobody has opened")]
)
def test_a_directory_of_the_broker_s_is_refused(
    users: dict[str, User], within: str | None, said: str
) -> None:
    with tempfile.TemporaryDirectory(prefix="genv-jupyter-hub-") as name:
        Path(name).chmod(0o755)
        daemon = HelpedDaemon(Path(name, "host"), broker=users["adm"])
        daemon.configure(HUB)
        more = [] if within is None else ["--hub-socket", str(daemon.top / within / "hub.sock")]
        done = subprocess.run(
            [*daemon.command(), *more],
            env=os.environ | {"GENV_JUPYTER_SIMULATE": "1x24GiB"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1
        assert said in done.stderr and "Traceback" not in done.stderr
