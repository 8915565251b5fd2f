"""Sizes, shares and durations: what people write, and what is counted."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genv_jupyter.errors import BadRequest, GpuError, OutOfRange
from genv_jupyter.units import (
    MAX_BYTES,
    MAX_SECONDS,
    WHOLE,
    echo_memory,
    format_duration,
    format_memory,
    format_moment,
    format_share,
    parse_duration,
    parse_memory,
    parse_share,
)


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("4G", 4 * 10**9),
        ("4g", 4 * 10**9),
        ("4GB", 4 * 10**9),
        ("4Gi", 4 * 2**30),
        ("4GiB", 4 * 2**30),
        ("4 gib", 4 * 2**30),
        ("1.5GiB", 3 * 2**29),
        (".5M", 500_000),
        ("512", 512),
        ("512B", 512),
        ("7K", 7_000),
        ("2Ti", 2**41),
        ("8E", 8 * 10**18),
        (1, 1),
        (MAX_BYTES, MAX_BYTES),
        (f"{MAX_BYTES}", MAX_BYTES),
        ("+3M", 3_000_000),
    ],
)
def test_memory_is_read_as_written(text: int | str, amount: int) -> None:
    assert parse_memory(text) == amount


@pytest.mark.parametrize(
    "text",
    [
        "4X",
        "",
        " ",
        "G",
        "4GG",
        "4iB",
        "4i",
        "1e9",
        "nan",
        "inf",
        "0x10",
        "1_000",
        "٤G",
        "4,5G",
        "1.2.3G",
        "--1",
        True,
        "9" * 65,
        "4G\0",
    ],
)
def test_what_is_not_memory_is_a_bad_request(text: int | str) -> None:
    with pytest.raises(BadRequest) as refusal:
        parse_memory(text)
    assert "4GiB" in refusal.value.hint


@pytest.mark.parametrize(
    "text", [0, "0", -1, "-4G", "0.4", 10**30, "1000000000E", MAX_BYTES + 1, "8Ei", 10**400]
)
def test_memory_that_nobody_can_have_is_out_of_range(text: int | str) -> None:
    with pytest.raises(OutOfRange) as refusal:
        parse_memory(text)
    assert refusal.value.hint
    assert len(refusal.value.message) < 200


@pytest.mark.parametrize(
    ("value", "share"),
    [
        (0.5, 5_000),
        ("0.5", 5_000),
        (".25", 2_500),
        (0.01, 100),
        (0.99, 9_900),
        (0.29, 2_900),  # 0.29 * 10_000 is 2899.9999999999995 as a float
        (1, WHOLE),
        (1.0, WHOLE),
        ("1.0", WHOLE),
        (2, 2 * WHOLE),
        ("1e1", 10 * WHOLE),
    ],
)
def test_shares_are_counted_without_floats(value: float | str, share: int) -> None:
    assert parse_share(value) == share


@pytest.mark.parametrize("value", ["", "half", "0x1", True, "1/2", "50%", "1" * 33, "0,5"])
def test_what_is_not_a_share_is_a_bad_request(value: float | str) -> None:
    with pytest.raises(BadRequest) as refusal:
        parse_share(value)
    assert "0.5" in refusal.value.hint


@pytest.mark.parametrize(
    "value",
    [
        0,
        -1,
        -0.5,
        float("nan"),
        float("inf"),
        "nan",
        "-inf",
        "sNaN",
        1.5,
        2.25,
        0.005,
        0.123,
        1e-9,
        "1e-999999",
        "1e999999",
        10**30,
        10**400,
    ],
)
def test_shares_that_no_host_can_give_are_out_of_range(value: float | str) -> None:
    with pytest.raises(OutOfRange) as refusal:
        parse_share(value)
    assert refusal.value.hint
    assert len(refusal.value.message) < 200


def test_one_and_a_half_is_told_what_to_ask_instead() -> None:
    with pytest.raises(OutOfRange) as refusal:
        parse_share(1.5)
    assert "1 or 2 whole GPUs" in refusal.value.hint
    assert "0.5" in refusal.value.hint


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2h30m", 9_000),
        ("45m", 2_700),
        ("1d", 86_400),
        ("90", 90),
        ("90s", 90),
        (7, 7),
        ("1D 2H", 93_600),
        (MAX_SECONDS, MAX_SECONDS),
    ],
)
def test_durations_are_read_as_written(text: int | str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "1.5h", "2w", "-1h", "h", True, "1m2h", "1" * 40])
def test_what_is_not_a_duration_is_a_bad_request(text: int | str) -> None:
    with pytest.raises(BadRequest) as refusal:
        parse_duration(text)
    assert "2h30m" in refusal.value.hint


@pytest.mark.parametrize("text", [0, -5, "0", "367d", MAX_SECONDS + 1, 10**400])
def test_durations_beyond_a_year_or_below_a_second_are_out_of_range(text: int | str) -> None:
    with pytest.raises(OutOfRange):
        parse_duration(text)


@given(st.integers(1, MAX_BYTES))
def test_a_number_of_bytes_is_itself(amount: int) -> None:
    assert parse_memory(amount) == parse_memory(str(amount)) == amount


@given(st.integers(1, WHOLE // 100 - 1))
def test_every_percent_of_a_device_can_be_asked_for(percent: int) -> None:
    assert parse_share(percent / 100) == percent * 100


@given(st.one_of(st.text(max_size=70), st.integers(), st.floats()))
def test_no_input_is_answered_with_anything_but_our_errors(value: int | float | str) -> None:
    for parse in (parse_memory, parse_duration) if not isinstance(value, float) else ():
        try:
            assert parse(value) >= 1
        except GpuError as refusal:
            assert 400 <= refusal.status < 500 and refusal.hint
    try:
        assert parse_share(value) >= 100
    except GpuError as refusal:
        assert 400 <= refusal.status < 500 and refusal.hint


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (None, "?"),
        (24 * 2**30, "24 GiB"),
        (4 * 10**9, "3.7 GiB"),
        (5 * 2**20, "5 MiB"),
        (2048, "2 KiB"),
        (0, "0 B"),
        (1000, "1000 B"),
    ],
)
def test_memory_is_shown_in_binary_units(amount: int | None, text: str) -> None:
    assert format_memory(amount) == text


@pytest.mark.parametrize(
    ("asked", "text"),
    [("4G", "4G (3.7 GiB)"), ("4GiB", "4GiB (4.3 GB)"), (2**30, "1 GiB"), ("1024", "1 KiB")],
)
def test_a_request_is_echoed_with_the_other_unit(asked: int | str, text: str) -> None:
    assert echo_memory(asked) == text


def test_shares_are_shown_in_percent() -> None:
    assert format_share(None) == ""
    assert format_share(5_000) == "50 %"
    assert format_share(150) == "1.5 %"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (3_600, "1 h 00 min"),
        (7_500, "2 h 05 min"),
        (48 * 3_600, "2 d"),
    ],
)
def test_spans_are_shown_as_people_say_them(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("away", "said"),
    [
        (timedelta(minutes=-10), "23:45"),
        (timedelta(minutes=10), "Thu 00:05"),
        (timedelta(days=-1), "Tue 23:55"),
        (timedelta(days=6), "Tue 23:55"),
        (timedelta(days=7), "2026-12-09 23:55"),
        (timedelta(days=-7), "2026-11-25 23:55"),
    ],
)
def test_another_day_is_named(away: timedelta, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        now = datetime(2026, 12, 2, 18, 25, tzinfo=UTC)  # Wednesday, five to midnight there
        assert format_moment(now + away, now) == said
    finally:
        monkeypatch.undo()
        time.tzset()
