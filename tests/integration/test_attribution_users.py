"""Whose a process is where a broker serves several users, with processes that run as them."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from traitlets.config import Config

from genv_jupyter.broker.config import BrokerConfig
from genv_jupyter.devices.source import ProcessReading
from genv_jupyter.isolation import processes
from genv_jupyter.isolation.environ import MARKER
from genv_jupyter.model import NewEnvironment, Principal
from tests.unit.brokers import GIB, HALF, Bench

ANN = Principal(realm="local", id="47110", name="ann")
BOB = Principal(realm="local", id="47111", name="bob")
pytestmark = pytest.mark.skipif(
    os.getuid() != 0, reason="NOT TESTED: processes of several users; starting them needs root"
)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Bench]:
    rules = {"outside": "act", "outside_grace": 0, "patience": 0}
    desk = Bench(tmp_path / "ledger.sqlite", config=BrokerConfig(Config({"Rules": rules})))
    desk.broker.core.kind = "host"
    desk.broker.rules.proof = Looked()
    yield desk
    desk.close()


class Looked:
    """What is looked up about a process is so, but for CUDA, which none of these has."""

    def __init__(self) -> None:
        from genv_jupyter.isolation import evidence

        self.uids, self.claims = evidence.uids, evidence.claims

    def runs_cuda(self, pid: int) -> bool:
        return True


def run(desk: Bench, uid: int, marker: str | None = None) -> int:
    """Start a process of a user, outside any family, that carries the name of an environment."""
    environ = {"PATH": os.environ["PATH"], **({MARKER: marker} if marker else {})}
    child = subprocess.Popen(["sleep", "600"], user=uid, env=environ, start_new_session=True)
    desk.children.append(child)
    while marker and processes.marker(child.pid) is None:
        pass  # on its way into the program
    return child.pid


def environment(desk: Bench, who: Principal) -> str:
    pid = run(desk, int(who.id))
    made = desk.broker.create(who, NewEnvironment(kind="command", pid=pid)).id
    desk.broker.attach(who, made, HALF, cuda="not_initialized", peer_pid=pid)
    return made


def uses(desk: Bench, *pids: int) -> None:
    desk.source.devices[0].processes = [ProcessReading(pid, GIB, "compute") for pid in pids]
    desk.tick(1)


def test_a_marker_counts_for_processes_of_the_owner_alone(host: Bench) -> None:
    mine = environment(host, ANN)
    own, forged, root = (run(host, uid, mine) for uid in (int(ANN.id), int(BOB.id), 0))
    uses(host, own, forged, root)
    usage = host.broker.core.usage[host.device(0)]
    assert {it: [p.pid for p in seen] for it, seen in usage.own.items()} == {mine: [own]}
    assert [it.pid for it in usage.outside] == [forged, root]


def test_nobody_hides_behind_the_environment_of_somebody_else(host: Bench) -> None:
    mine = environment(host, ANN)
    forged = run(host, int(BOB.id), mine)
    unknown = run(host, int(BOB.id), "11111111-2222-3333-4444-555555555555")
    uses(host, forged, unknown)
    host.broker.tick_rules()
    (made,) = (it for it in host.children if it.pid == forged)
    assert made.wait(10) == -signal.SIGINT
    assert processes.alive(unknown, None), "it may be that of another broker"
    assert [it.kind for it in host.broker.notices(ANN)] == ["contended"]


def test_leftover_of_a_user_is_known_by_its_marker_and_never_somebody_elses(host: Bench) -> None:
    mine = environment(host, ANN)
    own, forged, root = (run(host, uid, mine) for uid in (int(ANN.id), int(BOB.id), 0))
    row = host.broker.books.environments[mine]
    (command,) = (it for it in host.children if it.pid == row.pid)
    host.end(command)
    host.tick(1)
    uses(host, own, forged, root)
    assert mine not in host.broker.books.environments
    (left,) = host.broker.leftovers(ANN)
    assert left.pid == own
    assert host.broker.leftovers(BOB) == []
    host.broker.end_process(ANN, left.pid, left.start)
    (made,) = (it for it in host.children if it.pid == own)
    assert made.wait(10) == -signal.SIGTERM
    assert processes.alive(root, None) and processes.alive(forged, None)
