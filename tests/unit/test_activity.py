"""What of a GPU counts as activity of a Jupyter server: work, and never possession."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from genv_jupyter.model import Device, EnvironmentUsage, GrantUsage, KernelState
from genv_jupyter.server.activity import works

GIB = 2**30
NOW = datetime.now(UTC)


def usage(**more: Any) -> EnvironmentUsage:
    known = {
        "device": "GPU-1",
        "memory": 12 * GIB,
        "memory_used": 4 * GIB,
        "memory_peak": None,
        "peak_since": None,
        "seconds_used": None,
        "since": NOW,
        "utilization": 90,
        "utilization_mean": 90,
        "utilization_max": 90,
        "utilization_seconds": 60,
    }
    grant = GrantUsage(**{**known, **more})
    return EnvironmentUsage(environment="a", at=NOW, simulated=False, grants=(grant,))


def device(**more: Any) -> Device:
    known = {
        "uuid": "GPU-1",
        "index": 0,
        "name": None,
        "kind": "gpu",
        "parent": None,
        "memory_total": 24 * GIB,
        "memory_usable": 24 * GIB,
        "memory_used": 4 * GIB,
        "utilization": 90,
        "health": "ok",
        "simulated": False,
        "grants": (),
        "external_memory": 0,
        "unattributed_memory": 0,
        "environments_memory": 4 * GIB,
    }
    return Device(**{**known, **more})


@pytest.mark.parametrize(
    ("state", "own", "around", "counts"),
    [
        ("busy", {}, {}, True),
        ("idle", {}, {}, True),  # a thread of its own computes
        ("idle", {"utilization": 0}, {}, True),  # between two looks it did
        ("busy", {"utilization": 0, "utilization_max": 0}, {}, False),
        ("idle", {"memory_used": 0}, {}, False),
        ("busy", {"memory_used": 0}, {}, False),  # somebody else computes there
        ("busy", {"memory_used": None}, {}, False),
        ("busy", {"utilization": None, "utilization_max": None}, {}, False),
        ("idle", {}, {"environments_memory": 9 * GIB}, False),  # it may be another's work
        ("busy", {}, {"environments_memory": 9 * GIB}, True),
        ("idle", {}, {"external_memory": GIB}, False),
        ("idle", {}, {"environments_memory": None}, False),
    ],
)
def test_work_counts_and_possession_does_not(
    state: KernelState, own: dict[str, Any], around: dict[str, Any], counts: bool
) -> None:
    assert works(usage(**own), state, {"GPU-1": device(**around)}) is counts


def test_a_device_that_is_gone_is_nobodys_work() -> None:
    assert not works(usage(), "idle", {})
