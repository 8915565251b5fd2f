"""What every live ledger must do, whatever the database behind it.

A further database joins by adding its backend to ``BACKENDS``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
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
from sqlalchemy import select

from genv_jupyter.ledger import LiveLedger, Refused, Transaction, schema
from genv_jupyter.ledger.rows import DeviceRow, EnvironmentRow, GrantRow, LiveState, ServerRow

A, B = "GPU-a", "GPU-b"
MEMORY, COMPUTE = 1000, 10_000
OWNERS = ("local:1000", "local:1001")


class SqliteBackend:
    """Makes ledgers in files of a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def ledger(self) -> LiveLedger:
        """Return a ledger on the one database of this backend, not yet open."""
        return LiveLedger(self.directory / "ledger.sqlite")

    def expression(self) -> str:
        """Return Python source that makes the same ledger in another process."""
        return f"LiveLedger(Path({str(self.directory / 'ledger.sqlite')!r}))"


BACKENDS = {"sqlite": SqliteBackend}


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> SqliteBackend:
    return BACKENDS[request.param](tmp_path / "gpu")


@pytest.fixture
def ledger(backend: SqliteBackend) -> Iterator[LiveLedger]:
    """Two devices and the environments e1 to e4, without grants."""
    made = backend.ledger()
    assert made.open() == []
    with made.transaction() as t:
        for uuid in (A, B):
            t.put_device(DeviceRow(uuid=uuid, memory_capacity=MEMORY, compute_capacity=COMPUTE))
        for number in range(1, 5):
            t.put_environment(environment(f"e{number}"))
    yield made
    made.close()


def environment(id_: str, **changes: object) -> EnvironmentRow:
    return msgspec.structs.replace(
        EnvironmentRow.nobody(OWNERS[0]), **{"id": id_, "created": 1.5, **changes}
    )


def grant(id_: int = 1, environment: str = "e1", device: str = A, **changes: object) -> GrantRow:
    plain = GrantRow(
        id=id_,
        environment=environment,
        device=device,
        owner=OWNERS[0],
        memory=100,
        compute=None,
        exclusive=False,
        counted_memory=100,
        counted_compute=0,
        counted_exclusive=False,
        state="granted",
        applied=None,
        since=2.25,
    )
    return msgspec.structs.replace(plain, **changes)


def counters(ledger: LiveLedger) -> tuple[dict[str, tuple[int, ...]], dict[tuple[str, str], int]]:
    """Return (memory, exclusive, shared) of each device, and compute of each (device, owner)."""
    assert ledger._engine is not None
    d, s = schema.devices.c, schema.shares.c
    with ledger._engine.begin() as connection:
        devices = connection.execute(
            select(d.uuid, d.memory_granted, d.exclusive_grants, d.shared_grants)
        ).all()
        shares = connection.execute(select(s.device, s.owner, s.compute_granted)).all()
    return {row[0]: tuple(row[1:]) for row in devices}, {
        (row[0], row[1]): row[2] for row in shares if row[2]
    }


def sums(
    state: LiveState,
) -> tuple[dict[str, tuple[int, ...]], dict[tuple[str, str], int]]:
    """Return what the counters must be."""
    devices = {}
    shares: Counter[tuple[str, str]] = Counter()
    for device in state.devices:
        here = [row for row in state.grants if row.device == device.uuid]
        exclusive = sum(row.counted_exclusive for row in here)
        memory = sum(row.counted_memory for row in here)
        devices[device.uuid] = (memory, exclusive, len(here) - exclusive)
    for row in state.grants:
        if row.counted_compute:
            shares[row.device, row.owner] += row.counted_compute
    return devices, dict(shares)


# -- rows ----------------------------------------------------------------------------------------


