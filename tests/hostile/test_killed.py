"""kill -9 of the daemon under load: 64 clients of four users go on by themselves, and lose nothing.

Every client is a process that attaches and gives back, over and over, and remembers what it was
answered. Where the daemon died over a call, what is there afterwards must be the state before the
call or that after it.
"""

from __future__ import annotations

import mmap
import os
import pickle
import random
import sqlite3
import time
import traceback
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from genv_jupyter.api.client import Client
from genv_jupyter.errors import BrokerDown, NoCapacity
from genv_jupyter.model import Environment, NewEnvironment, Request
from tests.integration.daemons import Daemon, User, serving

CLIENTS_OF_ONE = 16
KILLS = 5
PAUSES = (0.5, 2.0)
"""Seconds between a start and the next kill."""
GIB = 2**30
USABLE = 24 * GIB
LAST = GIB // 4
RUN, FINISH, LEAVE = 0, 1, 2
Held = dict[str, int]
"""Bytes that are held, by device."""


class Moment(NamedTuple):
    """What a client certainly held from a moment (monotonic seconds) on."""

    at: float
    held: Held


class Told(NamedTuple):
    """What a client has to tell in the end."""

    environment: str
    moments: list[Moment]
    refused: int
    broken: int
    mistakes: list[str]


class Player:
    """One client, in a process of its own."""

    def __init__(self, number: int) -> None:
        self.choice = random.Random(number)
        self.client = Client(start=False, timeout=30)
        self.moments: list[Moment] = []
        self.refused = self.broken = 0
        self.mistakes: list[str] = []
        self.held: Held = {}
        self.mine = ""

    def play(self, flag: mmap.mmap) -> Told:
        """Attach and give back until it is told to finish; hold something then."""
        self.mine = self.patiently().id
        while flag[0] == RUN:
            self.step(self.choice.choice((GIB, 2 * GIB, 3 * GIB, 0)))
        while sum(self.held.values()) != LAST:  # all of them have room for that
            self.step(LAST)
        return Told(self.mine, self.moments, self.refused, self.broken, self.mistakes)

    def patiently(self) -> Environment:
        while True:
            try:
                return self.client.create(NewEnvironment(kind="command", pid=os.getpid()))
            except BrokerDown:
                time.sleep(0.02)

    def step(self, memory: int) -> None:
        """Ask for so much, or give everything back; what was held before may go from now on."""
        self.note({})
        try:
            if memory:
                request = Request(memory=memory)
                after = self.client.attach(self.mine, request, cuda="not_initialized")
            else:
                after = self.client.detach(self.mine, cuda="not_initialized")
        except NoCapacity:
            self.refused += 1
            self.note(self.held)
        except BrokerDown:
            self.broken += 1
            self.look(memory)
        else:
            self.held = held_by(after)
            self.check(sum(self.held.values()) == memory, f"answered {self.held} for {memory}")
            self.note(self.held)

    def look(self, memory: int) -> None:
        """See what has become of a call that was not answered."""
        while True:
            try:
                found = held_by(self.client.environment(self.mine))
                break
            except BrokerDown:
                time.sleep(0.02)
        as_before, as_asked = found == self.held, sum(found.values()) == memory
        self.check(as_before or as_asked, f"{found} after {self.held} and a call for {memory}")
        self.held = found
        self.note(self.held)

    def note(self, held: Held) -> None:
        self.moments.append(Moment(time.monotonic(), dict(held)))

    def check(self, well: bool, said: str) -> None:
        if not well:
            self.mistakes.append(said)


def held_by(environment: Environment) -> Held:
    """Return what is granted; what drains may go at any time."""
    return {it.device: it.memory for it in environment.grants if it.state == "granted"}


class Child:
    """A player that has become a user."""

    def __init__(self, user: User, number: int, flag: mmap.mmap) -> None:
        read, write = os.pipe()
        self.user = user
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(read)
                os.setgroups(user.groups)
                os.setresgid(user.gid, user.gid, user.gid)
                os.setresuid(user.uid, user.uid, user.uid)
                told = Player(number).play(flag)
                with os.fdopen(write, "wb") as file:
                    pickle.dump(told, file)
                while flag[0] != LEAVE:  # an environment ends with its process
                    time.sleep(0.05)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        os.close(write)
        self.file = os.fdopen(read, "rb")

    def told(self) -> Told:
        with self.file:
            found = pickle.load(self.file)
        assert isinstance(found, Told)
        return found


@pytest.fixture
def daemon(users: dict[str, User]) -> Iterator[Daemon]:
    line = "c.PolicySettings.memory_headroom = 0"
    with pytest.MonkeyPatch.context() as patch, serving(patch, line) as made:
        yield made


def check_ledger(daemon: Daemon) -> None:
    """Hold the ledger's own counters against its grants, and both against the devices."""
    (path,) = daemon.state.rglob("ledger.sqlite")
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as ledger:
        sums = ledger.execute(
            "SELECT device, SUM(MAX(memory, counted_memory)) FROM grants GROUP BY device"
        )
        for device, total in sums:
            assert total <= USABLE, f"{device} is given away {total / USABLE:.2f} times"
    ledger.close()


def most_at_once(told: list[Told]) -> dict[str, int]:
    """Return the most that was certainly held at one moment, by device."""
    changes: list[tuple[float, int, str, int]] = []
    for one in told:
        before: Held = {}
        for moment in one.moments:
            for device in before.keys() | moment.held.keys():
                change = moment.held.get(device, 0) - before.get(device, 0)
                # At one moment what is given back comes first: the clock has no finer steps.
                changes.append((moment.at, change > 0, device, change))
            before = moment.held
    now: dict[str, int] = defaultdict(int)
    most: dict[str, int] = defaultdict(int)
    for _, _, device, change in sorted(changes):
        now[device] += change
        most[device] = max(most[device], now[device])
    return dict(most)


def test_nothing_that_was_answered_is_lost(
    daemon: Daemon, users: dict[str, User], capsys: pytest.CaptureFixture[str]
) -> None:
    flag = mmap.mmap(-1, 1)
    choice = random.Random(7)
    children = [
        Child(user, number, flag) for number, user in enumerate([*users.values()] * CLIENTS_OF_ONE)
    ]
    try:
        for _ in range(KILLS):
            time.sleep(choice.uniform(*PAUSES))
            daemon.kill()
            check_ledger(daemon)
            daemon.start()
        time.sleep(PAUSES[0])
        flag[0] = FINISH
        told = [child.told() for child in children]
        daemon.kill()
        check_ledger(daemon)
        daemon.start()
        found = {it.id: held_by(it) for it in Client(start=False).environments()}
    finally:
        flag[0] = LEAVE
        for child in children:
            os.waitpid(child.pid, 0)
    assert [mistake for one in told for mistake in one.mistakes] == []
    assert {one.environment: one.moments[-1].held for one in told} == found
    most = most_at_once(told)
    assert all(held <= USABLE for held in most.values()), most
    calls = sum(len(one.moments) // 2 for one in told)
    refused, broken = sum(one.refused for one in told), sum(one.broken for one in told)
    with capsys.disabled():
        print(f"\n{calls} calls of {len(told)} clients, {refused} refused, {broken} broken off")
    assert len(told) == 64 and broken >= KILLS and refused
    assert all(one.broken for one in told), "each has met a daemon that was not there"
    assert max(most.values()) > USABLE * 0.25, "there was nothing to over-commit"
    assert "Traceback" not in daemon.log.read_text()
