"""What waits to be written: nothing is lost, nobody waits, and the end comes last."""

from __future__ import annotations

import threading

from genv_jupyter.ledger.backlog import Backlog


def nothing() -> None:
    """Gather no more than is there."""


def test_items_come_in_order_and_no_more_than_wanted() -> None:
    backlog = Backlog[int](10)
    assert all(backlog.put(number) for number in range(5))
    assert backlog.take(3, nothing) == [0, 1, 2]
    assert backlog.take(3, nothing) == [3, 4]


def test_what_comes_while_gathering_is_taken_too() -> None:
    backlog = Backlog[int](10)
    backlog.put(1)
    assert backlog.take(5, lambda: backlog.put(2)) == [1, 2]


def test_one_too_many_is_refused() -> None:
    backlog = Backlog[int](2)
    assert [backlog.put(number) for number in range(3)] == [True, True, False]
    backlog.take(1, nothing)
    assert backlog.put(3)


def test_the_end_comes_after_what_waits_and_can_be_taken_back() -> None:
    backlog = Backlog[int](10)
    backlog.put(1)
    backlog.end()
    assert backlog.take(5, nothing) == [1]
    assert backlog.take(5, nothing) is None
    assert backlog.take(5, nothing) is None
    backlog.begin()
    backlog.put(2)
    assert backlog.take(5, nothing) == [2]


def test_many_threads_lose_nothing() -> None:
    backlog = Backlog[tuple[int, int]](100_000)
    taken: list[tuple[int, int]] = []

    def write() -> None:
        while (batch := backlog.take(7, nothing)) is not None:
            taken.extend(batch)
            backlog.done()

    def add(who: int) -> None:
        for number in range(2000):
            assert backlog.put((who, number))

    writer = threading.Thread(target=write)
    adding = [threading.Thread(target=add, args=(who,)) for who in range(4)]
    for thread in (writer, *adding):
        thread.start()
    for thread in adding:
        thread.join()
    backlog.join()
    assert sorted(taken) == [(who, number) for who in range(4) for number in range(2000)]
    for who in range(4):
        assert [number for one, number in taken if one == who] == list(range(2000))
    backlog.end()
    writer.join()


def test_joining_waits_until_what_was_taken_is_written() -> None:
    backlog = Backlog[int](10)
    backlog.put(1)
    backlog.take(1, nothing)
    joined = threading.Event()

    def wait() -> None:
        backlog.join()
        joined.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert not joined.wait(0.05)
    backlog.done()
    waiting.join()
    assert joined.is_set()