def test_every_row_comes_back_as_it_was_stored_after_reopening(
    backend: SqliteBackend, ledger: LiveLedger
) -> None:
    server = ServerRow(
        id="s1", owner=OWNERS[0], pid=2**40, start=2**50, version="1", pool="", name="Ö 日本"
    )
    full = EnvironmentRow(
        id="e1",
        owner=OWNERS[0],
        user="Zoë",
        kind="kernel",
        launch=3,
        name="a'b\"; DROP TABLE grants; --",
        path="né/b.ipynb",
        server="s1",
        previous="e0",
        request='{"fraction":0.5}',
        pid=17,
        start=2**62,
        pool="",
        unattached="hide",
        state="active",
        applied="live",
        cuda="initialized",
        deadline=1.0e9 + 1 / 3,
        reason="because",
        created=0.1,
        expires=1e10,
    )
    rows = [
        grant(1, memory=2**63 - 1, compute=2500, counted_compute=2500),
        grant(2, "e2", exclusive=True, device=B, counted_exclusive=True, applied="pending"),
    ]
    with ledger.transaction() as t:
        t.put_server(server)
        t.put_environment(full)
        for row in rows:
            t.add_grant(row)
    ledger.close()
    again = backend.ledger()
    assert again.open() == []
    state = again.load()
    again.close()
    assert state.servers == (server,)
    assert full in state.environments
    assert len(state.environments) == 4
    assert sorted(state.grants, key=lambda row: row.id) == rows
    assert all(type(row.exclusive) is bool for row in state.grants)
    assert DeviceRow(uuid=B, memory_capacity=MEMORY, compute_capacity=COMPUTE) in state.devices


def test_putting_again_replaces_and_dropping_forgets(ledger: LiveLedger) -> None:
    server = ServerRow(id="s", owner="o", pid=1, start=2, version="1", pool=None, name=None)
    with ledger.transaction() as t:
        t.put_server(server)
        t.put_server(msgspec.structs.replace(server, version="2"))
        t.put_environment(environment("e1", state="active"))
        t.drop_environment("e2")
    state = ledger.load()
    assert [row.version for row in state.servers] == ["2"]
    assert {row.id: row.state for row in state.environments} == {
        "e1": "active",
        "e3": "released",
        "e4": "released",
    }
    with ledger.transaction() as t:
        t.drop_server("s")
    assert ledger.load().servers == ()


def test_changing_a_grant_moves_the_counters_by_the_difference(ledger: LiveLedger) -> None:
    first = grant(compute=4000, counted_compute=4000)
    bigger = msgspec.structs.replace(
        first, environment="e2", counted_memory=700, counted_compute=9000
    )
    whole = msgspec.structs.replace(bigger, counted_compute=0, counted_exclusive=True)
    with ledger.transaction() as t:
        t.add_grant(first)
    for old, new in ((first, bigger), (bigger, whole), (whole, first)):
        with ledger.transaction() as t:
            t.change_grant(old, new)
        state = ledger.load()
        assert state.grants == (new,)
        assert counters(ledger) == sums(state)
    with ledger.transaction() as t:
        t.drop_grant(first)
    assert counters(ledger) == ({A: (0, 0, 0), B: (0, 0, 0)}, {})


def test_a_capacity_never_falls_below_what_is_granted(ledger: LiveLedger) -> None:
    small = DeviceRow(uuid=A, memory_capacity=50, compute_capacity=100)
    with ledger.transaction() as t:
        t.add_grant(grant(counted_memory=600, counted_compute=5000))
        t.put_device(small)
    assert DeviceRow(uuid=A, memory_capacity=600, compute_capacity=100) in ledger.load().devices
    with pytest.raises(Refused), ledger.transaction() as t:
        t.add_grant(grant(2, "e2", counted_memory=1))
    with pytest.raises(Refused), ledger.transaction() as t:
        t.add_grant(grant(2, "e2", counted_memory=0, counted_compute=1))
    with ledger.transaction() as t:
        t.drop_grant(grant(counted_memory=600, counted_compute=5000))
        t.put_device(small)
    assert small in ledger.load().devices
    with pytest.raises(Refused), ledger.transaction() as t:
        t.add_grant(grant(counted_memory=10, counted_compute=101))
    assert counters(ledger) == sums(ledger.load())


