"""Requests: what each combination of fields means, and what is refused with a hint."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from genv_jupyter.demand import MAX_DEVICES, MAX_NAME, MAX_PROCESSES, Demand, demand_of
from genv_jupyter.errors import BadRequest, GpuError, OutOfRange
from genv_jupyter.model import Request
from genv_jupyter.units import WHOLE

PLAIN = Demand(
    count=1,
    exclusive=False,
    fraction=None,
    memory=None,
    compute=None,
    devices=(),
    processes=1,
    duration=None,
    wait=None,
    mps="auto",
)


def expected(**fields: Any) -> Demand:
    return msgspec.structs.replace(PLAIN, **fields)


@pytest.mark.parametrize(
    ("request_", "demand"),
    [
        ({"gpus": 1}, {"exclusive": True}),
        ({"gpus": 1.0}, {"exclusive": True}),
        ({"gpus": 2}, {"count": 2, "exclusive": True}),
        ({"gpus": 0.5}, {"fraction": 5_000, "compute": 5_000}),
        ({"fraction": 0.5}, {"fraction": 5_000, "compute": 5_000}),
        ({"fraction": 1.0}, {"exclusive": True}),
        ({"memory": "4G"}, {"memory": 4 * 10**9}),
        ({"memory": 4096}, {"memory": 4096}),
        ({"fraction": 0.25, "memory": "4G"}, {"memory": 4 * 10**9, "compute": 2_500}),
        ({"gpus": 2, "memory": "10G"}, {"count": 2, "memory": 10**10}),
        ({"gpus": 2, "fraction": 0.5}, {"count": 2, "fraction": 5_000, "compute": 5_000}),
        ({"devices": ["0"]}, {"exclusive": True, "devices": ("0",)}),
        ({"devices": [" 0 ", "GPU-1"]}, {"count": 2, "exclusive": True, "devices": ("0", "GPU-1")}),
        ({"gpus": 1, "devices": ["1"]}, {"exclusive": True, "devices": ("1",)}),
        ({"memory": "4G", "devices": ["1"]}, {"memory": 4 * 10**9, "devices": ("1",)}),
        ({"gpus": 1, "processes": MAX_PROCESSES}, {"exclusive": True, "processes": MAX_PROCESSES}),
        (
            {"gpus": 1, "duration": "2h30m", "wait": 60, "mps": "off"},
            {"exclusive": True, "duration": 9_000, "wait": 60, "mps": "off"},
        ),
    ],
)
def test_each_combination_means_what_the_table_says(
    request_: dict[str, Any], demand: dict[str, Any]
) -> None:
    assert demand_of(msgspec.convert(request_, Request)) == expected(**demand)


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        ({}, BadRequest),
        ({"name": "only a name"}, BadRequest),
        ({"gpus": 0}, OutOfRange),
        ({"gpus": -1}, OutOfRange),
        ({"gpus": float("nan")}, OutOfRange),
        ({"gpus": float("inf")}, OutOfRange),
        ({"gpus": 1.5}, OutOfRange),
        ({"gpus": 10**30}, OutOfRange),
        ({"gpus": MAX_DEVICES + 1}, OutOfRange),
        ({"fraction": 0}, OutOfRange),
        ({"fraction": -0.5}, OutOfRange),
        ({"fraction": float("nan")}, OutOfRange),
        ({"fraction": 0.005}, OutOfRange),
        ({"fraction": 2}, OutOfRange),
        ({"gpus": 0.5, "fraction": 0.5}, BadRequest),
        ({"memory": 0}, OutOfRange),
        ({"memory": -1}, OutOfRange),
        ({"memory": "4X"}, BadRequest),
        ({"memory": 10**30}, OutOfRange),
        ({"devices": []}, BadRequest),
        ({"devices": [""]}, BadRequest),
        ({"devices": [" "]}, BadRequest),
        ({"devices": ["0"] * (MAX_DEVICES + 1)}, OutOfRange),
        ({"devices": ["x" * 201]}, OutOfRange),
        ({"gpus": 2, "devices": ["0"]}, BadRequest),
        ({"gpus": 1, "processes": 0}, OutOfRange),
        ({"gpus": 1, "processes": MAX_PROCESSES + 1}, OutOfRange),
        ({"gpus": 1, "duration": 0}, OutOfRange),
        ({"gpus": 1, "duration": "soon"}, BadRequest),
        ({"gpus": 1, "wait": "-1"}, BadRequest),
        ({"gpus": 1, "name": "n" * (MAX_NAME + 1)}, BadRequest),
    ],
)
def test_bad_requests_are_refused_with_a_hint(
    request_: dict[str, Any], error: type[GpuError]
) -> None:
    with pytest.raises(GpuError) as refusal:
        demand_of(Request(**request_))
    assert type(refusal.value) is error
    assert refusal.value.message and refusal.value.hint


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"gpus": NaN}',
        b'{"gpus": "1"}',
        b'{"gpu": 1}',
        b'{"gpus": 1, "memory": [1]}',
        b'{"gpus": 1, "mps": "maybe"}',
        b'{"gpus": 1, "processes": 1.5}',
        b'{"devices": [0]}',
        b'{"gpus": 1',
        b"\xff",
    ],
)
def test_json_of_another_shape_is_no_request(body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(body, type=Request)


def test_a_whole_device_has_no_ceiling() -> None:
    assert demand_of(Request(gpus=1)).compute is None
    assert demand_of(Request(fraction=0.99)).compute == WHOLE - 100
