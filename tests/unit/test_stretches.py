"""What is added up while it happens is what would be added up with every reading."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from genv_jupyter.broker.stretches import IDLE_PERCENT, MIB, Stretches
from genv_jupyter.broker.usage import UNEXPLAINED, DeviceUsage
from genv_jupyter.broker.usage_view import used_now
from genv_jupyter.devices.source import DeviceReading
from genv_jupyter.ledger.rows import EnvironmentRow, GrantRow
from genv_jupyter.model import Process
from genv_jupyter.rollup import GrantSums, combine
from genv_jupyter.units import WHOLE

GPU = "GPU-a"
USABLE = 24 * 2**30
BEGAN = 1_800_000_000.0


def grant(number: int, since: float, memory: int, state: Any) -> GrantRow:
    return GrantRow(
        id=number,
        environment=f"environment-{number}",
        device=GPU,
        owner="local:1",
        memory=memory,
        compute=None,
        exclusive=False,
        counted_memory=memory,
        counted_compute=0,
        counted_exclusive=number == 0,
        state=state,
        applied="live",
        since=since,
    )


def usage(busy: int | None, known: bool, unexplained: int, used: dict[int, int]) -> DeviceUsage:
    own = {
        f"environment-{number}": [
            Process(pid=number + 2, start=1, device=GPU, memory=memory or None, name=None)
        ]
        for number, memory in used.items()
    }
    return DeviceUsage(
        reading=DeviceReading(uuid=GPU, utilization=busy),
        known=known,
        own=own,
        unattributed=unexplained,
    )


def expected(
    cells: dict[Any, GrantSums],
    device: DeviceUsage,
    grants: Sequence[GrantRow],
    now: float,
    ms: int,
) -> tuple[int, int]:
    """Add a reading up the long way; return what was granted."""
    granted = shared = 0
    for row in grants:
        held = min(ms, round((now - row.since) * 1000))
        if held <= 0 or row.state == "reserved":
            continue
        memory = round(row.counted_memory / MIB)
        share = WHOLE if row.counted_exclusive else row.counted_memory * WHOLE // USABLE
        sums = GrantSums(held=held, memory=held * memory, share=held * share)
        used, busy = used_now(device, row.environment), device.reading.utilization
        if used is not None:
            sums.used_known, sums.used, sums.used_peak = held, held * round(used / MIB), used
        if used == 0 or (busy is not None and (used is not None or busy <= IDLE_PERCENT)):
            sums.idle_known = held
            sums.idle = held if used == 0 or (busy or 0) <= IDLE_PERCENT else 0
        key = (row.environment, GPU), int(now) // 10 * 10
        cells[key] = combine(cells.get(key, GrantSums()), sums)
        granted += held * memory
        shared += held * share
    return granted, shared


readings = st.tuples(
    st.sampled_from([0.2, 1.0, 1.0, 3.0, -20.0, 30.0]),  # what the clock does
    st.sampled_from([None, 0, 1, 60]),
    st.booleans(),
    st.sampled_from([0, 0, UNEXPLAINED]),
    st.dictionaries(st.integers(0, 3), st.sampled_from([0, 5 * MIB]), max_size=2),
)
changes = st.tuples(
    st.integers(0, 3),
    st.sampled_from([0, MIB, 9000 * MIB]),
    st.sampled_from(["granted", "reserved", "draining"]),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(readings, st.none() | changes, st.booleans()), max_size=25))
def test_stretches_add_up_to_what_every_reading_would(story: Any) -> None:
    rows: dict[str, GrantRow] = {}
    nobody = EnvironmentRow.nobody("local:1")
    books: Any = SimpleNamespace(
        on_device={GPU: rows}, environments={f"environment-{n}": nobody for n in range(4)}
    )
    made, cells = Stretches(books, lambda reading: USABLE), {}
    now = BEGAN
    for (step, busy, known, unexplained, used), change, asks in story:
        now += step
        if change is not None:
            number, memory, state = change
            name = f"environment-{number}"
            if memory:  # some begin within the reading
                rows[name] = grant(number, now - 0.3, memory, state)
            else:
                rows.pop(name, None)
        ms = max(1, min(5000, round(step * 1000)))
        device = usage(busy, known, unexplained, used)
        granted = made.take(device, int(now) // 10 * 10, ms, now)
        assert granted == expected(cells, device, list(rows.values()), now, ms)
        if asks:
            made.settle()
            assert made.cells == cells
    made.settle()
    assert made.cells == cells
    assert {name for (name, _), _ in cells} <= made.holders.keys()


def test_a_grant_that_stays_as_it_is_costs_nothing_until_its_span_is_over() -> None:
    books: Any = SimpleNamespace(
        on_device={GPU: {"environment-1": grant(1, BEGAN - 60, MIB, "granted")}},
        environments={"environment-1": EnvironmentRow.nobody("local:1")},
    )
    made = Stretches(books, lambda reading: USABLE)
    for second in range(9):
        made.take(usage(second, True, 0, {}), int(BEGAN), 1000, BEGAN + second)
    assert made.cells == {}
    made.take(usage(0, True, 0, {}), int(BEGAN) + 10, 1000, BEGAN + 10)
    (sums,) = made.cells.values()
    assert (sums.held, sums.idle) == (9000, 9000)
