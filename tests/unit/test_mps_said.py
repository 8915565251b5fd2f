"""What a user's own MPS daemon says is anybody's text: it reaches no command, and stops nobody."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from genv_jupyter.broker import leaving
from genv_jupyter.isolation import processes
from genv_jupyter.isolation.mps import Daemon, Daemons, Post
from genv_jupyter.isolation.mps_control import MOST_PIDS, ControlDaemon, MpsError
from genv_jupyter.isolation.mps_runner import MOST_SAID, Runner
from genv_jupyter.rootd import helper, wire
from genv_jupyter.rootd.client import Client, NotObeyed
from genv_jupyter.rootd.powers import HelperPowers

GPU = "GPU-1111111a-0000-4000-8000-000000000001"
NONSENSE = [
    "12345678",
    "1 12345678",
    "4194305",
    "0",
    "1 -2",
    "1 ²",
    "1 ١",
    "1 " + "9" * 5000,
    "1 2; quit",
    "7 " * (MOST_PIDS + 1),
]


class Says(Runner):
    """A runner whose daemon answers each command as a user has it."""

    def __init__(self, uid: int, answers: dict[str, str]) -> None:
        super().__init__(Path("/nowhere"), GPU, "none", uid)
        self.answers = answers
        self.asked: list[str] = []

    def ask(self, command: str, seconds: float = 0.0) -> tuple[int, str]:
        self.asked.append(command)
        return 0, self.answers.get(command, "")

    def start(self) -> None:
        """It runs."""

    def pid(self) -> int | None:
        return os.getpid()


def control(uid: int, **answers: str) -> ControlDaemon:
    return ControlDaemon(Path("/nowhere"), GPU, "none", uid, Says(uid, answers))


@pytest.mark.parametrize("said", NONSENSE, ids=lambda it: it[:12])
def test_what_is_no_list_of_pids_is_none(said: str) -> None:
    daemon = control(1000, get_server_list=said)
    with pytest.raises(MpsError, match="no pids"):
        daemon.clients()
    assert isinstance(daemon.runner, Says) and daemon.runner.asked == ["get_server_list"]


def test_a_list_is_one_and_a_sentence_says_that_there_are_none() -> None:
    assert control(1000, get_server_list="41 4194304").servers() == (41, 4194304)
    for said in ("", "No servers", "² servers", "Server 41 is not found"):
        assert control(1000, get_server_list=said).servers() == ()


@pytest.fixture
def two() -> Daemons:
    """Daemons of two users on one device, of which the first says what is no list."""
    daemons = Daemons(Path("/nowhere"), lambda: {Post(GPU, 1): 2**30, Post(GPU, 2): 2**30})
    me = os.getpid()
    for uid, said in ((1, "1 " + "9" * 5000), (2, "41")):
        made = control(uid, get_server_list=said, **{"get_client_list 41": str(me)})
        known = Daemon(control=made, pid=me, start=processes.start_of(me), ceiling=1)
        known.asked_at = daemons.steady()
        daemons._daemons[Post(GPU, uid)] = known
    daemons.control = lambda post: daemons._daemons[post].control  # type: ignore[method-assign]
    return daemons


def asked(daemons: Daemons, uid: int) -> list[str]:
    runner = daemons.control(Post(GPU, uid)).runner
    assert isinstance(runner, Says)
    return runner.asked


def test_a_process_leaves_the_other_daemons_of_a_device_all_the_same(two: Daemons) -> None:
    core: Any = SimpleNamespace(mps=SimpleNamespace(daemons=two))
    leaving.leave_one(core, (GPU,), os.getpid())
    assert asked(two, 1) == ["get_server_list"]
    assert asked(two, 2)[-1] == f"terminate_client 41 {os.getpid()}"


def test_a_round_goes_on_to_the_next(two: Daemons) -> None:
    two.round()
    for uid in (1, 2):
        assert "set_default_device_pinned_mem_limit 0 1024M" in asked(two, uid)


# -- and the root helper goes on -------------------------------------------------------------------


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """A client of a helper in this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parents, line = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    rules = helper.Rules(tmp_path, None, 1000, 999)
    ended = threading.Thread(target=helper.Helper(theirs, rules).serve)
    ended.start()
    with theirs, parents, ours:
        socket.send_fds(parents, [b"helper"], [ours.fileno()])
        made = Client(line)
        assert made.wait(30)
        yield made
        ours.shutdown(socket.SHUT_RDWR)
        ended.join(30)
    assert not ended.is_alive()


def test_what_is_no_question_is_not_sent(client: Client) -> None:
    """The helper would end at it, for everybody."""
    with pytest.raises(NotObeyed, match="is no question"):
        client.ask(wire.MpsSay, uid=1000, device=GPU, command="get_client_list 12345678")
    assert client.ask(wire.Hello)["lowest_uid"] == 1000, "it serves on"
    here = msgspec.convert(client.ask(wire.Hello), wire.Here)
    powers = HelperPowers(client, here)
    powers.order(2**23, 1, 9, uid=1000)
    assert powers.send(2**23, 1, 9, uid=1000) is False
    assert client.ask(wire.Hello)["lowest_uid"] == 1000, "it serves on"


@pytest.mark.parametrize("byte", [b"\x01", b"\xff", b'"', b"x"])
def test_the_longest_thing_that_is_said_fits_into_an_answer(byte: bytes) -> None:
    said = (byte * (MOST_SAID - 1)).decode(errors="replace")
    answer = wire.Answer(id=2**53, value=(0, said))
    assert len(msgspec.json.encode(answer)) <= wire.MOST_ANSWERED
