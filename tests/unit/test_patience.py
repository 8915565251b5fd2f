"""The threads of verbs that may wait: a few for each caller, and never all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial

import pytest

from genv_jupyter.broker.host import HostProcess
from genv_jupyter.broker.patience import PatientPool
from genv_jupyter.broker.process import PATIENT, Process
from tests.unit.gates import Gate


@pytest.fixture
def pool() -> Iterator[PatientPool]:
    made = PatientPool(3, 2)
    yield made
    made.shutdown()


async def test_who_sends_many_calls_that_wait_keeps_nobody_waiting(pool: PatientPool) -> None:
    gates, order = [Gate(), Gate()], list[int]()
    first = [pool.run(gate, "mallory") for gate in gates]
    for gate in gates:
        await gate.reached()
    more = [pool.run(partial(order.append, number), "mallory") for number in range(50)]
    assert await asyncio.wait_for(pool.run(lambda: "well", "ann"), 30) == "well"
    assert order == []
    gates[0].open.set()
    await asyncio.gather(*more)
    assert order == list(range(50))
    gates[1].open.set()
    assert await asyncio.gather(*first) == ["through", "through"]


async def test_a_call_whose_caller_has_left_counts_until_it_ends(pool: PatientPool) -> None:
    gates, served = [Gate(), Gate()], list[str]()
    running = [pool.run(gate, "mallory") for gate in gates]
    for gate in gates:
        await gate.reached()
    left, stays = (pool.run(partial(served.append, who), "mallory") for who in ("left", "stays"))
    running[0].cancel()
    left.cancel()
    await asyncio.sleep(0)
    await pool.run(lambda: None, "ann")
    assert served == [], "a thread is a thread, whoever waits for it"
    gates[0].open.set()
    await stays
    assert served == ["stays"]
    gates[1].open.set()
    await running[1]


async def test_errors_reach_who_called_and_free_the_place(pool: PatientPool) -> None:
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            await pool.run(lambda: 1 // 0, "ann")
    assert await pool.run(lambda: "well", "ann") == "well"


async def test_what_waits_is_served_before_the_end() -> None:
    pool, gate, served = PatientPool(1, 1), Gate(), list[str]()
    pool.run(gate, "ann")
    waiting = pool.run(lambda: served.append("served"), "ann")
    gate.open.set()
    await asyncio.to_thread(pool.shutdown)
    await waiting
    assert served == ["served"]


def test_a_host_s_users_share_the_threads_and_the_only_user_of_a_broker_has_them_all() -> None:
    assert HostProcess.of_one * 4 <= PATIENT
    assert Process.of_one == PATIENT
