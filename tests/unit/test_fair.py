"""The thread of the verbs: everybody in turn, everybody answered."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from functools import partial

import pytest

from genv_jupyter.broker.fair import MOST, FairPool
from tests.unit.gates import Gate


@pytest.fixture
def pool() -> Iterator[FairPool]:
    made = FairPool()
    yield made
    made.shutdown()


async def test_one_call_of_each_caller_in_turn(pool: FairPool) -> None:
    gate, order = Gate(), list[str]()
    first = pool.run(gate, "ann")
    await gate.reached()
    rest = [pool.run(partial(order.append, f"ann {n}"), "ann") for n in range(3 * MOST)]
    rest += [pool.run(partial(order.append, who), who) for who in ("bob", "eve")]
    gate.open.set()
    await asyncio.gather(first, *rest)
    assert order[:4] == ["ann 0", "bob", "eve", "ann 1"]
    assert order[4:] == [f"ann {number}" for number in range(2, 3 * MOST)]


async def test_everybody_is_answered(pool: FairPool) -> None:
    async def caller(who: int) -> None:
        for number in range(100):
            assert await pool.run(partial(divmod, number, 7), str(who)) == divmod(number, 7)

    await asyncio.gather(*(caller(who) for who in range(3 * MOST)))


async def test_answer_waits_for_no_long_call_after_it(pool: FairPool) -> None:
    gate, behind = Gate(), Gate()
    first = pool.run(gate)
    await gate.reached()
    quick, slow = pool.run(lambda: "quick", "ann"), pool.run(behind, "bob")
    gate.open.set()
    await behind.reached()  # taken together with what is answered now
    assert await first == "through"
    assert await quick == "quick"
    assert not slow.done()
    behind.open.set()
    assert await slow == "through"


async def test_errors_reach_who_called(pool: FairPool) -> None:
    with pytest.raises(ZeroDivisionError):
        await pool.run(lambda: 1 // 0)
    assert await pool.run(lambda: "well") == "well"


async def test_who_has_left_is_not_served(pool: FairPool) -> None:
    gate, served = Gate(), list[str]()
    first = pool.run(gate)
    await gate.reached()
    left, stays = (pool.run(partial(served.append, who)) for who in ("left", "stays"))
    left.cancel()
    gate.open.set()
    await asyncio.gather(first, stays)
    with contextlib.suppress(asyncio.CancelledError):
        await left
    assert served == ["stays"]


async def test_what_waits_is_served_before_the_end() -> None:
    pool, gate, served = FairPool(), Gate(), list[str]()
    pool.run(gate)
    await gate.reached()
    waiting = pool.run(lambda: served.append("served"))
    gate.open.set()
    await asyncio.to_thread(pool.shutdown)
    await waiting
    assert served == ["served"]
    with pytest.raises(RuntimeError, match="leaving"):
        pool.run(lambda: None)
