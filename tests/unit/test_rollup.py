"""Roll-up: what was seen is counted once at every level; a gap is no zero; clocks may jump."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genv_jupyter.errors import BadRequest
from genv_jupyter.rollup import (
    LEVELS,
    MOST_POINTS,
    DeviceSums,
    GrantSums,
    add,
    coarser,
    combine,
    mean,
    plan,
    spread,
    total,
)

amounts = st.integers(0, 2**40)
peaks = st.none() | amounts
sums = st.builds(
    GrantSums,
    held=amounts,
    memory=amounts,
    share=amounts,
    used_known=amounts,
    used=amounts,
    used_peak=peaks,
    idle_known=amounts,
    idle=amounts,
)
# Times jump both ways, as a clock may that is set.
readings = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 100_000), sums), max_size=40)


def rolled(seen: list[tuple[str, int, GrantSums]]) -> dict[tuple[str, int], GrantSums]:
    cells: dict[tuple[str, int], GrantSums] = {}
    for series, at, one in seen:
        add(cells, (series, at - at % 10), one)
    return cells


@given(readings)
def test_sums_and_maxima_are_kept_at_every_level(seen: list[tuple[str, int, GrantSums]]) -> None:
    whole = total((one for _, _, one in seen), GrantSums())
    cells = rolled(seen)
    for step in LEVELS:
        cells = coarser(cells, step)
        assert total(cells.values(), GrantSums()) == whole
        assert all(at % step == 0 for _, at in cells)


@given(readings, st.integers(0, 40))
def test_a_restart_in_the_middle_of_a_span_changes_nothing(
    seen: list[tuple[str, int, GrantSums]], cut: int
) -> None:
    for step in LEVELS:
        together = coarser(rolled(seen), step)
        for key, one in coarser(rolled(seen[cut:]), step).items():
            first = coarser(rolled(seen[:cut]), step).get(key, GrantSums())
            assert together[key] == combine(first, one)


@given(readings)
def test_spans_in_which_nothing_was_seen_are_not_there(
    seen: list[tuple[str, int, GrantSums]],
) -> None:
    for step in LEVELS:
        there = {(series, at - at % step) for series, at, _ in seen}
        assert coarser(rolled(seen), step).keys() == there


@given(sums, sums, sums)
def test_it_does_not_matter_in_which_order_parts_come(
    one: GrantSums, two: GrantSums, three: GrantSums
) -> None:
    assert combine(one, two) == combine(two, one)
    assert combine(combine(one, two), three) == combine(one, combine(two, three))
    assert combine(one, GrantSums()) == one


def test_adding_leaves_what_was_added_as_it_was() -> None:
    first, second = DeviceSums(seen=1, memory_peak=3), DeviceSums(seen=2, memory_peak=2)
    cells: dict[tuple[str, int], DeviceSums] = {}
    add(cells, ("a", 0), first)
    add(cells, ("a", 0), second)
    assert cells == {("a", 0): DeviceSums(seen=3, memory_peak=3)}
    assert (first, second) == (
        DeviceSums(seen=1, memory_peak=3),
        DeviceSums(seen=2, memory_peak=2),
    )


def test_a_mean_of_nothing_is_unknown() -> None:
    assert mean(0, 0) is None
    assert mean(0, 5) == 0
    assert mean(10, 4) == 2


def test_a_quiet_span_is_spread_evenly() -> None:
    minute = DeviceSums(seen=60_000, memory_known=60_000, memory=600_000, memory_peak=11 * 2**20)
    part = spread(minute, 6)
    assert (part.seen, part.memory_peak) == (10_000, 11 * 2**20)
    assert mean(part.memory, part.memory_known) == mean(minute.memory, minute.memory_known)
    assert msgspec.structs.asdict(part).keys() == msgspec.structs.asdict(minute).keys()


NOW = 1_800_000_000.0


@given(st.floats(0, 500 * 86400), st.none() | st.integers(1, 10**7))
def test_no_answer_has_more_points_than_can_be_shown(ago: float, step: int | None) -> None:
    level, chosen = plan(NOW - ago, NOW, step)
    assert level in LEVELS and chosen % level == 0 and chosen >= (step or 1)
    kept = min(ago, max(LEVELS.values()))
    assert kept <= LEVELS[level], "so long ago the level is no longer kept"
    first = int(NOW - kept) // chosen
    assert int(NOW) // chosen - first + 1 <= MOST_POINTS


def test_the_step_is_the_one_that_was_asked_for_where_it_can_be() -> None:
    assert plan(NOW - 600, NOW, 10) == (10, 10)
    assert plan(NOW - 600, NOW, 30) == (10, 30)
    assert plan(NOW - 86400, NOW, 60) == (60, 60)
    assert plan(NOW - 7 * 86400, NOW, 3600) == (3600, 3600)
    assert plan(NOW - 300, NOW, None) == (10, 10)
    with pytest.raises(BadRequest):
        plan(NOW + 60, NOW, None)