# -- what the database refuses, whatever the code above it does ------------------------------------


def _two(t: Transaction, *changes: dict[str, object]) -> None:
    for number, change in enumerate(changes, 1):
        t.add_grant(grant(number, f"e{number}", **change))


_WHOLE = {"counted_exclusive": True}
CHECKS: dict[str, list[Callable[[Transaction], None]]] = {
    "memory_fits": [
        lambda t: _two(t, {"counted_memory": 501}, {"counted_memory": 500}),
        lambda t: t.add_grant(grant(counted_memory=MEMORY + 1)),
        lambda t: t.put_device(DeviceRow(uuid="C", memory_capacity=-1, compute_capacity=0)),
        lambda t: t._count(A, -1, 0, 0),
    ],
    "one_exclusive": [
        lambda t: _two(t, _WHOLE, _WHOLE),
        lambda t: t._count(A, 0, -1, 0),
    ],
    "exclusive_alone": [
        lambda t: _two(t, _WHOLE, {"counted_memory": 0}),
        lambda t: _two(t, {"counted_memory": 0}, _WHOLE),
        lambda t: (_two(t, {}, {}), t.change_grant(grant(), grant(counted_exclusive=True)))[0],
    ],
    "shared_counted": [lambda t: t._count(A, 0, 0, -1)],
    "compute_fits": [
        lambda t: _two(t, {"counted_compute": 5001}, {"counted_compute": 5000}),
        lambda t: t.add_grant(grant(counted_compute=COMPUTE + 1)),
        lambda t: (_two(t, {"counted_compute": 5}), t._count_compute(grant(), -6))[0],
    ],
    "compute_capacity_counted": [
        lambda t: t.put_device(DeviceRow(uuid="C", memory_capacity=1, compute_capacity=-1)),
    ],
    "memory_counted": [lambda t: _two(t, {}, {"counted_memory": -1})],
    "compute_counted": [
        lambda t: _two(t, {"counted_compute": 5000}, {"counted_compute": -1}),
    ],
}


@pytest.mark.parametrize(
    ("name", "number"), [(name, n) for name, acts in CHECKS.items() for n in range(len(acts))]
)
def test_a_check_refuses_and_nothing_is_changed(ledger: LiveLedger, name: str, number: int) -> None:
    before = ledger.load(), counters(ledger)
    with pytest.raises(Refused) as refused, ledger.transaction() as t:
        CHECKS[name][number](t)
    assert refused.value.constraint == name
    assert (ledger.load(), counters(ledger)) == before


def test_every_check_of_the_schema_is_shown_to_refuse() -> None:
    assert set(CHECKS) == set(schema._CHECKS)


def test_shares_of_different_owners_do_not_add_up(ledger: LiveLedger) -> None:
    with ledger.transaction() as t:
        t.add_grant(grant(counted_compute=COMPUTE))
        t.add_grant(grant(2, "e2", owner=OWNERS[1], counted_compute=COMPUTE))
    assert counters(ledger) == sums(ledger.load())


@pytest.mark.parametrize(
    "act",
    [
        lambda t: t.add_grant(grant(device="GPU-nowhere")),
        lambda t: t.add_grant(grant(environment="nobody")),
        lambda t: (t.add_grant(grant(1)), t.add_grant(grant(1, "e2"))),
        lambda t: (t.add_grant(grant(1)), t.add_grant(grant(2))),
        lambda t: (t.add_grant(grant()), t.drop_environment("e1")),
        lambda t: t.drop_grant(grant()),
        lambda t: (t.add_grant(grant()), t.drop_grant(grant()), t.drop_grant(grant())),
        lambda t: (t.add_grant(grant()), t.drop_grant(grant(counted_memory=99))),
        lambda t: (t.add_grant(grant()), t.drop_grant(grant(counted_exclusive=True))),
        lambda t: (t.add_grant(grant()), t.change_grant(grant(counted_compute=1), grant())),
        lambda t: t.change_grant(grant(), grant(counted_memory=1)),
    ],
    ids=[
        "unknown device",
        "unknown environment",
        "id twice",
        "two grants of one environment on one device",
        "environment dropped under its grant",
        "dropping what is not there",
        "dropping twice",
        "dropping what has changed",
        "dropping another kind",
        "changing what has changed",
        "changing what is not there",
    ],
)
def test_a_write_that_does_not_fit_the_rows_is_refused(
    ledger: LiveLedger, act: Callable[[Transaction], object]
) -> None:
    before = ledger.load(), counters(ledger)
    with pytest.raises(Refused), ledger.transaction() as t:
        act(t)
    assert (ledger.load(), counters(ledger)) == before


