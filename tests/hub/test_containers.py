"""Callers in containers: their root is nobody here, and their pids are found from outside."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from tests.hub.beside import NAMES, running
from tests.hub.door import Caller
from tests.hub.hubs import Answer, Hub
from tests.integration.daemons import Daemon, User
from tests.integration.namespaces import born, first_in, host_pid, need_namespaces

ROOT = User("root", 0, 0, (0,))
JOVYAN = User("jovyan", 1000, 100, (100,))
NEW = {"kind": "command"}


@pytest.fixture(scope="module", params=["root", "unprivileged"])
def both(users: dict[str, User], request: pytest.FixtureRequest) -> Iterator[tuple[Hub, Daemon]]:
    """A Hub, and a daemon that may trace everybody or, as the systemd unit has it, nobody."""
    need_namespaces()
    user = None if request.param == "root" else users["cat"]
    with running("simple", {name: name for name in NAMES}, user=user) as made:
        yield made


@pytest.mark.parametrize("user", [ROOT, JOVYAN], ids=["root", "jovyan"])
def test_a_container_attaches_with_its_token_and_its_own_pids(
    both: tuple[Hub, Daemon], user: User
) -> None:
    hub, daemon = both
    ann, nobody = Caller(daemon.hub_socket, hub.token_of("ann")), Caller(daemon.hub_socket, None)

    def story() -> tuple[int, Answer, Answer, Answer, Answer]:
        body = NEW | {"pid": os.getpid()}
        made = ann("POST", "environments", body)
        path = f"environments/{made.json['id']}"
        attached = ann("PUT", path, {"fraction": 0.5})
        return (
            host_pid(),
            nobody("POST", "environments", body),
            made,
            attached,
            ann("DELETE", path),
        )

    pid, refused, made, attached, released = born(user, story, pid=4711)
    assert (refused.status, refused.json["code"]) == (401, "unauthenticated")
    assert (made.json["user"], made.json["pid"]) == ("ann", pid)
    assert (attached.status, attached.json["state"]) == (200, "granted")
    assert released.status == 200


def test_root_of_a_container_names_another_user_s_process_in_it(
    both: tuple[Hub, Daemon],
) -> None:
    hub, daemon = both
    ann = Caller(daemon.hub_socket, hub.token_of("ann"))

    def story() -> tuple[int, int | None]:
        child = subprocess.Popen(["sleep", "600"], user=JOVYAN.uid, group=JOVYAN.gid)
        made = ann("POST", "environments", NEW | {"pid": child.pid})
        child.kill()
        child.wait()
        return child.pid, made.json.get("pid")

    inside, found = born(ROOT, story)
    assert found is not None and found != inside


def test_processes_of_the_host_and_of_other_containers_are_out_of_reach(
    both: tuple[Hub, Daemon],
) -> None:
    hub, daemon = both
    ann = Caller(daemon.hub_socket, hub.token_of("ann"))
    victim = subprocess.Popen(["sleep", "600"])  # of root, as the container's caller is
    inside = "echo 7776 >/proc/sys/kernel/ns_last_pid; sleep 600 & echo $!; wait"
    sandbox = subprocess.Popen(
        ["unshare", "--pid", "--fork", "--mount-proc", "sh", "-c", inside],
        stdout=subprocess.PIPE,
    )
    assert sandbox.stdout is not None
    other = int(sandbox.stdout.readline())
    try:
        for pid in (victim.pid, daemon.pid, other):
            answer = born(ROOT, lambda pid=pid: ann("POST", "environments", NEW | {"pid": pid}))
            assert (answer.status, answer.json["code"]) == (404, "unknown_process")
        # A pid that the other container has, and this one too: it is this one's that is meant.
        pid, answer = born(
            ROOT,
            lambda: (host_pid(), ann("POST", "environments", NEW | {"pid": os.getpid()})),
            pid=other,
        )
        assert answer.json["pid"] == pid
    finally:
        victim.kill()
        victim.wait()
        os.kill(first_in(sandbox) or 0, signal.SIGKILL)
        with sandbox:
            sandbox.kill()
