"""What drivers tell is made fit to be believed, or becomes unknown."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from genv_jupyter.devices.readings import Doubt, clean_memory, clean_text, clean_uuid, merge

ALL_ONES = 2**64 - 1


@pytest.mark.parametrize(
    ("raw", "clean", "doubtful"),
    [
        ({"total": 100, "reserved": 10, "free": 60, "used": 30}, (100, 10, 60), False),
        ({"total": 100, "free": 60, "used": 40}, (100, None, 60), False),
        ({"total": 0, "reserved": 0, "free": 0, "used": 0}, (None, None, None), False),
        ({"total": 100, "reserved": 10, "free": ALL_ONES, "used": 0}, (100, 10, None), True),
        ({"total": ALL_ONES, "reserved": 10, "free": 60, "used": 0}, (None, 10, 60), True),
        ({"total": 100, "reserved": ALL_ONES, "free": 60, "used": 0}, (100, None, 60), True),
        ({"total": 100, "reserved": 10, "free": 60, "used": 101}, (100, 10, 60), True),
        ({"total": 100, "reserved": 50, "free": 60, "used": 0}, (100, 50, 50), True),
    ],
)
def test_memory_is_never_more_than_the_card(raw, clean, doubtful):
    doubt = Doubt()
    assert clean_memory(SimpleNamespace(**raw), doubt) == clean
    assert doubt.raised == doubtful


def test_memory_that_is_not_told_is_unknown_and_no_reason_to_doubt():
    doubt = Doubt()
    assert clean_memory(None, doubt) == (None, None, None)
    assert not doubt.raised


def test_process_lists_are_merged_by_pid():
    doubt = Doubt()
    lists = {
        "graphics": [(5, 10), (6, None)],
        "compute": [(5, 12), (4, 1)],
        "mps": [(4, None), (6, 3)],
    }
    assert merge(lists, 100, doubt) == [(4, 1, "mps"), (5, 12, "compute"), (6, 3, "mps")]
    assert not doubt.raised


@pytest.mark.parametrize("pid", [0, -1, 2**32 - 1, 5_000_000, None, "7"])
def test_garbage_pid_is_left_out_with_doubt(pid):
    doubt = Doubt()
    assert merge({"compute": [(pid, 1), (8, 2)]}, 100, doubt) == [(8, 2, "compute")]
    assert doubt.raised


def test_process_larger_than_the_card_has_unknown_memory():
    doubt = Doubt()
    assert merge({"compute": [(8, 101)]}, 100, doubt) == [(8, None, "compute")]
    assert doubt.raised
    assert merge({"compute": [(8, 101)]}, None, Doubt()) == [(8, 101, "compute")]


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("GPU-51b00000-0000-4000-8000-000000000000",) * 2,
        (b"GPU-abc", "GPU-abc"),
        ("MIG-GPU-abc/7/0",) * 2,
        (b"GPU-\xff\xfe", None),
        ("GPU-a,b", None),
        ("0", None),
        ("", None),
        (None, None),
    ],
)
def test_uuid_is_one_that_cuda_can_be_told_or_none(raw, clean):
    assert clean_uuid(raw) == clean


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("NVIDIA H200", "NVIDIA H200"),
        (b"NVIDIA\xff", "NVIDIA\ufffd"),
        ("a\x00b\n\x1b[31mc", "a b [31mc"),
        ("\x00", None),
        (None, None),
        (7, None),
        ("x" * 500, "x" * 128),
    ],
)
def test_text_is_printable_and_short_or_none(raw, clean):
    assert clean_text(raw) == clean