def test_a_grant_keeps_its_id_its_device_and_its_owner(ledger: LiveLedger) -> None:
    for changed in (grant(2), grant(device=B), grant(owner=OWNERS[1])):
        with pytest.raises(ValueError, match="keeps its id"), ledger.transaction() as t:
            t.add_grant(grant())
            t.change_grant(grant(), changed)
    assert ledger.load().grants == ()


# -- transactions ----------------------------------------------------------------------------------


def test_an_exception_rolls_everything_back_and_the_next_transaction_works(
    ledger: LiveLedger,
) -> None:
    before = ledger.load(), counters(ledger)
    with pytest.raises(ZeroDivisionError), ledger.transaction() as t:
        t.put_environment(environment("e9"))
        t.add_grant(grant(environment="e9", counted_compute=5))
        raise ZeroDivisionError
    assert (ledger.load(), counters(ledger)) == before
    with ledger.transaction() as t:
        t.add_grant(grant())
    assert ledger.load().grants == (grant(),)


@pytest.mark.parametrize(
    ("act", "failure"),
    [
        (lambda t: t.add_grant(grant(2, "e2", counted_memory=MEMORY)), Refused),
        (lambda t: t.drop_grant(grant(3)), Refused),
        (lambda t: t.put_environment(environment("e5", launch=2**63)), OverflowError),
    ],
)
def test_a_failure_that_is_caught_inside_is_not_committed_all_the_same(
    ledger: LiveLedger, act: Callable[[Transaction], None], failure: type[Exception]
) -> None:
    with pytest.raises(failure), ledger.transaction() as t:
        t.add_grant(grant())
        with pytest.raises(failure):
            act(t)
    assert ledger.load().grants == ()
    with ledger.transaction() as t:
        t.add_grant(grant())
    assert counters(ledger) == sums(ledger.load())


def test_a_transaction_in_a_transaction_is_an_error_and_harms_neither(ledger: LiveLedger) -> None:
    with ledger.transaction() as t:
        t.add_grant(grant())
        with pytest.raises(RuntimeError, match="open already"), ledger.transaction():
            pass
        t.add_grant(grant(2, "e2"))
    assert len(ledger.load().grants) == 2
    with pytest.raises(RuntimeError, match="over"):
        t.add_grant(grant(3, "e3"))


def test_a_closed_ledger_says_so(backend: SqliteBackend) -> None:
    made = backend.ledger()
    with pytest.raises(RuntimeError, match="not open"):
        made.load()
    made.open()
    with pytest.raises(RuntimeError, match="open already"):
        made.open()
    made.close()
    made.close()
    with pytest.raises(RuntimeError, match="not open"):
        made.transaction()


def test_the_trace_sees_every_statement_and_its_parameters(ledger: LiveLedger) -> None:
    seen: list[tuple[str, object]] = []
    ledger.trace = lambda text, parameters: seen.append((text, parameters))
    with ledger.transaction() as t:
        t.add_grant(grant(counted_compute=5))
    words = [text.split()[0] for text, _ in seen]
    assert words == ["BEGIN", "INSERT", "UPDATE", "INSERT", "COMMIT"]
    assert 100 in seen[2][1]  # type: ignore[operator]


