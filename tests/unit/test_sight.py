"""Granted, effective, edited: said where they differ, and only there."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from genv_jupyter.isolation.environ import limits_of
from genv_jupyter.isolation.live import digits
from genv_jupyter.kernel.sight import Sight, remarks
from genv_jupyter.model import Applied, Device, Environment, Grant, GrantState

A = "GPU-aaaaaaaa-0000-4000-8000-000000000000"
B = "GPU-bbbbbbbb-0000-4000-8000-000000000001"
NOW = datetime.now(UTC)


def device(index: int, uuid: str) -> Device:
    return Device(
        uuid=uuid,
        index=index,
        name="Card",
        kind="gpu",
        parent=None,
        memory_total=24,
        memory_usable=23,
        memory_used=None,
        utilization=None,
        health="ok",
        simulated=False,
        grants=(),
        external_memory=None,
        unattributed_memory=None,
    )


def environment(
    granted: Sequence[str],
    *,
    state: GrantState = "granted",
    applied: Applied = "live",
    server: str | None = "server",
) -> Environment:
    grants = tuple(
        Grant(
            device=uuid,
            memory=1,
            compute=None,
            exclusive=False,
            state=state,
            applied=applied,
            limits=limits_of(compute=None, exclusive=False, simulated=False),
            since=NOW,
        )
        for uuid in granted
    )
    return Environment(
        id="id",
        previous=None,
        user="alice",
        kind="kernel",
        name=None,
        path=None,
        server=server,
        kernel_state=None,
        idle_since=None,
        request=None,
        pending=None,
        grants=grants,
        state="active" if grants else "released",
        applied=applied,
        created=NOW,
        expires=None,
        cuda="unknown",
        reason=None,
    )


def said(sight: Sight, granted: Sequence[str] = (), **facts: Any) -> list[str]:
    return remarks(sight, environment(granted, **facts), [device(0, A), device(1, B)])


def sees(*uuids: str, visible: str | None = "", set_to: str | bool | None = False) -> Sight:
    return Sight(True, tuple(digits(uuid) for uuid in uuids), visible, set_to)


def test_nothing_is_said_where_all_is_as_granted() -> None:
    assert said(Sight(False, None, A, A), [A]) == []
    assert said(Sight(False, None, "", "")) == []
    assert said(sees(A, visible=A, set_to=A), [A]) == []
    assert said(sees(B, A, visible=None), [A, B]) == [], "their order is CUDA's"
    assert remarks(Sight(False), None, []) == []


def test_effective_differs_from_granted() -> None:
    granted, effective = said(sees(A, visible=A, set_to=A), [B], applied="at_restart")
    assert granted == "Granted: GPU 1 (GPU-bbbbbbbb)."
    assert effective == (
        "Effective: GPU 0 (GPU-aaaaaaaa), which CUDA read when it initialised here. "
        "Restart the kernel to see the grant, which is kept."
    )
    assert "by hand" in said(sees(A), [B], server=None)[1], "nobody keeps that grant"
    assert "GPU 0 (GPU-aaaaaaaa), GPU 1 (GPU-bbbbbbbb), which" in said(sees(A, B), [A])[1]


def test_effective_without_any_grant_belongs_to_somebody_else_perhaps() -> None:
    granted, effective = said(sees(A))
    assert granted == "Granted: nothing."
    assert "somebody else's" in effective and "attach first" in effective
    unlisted = remarks(sees("GPU-cccccccc-00"), None, [])
    assert "Effective: GPU-cccccccc" in unlisted[1], "outside the pool"


def test_draining_device_is_explained_elsewhere() -> None:
    assert said(sees(A), [A], state="draining") == []
    assert "Effective: GPU 1" in said(sees(B), [A], state="draining")[1]


def test_settings_of_the_same_devices_come_with_the_restart() -> None:
    _, effective = said(sees(A), [A], applied="at_restart")
    assert "those of the grant come with a restart" in effective


def test_what_cannot_be_known_is_said() -> None:
    (effective,) = said(Sight(True, None, A, A), [A])
    assert effective.startswith("Effective: nothing.") and "fork" in effective


def test_edited_says_what_reads_it() -> None:
    granted, edited = said(Sight(False, None, "0", A), [A])
    assert granted == "Granted: GPU 0 (GPU-aaaaaaaa)."
    assert edited.startswith("Edited: CUDA_VISIBLE_DEVICES is '0', changed by hand.")
    assert "`%gpu attach` with the same request sets it again" in edited
    assert "is not set" in said(Sight(False, None, None, ""))[1]
    assert "somebody else's" in said(Sight(False, None, "0", ""))[1]
    assert "CUDA has read it before" in said(sees(A, visible="0", set_to=A), [A])[1]


def test_all_three_are_one_line_each() -> None:
    lines = said(sees(A, visible="7", set_to=A), [B], applied="at_restart")
    assert [line.split(":")[0] for line in lines] == ["Granted", "Effective", "Edited"]


def test_what_may_remember_is_named_until_cuda_works() -> None:
    sight = Sight(False, None, A, A, ("torch", "jax"))
    (line,) = said(sight, [A])
    assert line.startswith("torch and jax were loaded while GPUs were hidden here")
    assert said(sight) == [], "nothing to see"
    assert said(Sight(True, (digits(A),), A, A, ("jax",)), [A]) == []
