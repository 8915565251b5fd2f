"""The pool is what CUDA_VISIBLE_DEVICES leaves, read as CUDA reads it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genv_jupyter.devices.pool import read_pool
from genv_jupyter.devices.source import DeviceReading

A = "GPU-aaaaaaaa-0000-4000-8000-000000000000"
AB = "GPU-aabbbbbb-0000-4000-8000-000000000001"
C = "GPU-cccccccc-0000-4000-8000-000000000002"
GPUS = [DeviceReading(uuid=uuid, index=index, name="H") for index, uuid in enumerate((A, AB, C))]

PARENT = "GPU-dddddddd-0000-4000-8000-000000000003"
M1 = "MIG-11111111-0000-5000-8000-000000000001"
M2 = "MIG-12222222-0000-5000-8000-000000000002"
MIG = [
    GPUS[0],
    *(
        DeviceReading(
            uuid=uuid, kind="mig", parent=PARENT, parent_index=1, instance=(number, 0), name="H 1g"
        )
        for number, uuid in ((7, M1), (9, M2))
    ),
    DeviceReading(uuid=C, index=2, name="H"),
]

TABLE = [
    # numbers
    ("0", [A], None),
    ("2,0", [C, A], None),
    ("0,1,2", [A, AB, C], None),
    (" 0 , 2 ", [A, C], None),
    ("+1", [AB], None),
    ("1gpu2,2ampere", [AB, C], None),
    ("0x1", [A], None),
    ("007", [], "no GPU"),
    ("00", [A], None),
    ("1.9", [AB], None),
    # what ends the list
    ("-1", [], "'-1'"),
    ("0,-1,2", [A], "2"),
    ("0,3,1", [A], "'3'"),
    ("3", [], "'3'"),
    ("99999999999999999999999999", [], "no GPU"),
    ("0,,1", [A], "''"),
    ("0,", [A], None),
    (",0", [], "''"),
    ("all", [], "'all'"),
    ("gpu0", [], "'gpu0'"),
    ("0;1", [A], None),
    ("0 1", [A], None),
    # nothing at all
    ("", [], "sees no GPU"),
    ("   ", [], "sees no GPU"),
    ("NoDevFiles", [], "sees no GPU"),
    # named twice
    ("0,0", [], "twice"),
    ("2,1,2", [], "twice"),
    ("0,00", [], "twice"),
    (f"{A},{A}", [], "twice"),
    (f"{A},0", [], "twice"),
    ("GPU-c,GPU-cc", [], "twice"),
    ("0,-1,0", [A], "'-1'"),
    # UUIDs and prefixes of them
    (C, [C], None),
    (f"{C},{A}", [C, A], None),
    (f"\t {C}", [C], None),
    ("GPU-c", [C], None),
    ("GPU-aaa,GPU-aab", [A, AB], None),
    ("GPU-aa", [], "fits 2"),
    ("GPU-", [], "fits 3"),
    ("GPU-c,GPU-a,GPU-aab", [C], "fits 2"),
    ("GPU-CCCCCCCC", [], "no device"),
    (f"{C}x", [], "no device"),
    (f"{C} ,0", [], "no device"),
    ("GPU-eeee,0", [], "no device"),
    ("1,GPU-c", [AB, C], None),
    ("MIG-1", [], "no device"),
]


@pytest.mark.parametrize(("value", "uuids", "notice"), TABLE)
def test_pool_of_gpus_is_what_cuda_reads(value, uuids, notice):
    pool = read_pool(value, GPUS)
    assert list(pool.uuids) == uuids
    assert (pool.notice is None) == (notice is None), pool.notice
    assert notice is None or notice in pool.notice


MIG_TABLE = [
    ("MIG-11", [M1], None),
    (f"{M2},{M1}", [M2, M1], None),
    ("MIG-1", [], "fits 2"),
    (f"MIG-{PARENT}/7/0", [M1], None),
    (f"MIG-{PARENT}/9/0", [M2], None),
    (f"MIG-{PARENT}/8/0", [], "no device"),
    (f"MIG-{PARENT}/9/0,{M2}", [], "twice"),
    ("1", [M1], "first instance"),
    (PARENT, [M1], "first instance"),
    ("GPU-d", [M1], "first instance"),
    ("0", [A], None),
    ("2", [C], None),
    ("3", [], "no GPU"),
]


@pytest.mark.parametrize(("value", "uuids", "notice"), MIG_TABLE)
def test_pool_of_mig_instances(value, uuids, notice):
    pool = read_pool(value, MIG)
    assert list(pool.uuids) == uuids
    assert (pool.notice is None) == (notice is None), pool.notice
    assert notice is None or notice in pool.notice


def test_pool_without_the_variable_is_everything():
    assert read_pool(None, MIG).uuids == (A, M1, M2, C)
    assert read_pool(None, []).uuids == ()


def test_pool_of_a_host_without_devices_leaves_the_word_to_the_driver():
    assert read_pool("0,1", []) == read_pool(None, [])
    assert read_pool("", []).notice is not None


def test_pool_says_that_numbers_are_doubtful_where_gpus_differ():
    mixed = [*GPUS, DeviceReading(uuid="GPU-e", index=3, name="Old")]
    assert "PCI order" in (read_pool("0", mixed).notice or "")
    assert read_pool("GPU-e", mixed).notice is None


def test_pool_keeps_numbers_when_a_device_is_lost():
    lost = [DeviceReading(uuid=A, index=0, name="H", health="lost"), *GPUS[1:]]
    assert read_pool("0,1", lost).uuids == (A, AB)


@given(st.text(max_size=40) | st.lists(st.sampled_from([*"012", "-1", "", "GPU-a", A, "MIG-"])))
def test_pool_is_never_wider_than_the_host_and_never_fails(value):
    text = value if isinstance(value, str) else ",".join(value)
    pool = read_pool(text, GPUS)
    assert len(set(pool.uuids)) == len(pool.uuids) <= len(text.split(","))
    assert set(pool.uuids) <= {A, AB, C}