def test_two_connections_that_race_never_grant_more_than_there_is(
    backend: SqliteBackend, ledger: LiveLedger
) -> None:
    room, tries = 10, 12

    def grab(first: int) -> int:
        mine = backend.ledger()
        mine.open()
        got = 0
        for number in range(first, first + tries):
            try:
                with mine.transaction() as t:
                    t.put_environment(environment(f"racer {number}"))
                    t.add_grant(grant(number, f"racer {number}", counted_memory=MEMORY // room))
            except Refused:
                continue
            got += 1
        mine.close()
        return got

    with ThreadPoolExecutor(2) as pool:
        assert sum(pool.map(grab, (100, 200))) == room
    state = ledger.load()
    assert counters(ledger) == sums(state)
    assert len(state.environments) == 4 + room


# -- crashes ---------------------------------------------------------------------------------------

_CHILD = """
import os, signal, sys
from pathlib import Path
import msgspec
from genv_jupyter.ledger import LiveLedger
from genv_jupyter.ledger.rows import DeviceRow, EnvironmentRow, GrantRow

nobody = EnvironmentRow.nobody("local:1000")
DEVICE = DeviceRow(uuid="GPU-a", memory_capacity=10**9, compute_capacity=10**9)

def row(number):
    return GrantRow(
        id=number, environment=str(number), device="GPU-a", owner="local:1000", memory=7,
        compute=3, exclusive=False, counted_memory=7, counted_compute=3, counted_exclusive=False,
        state="granted", applied=None, since=0.0,
    )

def attach(ledger, number):
    with ledger.transaction() as t:
        t.put_environment(msgspec.structs.replace(nobody, id=str(number)))
        t.add_grant(row(number))
"""


def _python(script: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(_CHILD) + textwrap.dedent(script)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


def test_what_was_committed_survives_sigkill_in_the_middle_of_commits(
    backend: SqliteBackend,
) -> None:
    script = f"""
    ledger = {backend.expression()}
    assert ledger.open() == []
    with ledger.transaction() as t:
        t.put_device(DEVICE)
    known = {{grant.id for grant in ledger.load().grants}}
    number = max(known, default=0)
    while True:
        number += 1
        attach(ledger, number)
        os.write(1, b"%d\\n" % number)
    """
    answered = 0
    for _ in range(2):
        with _python(script) as child:
            assert child.stdout is not None
            for _ in range(150):
                answered = int(child.stdout.readline())
            child.kill()
            for line in child.stdout:
                if line.endswith("\n"):
                    answered = int(line)
        assert child.returncode == -signal.SIGKILL
        ledger = backend.ledger()
        assert ledger.open() == []
        state = ledger.load()
        found = counters(ledger)
        ledger.close()
        ids = sorted(row.id for row in state.grants)
        assert ids in (list(range(1, answered + 1)), list(range(1, answered + 2)))
        assert {row.id for row in state.environments} == {str(number) for number in ids}
        assert found == sums(state)


def test_sigkill_between_any_two_statements_leaves_all_or_nothing(backend: SqliteBackend) -> None:
    script = f"""
    def doomed(step):
        def trace(text, parameters):
            nonlocal step
            step -= 1
            if step < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        ledger = {backend.expression()}
        ledger.open()
        ledger.trace = trace
        attach(ledger, 1)
        os._exit(0)

    ledger = {backend.expression()}
    ledger.open()
    with ledger.transaction() as t:
        t.put_device(DEVICE)
    ledger.close()
    for step in range(20):
        child = os.fork()
        if not child:
            doomed(step)
        _, status = os.waitpid(child, 0)
        ledger = {backend.expression()}
        assert ledger.open() == []
        state = ledger.load()
        ledger.close()
        print(os.waitstatus_to_exitcode(status), len(state.environments), len(state.grants))
        if not status:
            break
    """
    with _python(script) as child:
        assert child.stdout is not None
        lines = [tuple(map(int, line.split())) for line in child.stdout]
    assert child.returncode == 0
    # BEGIN, the environment, the grant, the device, the share, COMMIT: then it was answered.
    assert lines == [(-signal.SIGKILL, 0, 0)] * 6 + [(0, 1, 1)]


# -- counters under any sequence of writes ---------------------------------------------------------


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
