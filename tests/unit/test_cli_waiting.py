"""Waiting for room: tried again at each change, said once, and past a broker that is replaced."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Any, cast

import pytest

from genv_jupyter.api.client import Client
from genv_jupyter.cli.waiting import WaitOver, until_room
from genv_jupyter.errors import BrokerDown, NoCapacity, OutOfRange
from genv_jupyter.model import Environment
from tests.unit.test_magic_views import environment


class Stream:
    def __init__(self) -> None:
        self.lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def read_line(self) -> bytes:
        return self.lines.get()

    def close(self) -> None:
        self.lines.put(b"")


class Told:
    """Plays the broker: each attempt meets the next answer, and a change follows each refusal."""

    def __init__(self, *answers: Exception | str) -> None:
        self.answers = list(answers)
        self.streams: list[Stream] = []
        self.said: list[str] = []

    def events(self) -> Stream:
        self.streams.append(Stream())
        self.streams[-1].lines.put(b"snapshot")
        return self.streams[-1]

    def attempt(self) -> Environment:
        answer = self.answers.pop(0)
        for stream in self.streams[-1:]:
            stream.lines.put(b"" if answer == "lost" else b"change")
        if isinstance(answer, Exception):
            raise answer
        if answer == "lost":
            raise refusal("the same")
        return environment(name=answer)

    def wait(self, limit: float | None = None) -> Environment:
        attempt: Callable[[], Environment] = self.attempt
        return until_room(cast(Client, self), attempt, limit, self.said.append)


def refusal(who: str) -> NoCapacity:
    holder: dict[str, Any] = {"device": "GPU-1", "environment": who, "memory": 1}
    return NoCapacity(f"{who} holds all.", hint="Ask.", details={"holders": [holder]})


def test_what_is_free_is_not_waited_for() -> None:
    told = Told("got")
    assert told.wait().name == "got" and told.said == [] and told.streams == []


def test_holders_are_named_again_only_when_they_are_others() -> None:
    told = Told(*map(refusal, ("anna", "anna", "ben", "ben", "anna")), "got")
    assert told.wait().name == "got"
    assert [line.split(". ")[1] for line in told.said] == [
        "anna holds all.",
        "ben holds all.",
        "anna holds all.",
    ]


def test_broker_that_is_replaced_does_not_end_the_wait() -> None:
    told = Told(refusal("anna"), BrokerDown("It is being replaced."), refusal("anna"), "got")
    assert told.wait().name == "got"
    with pytest.raises(BrokerDown):
        Told(BrokerDown("There is none.")).wait()


def test_lost_stream_is_opened_again() -> None:
    told = Told(refusal("anna"), "lost", "got")
    assert told.wait().name == "got" and len(told.streams) >= 2


def test_what_will_never_do_ends_the_wait() -> None:
    told = Told(refusal("anna"), OutOfRange("A device has gone for good."))
    with pytest.raises(OutOfRange):
        told.wait()


def test_wait_has_a_limit() -> None:
    told = Told(*[refusal("anna")] * 1000)
    with pytest.raises(WaitOver, match=r"The wait of 0 s is over. anna holds all. Ask\."):
        told.wait(0.01)
