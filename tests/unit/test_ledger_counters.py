"""Counters under any sequence of writes: always the sums of the rows, never beyond capacity."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from genv_jupyter.ledger import Refused, Transaction
from genv_jupyter.ledger.rows import DeviceRow, GrantRow
from tests.unit.ledgers import (
    BACKENDS,
    COMPUTE,
    MEMORY,
    OWNERS,
    A,
    B,
    SqliteBackend,
    counters,
    environment,
    grant,
    sums,
)


class Machine(RuleBasedStateMachine):
    """Random writes against a plain model of what the database may allow."""

    backend: type[SqliteBackend] = SqliteBackend

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.ledger = self.backend(Path(self.directory.name) / "gpu").ledger()
        self.ledger.open()
        self.grants: dict[int, GrantRow] = {}
        self.capacity = dict.fromkeys((A, B), (MEMORY, COMPUTE))
        self.last = 0

    @initialize()
    def start(self) -> None:
        with self.ledger.transaction() as t:
            for uuid in (A, B):
                t.put_device(DeviceRow(uuid=uuid, memory_capacity=MEMORY, compute_capacity=COMPUTE))
            for number in range(1, 5):
                t.put_environment(environment(f"e{number}"))

    def teardown(self) -> None:
        self.ledger.close()
        self.directory.cleanup()

    counts = st.fixed_dictionaries(
        {
            "counted_memory": st.integers(0, 700) | st.sampled_from([-1, 0, MEMORY, MEMORY + 1]),
            "counted_compute": st.sampled_from([0, 0, 1, 2500, 5000, 5001, COMPUTE, COMPUTE + 1]),
            "counted_exclusive": st.booleans(),
        }
    )

    @rule(
        where=st.sampled_from([A, B]),
        whose=st.sampled_from(["e1", "e2", "e3", "e4"]),
        owner=st.sampled_from(OWNERS),
        counts=counts,
    )
    def add(self, where: str, whose: str, owner: str, counts: dict[str, object]) -> None:
        self.last += 1
        row = grant(self.last, whose, where, owner=owner, **counts)
        self.write({**self.grants, row.id: row}, lambda t: t.add_grant(row))

    @precondition(lambda self: self.grants)
    @rule(data=st.data(), counts=counts)
    def change(self, data: st.DataObject, counts: dict[str, object]) -> None:
        old = self.grants[data.draw(st.sampled_from(sorted(self.grants)))]
        new = msgspec.structs.replace(old, **counts)
        self.write({**self.grants, old.id: new}, lambda t: t.change_grant(old, new))

    @precondition(lambda self: self.grants)
    @rule(data=st.data(), fail=st.booleans())
    def drop(self, data: st.DataObject, fail: bool) -> None:
        row = self.grants[data.draw(st.sampled_from(sorted(self.grants)))]
        if fail:
            with pytest.raises(ZeroDivisionError), self.ledger.transaction() as t:
                t.drop_grant(row)
                raise ZeroDivisionError
        else:
            left = {id_: kept for id_, kept in self.grants.items() if kept is not row}
            self.write(left, lambda t: t.drop_grant(row))

    @rule(where=st.sampled_from([A, B]), memory=st.integers(0, 2 * MEMORY))
    def resize(self, where: str, memory: int) -> None:
        device = DeviceRow(uuid=where, memory_capacity=memory, compute_capacity=COMPUTE)
        with self.ledger.transaction() as t:
            t.put_device(device)
        granted = sum(row.counted_memory for row in self.grants.values() if row.device == where)
        self.capacity[where] = (max(memory, granted), COMPUTE)

    def write(self, after: dict[int, GrantRow], act: Callable[[Transaction], None]) -> None:
        """Write, and expect a refusal exactly if the outcome would break an invariant."""
        try:
            with self.ledger.transaction() as t:
                act(t)
        except Refused:
            assert not self.sound(after), "a sound write was refused"
        else:
            assert self.sound(after), "an unsound write was allowed"
            self.grants = after

    def sound(self, grants: dict[int, GrantRow]) -> bool:
        rows = grants.values()
        places = Counter((row.environment, row.device) for row in rows)
        if any(row.counted_memory < 0 for row in rows) or max(places.values(), default=0) > 1:
            return False
        for uuid, (memory, compute) in self.capacity.items():
            here = [row for row in rows if row.device == uuid]
            shares: Counter[str] = Counter()
            for row in here:
                shares[row.owner] += row.counted_compute
            if sum(row.counted_memory for row in here) > memory:
                return False
            if any(row.counted_exclusive for row in here) and len(here) > 1:
                return False
            if max(shares.values(), default=0) > compute:
                return False
        return True

    @invariant()
    def counters_are_the_sums(self) -> None:
        state = self.ledger.load()
        assert {row.id: row for row in state.grants} == self.grants
        assert counters(self.ledger) == sums(state)


@pytest.mark.parametrize("kind", BACKENDS)
def test_counters_are_the_sums_of_the_rows_after_any_sequence(kind: str) -> None:
    machine = type("Machine", (Machine,), {"backend": BACKENDS[kind]})
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=25, stateful_step_count=30, deadline=None, database=None),
    )
