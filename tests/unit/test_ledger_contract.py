"""What every live ledger must do, whatever the database behind it.

A further database joins by adding its backend to ``ledgers.BACKENDS``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from genv_jupyter.ledger import LiveLedger, Refused, Transaction, schema
from genv_jupyter.ledger.rows import DeviceRow, EnvironmentRow, NoteRow, ServerRow, TicketRow
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


def ticket(id_: str = "t1", **changes: object) -> TicketRow:
    plain = TicketRow(
        id=id_,
        environment="e1",
        number=2**40,
        request='{"gpus":1}',
        state="waiting",
        since=1.5,
        came=2.0e5 + 1 / 3,
    )
    return msgspec.structs.replace(plain, **changes)


def test_tickets_come_back_after_reopening(backend: SqliteBackend, ledger: LiveLedger) -> None:
    rows = [
        ticket(),
        ticket(
            "t2", environment="e2", state="granted", until=9.5, restart=True, pid=7, start=2**62
        ),
    ]
    with ledger.transaction() as t:
        for row in rows:
            t.put_ticket(row)
        t.put_ticket(msgspec.structs.replace(rows[0], number=1))
    ledger.close()
    again = backend.ledger()
    assert again.open() == []
    rows[0] = msgspec.structs.replace(rows[0], number=1)
    assert sorted(again.load().tickets, key=lambda row: row.id) == rows
    assert all(type(row.restart) is bool for row in again.load().tickets)
    with again.transaction() as t:
        t.drop_ticket("t1")
    assert again.load().tickets == (rows[1],)
    again.close()


def test_an_environment_has_one_ticket_and_stays_as_long_as_that(ledger: LiveLedger) -> None:
    with ledger.transaction() as t:
        t.put_ticket(ticket())
    with pytest.raises(Refused), ledger.transaction() as t:
        t.put_ticket(ticket("t2"))
    with pytest.raises(Refused), ledger.transaction() as t:
        t.drop_environment("e1")
    assert ledger.load().tickets == (ticket(),)


def test_notes_are_replaced_and_come_back(backend: SqliteBackend, ledger: LiveLedger) -> None:
    first = NoteRow(
        environment="e1", by="e2", kind="question", owner="local:1", text="how long?", at=1 / 3
    )
    other = msgspec.structs.replace(first, environment="e2", by="gone", kind="answer", lease=2.5)
    with ledger.transaction() as t:
        t.put_notes("e1", [msgspec.structs.replace(first, kind="asked"), other])
        t.put_notes("e1", [first])
    ledger.close()
    again = backend.ledger()
    again.open()
    assert sorted(again.load().notes, key=lambda it: it.environment) == [first, other]
    with again.transaction() as t:
        t.drop_environment("e1")  # a note keeps nobody
        t.put_notes("e1", [])
    assert again.load().notes == (other,)
    again.close()


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
