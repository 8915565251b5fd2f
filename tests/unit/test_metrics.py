"""Metrics: what is heard is told, what is not is left out, and labels are few."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from genv_jupyter.errors import all_errors
from genv_jupyter.model import Event
from genv_jupyter.server.events import Hub
from genv_jupyter.server.metrics import OTHER, Metrics
from tests.unit.test_magic_views import GIB, UUIDS, device, environment, held

ROOT = Path(__file__).parents[2]
NAME = r"\bgenv_[a-z_]+"
DASHBOARD = ROOT / "examples/grafana/genv-jupyter.json"


@pytest.fixture
def metrics() -> Metrics:
    made = Metrics(Hub(), CollectorRegistry())
    made.start()
    made.start()
    return made


def hear(metrics: Metrics) -> None:
    devices = (
        device(0, grants=(held(name="secret.ipynb", user="ada", memory=GIB, state="draining"),)),
        msgspec.structs.replace(device(1), utilization=None, memory_used=None),
    )
    metrics.hub.publish(
        Event(revision=1, snapshot=True, devices=devices, environments=(environment(),))
    )


def told(metrics: Metrics) -> str:
    return generate_latest(metrics.registry).decode()


def test_devices_are_told_and_names_are_not(metrics: Metrics) -> None:
    hear(metrics)
    text = told(metrics)
    first = f'{{index="0",uuid="{UUIDS[0]}"}}'
    assert f"genv_gpu_memory_granted_bytes{first} {float(GIB):g}".split(" ")[0] in text
    assert metrics.registry.get_sample_value(
        "genv_gpu_memory_granted_bytes", {"uuid": UUIDS[0], "index": "0"}
    ) == float(GIB)
    assert f"genv_gpu_draining_grants{first} 1.0" in text
    assert "secret" not in text and "ada" not in text
    labels = set(re.findall(r'(\w+)="', text))
    assert labels == {"uuid", "index", "state", "le"}


def test_what_is_unknown_is_left_out(metrics: Metrics) -> None:
    hear(metrics)
    second = {"uuid": UUIDS[1], "index": "1"}
    assert metrics.registry.get_sample_value("genv_gpu_utilization_ratio", second) is None
    assert metrics.registry.get_sample_value("genv_gpu_memory_used_bytes", second) is None
    assert metrics.registry.get_sample_value("genv_gpu_environments", second) == 0


def test_without_a_broker_nothing_old_is_told(metrics: Metrics) -> None:
    hear(metrics)
    metrics.hub.lose()
    text = told(metrics)
    assert "genv_broker_up 0.0" in text
    assert "genv_gpu" not in text and "genv_environments" not in text


def test_attaches_are_timed_and_refusals_counted_by_known_codes(metrics: Metrics) -> None:
    metrics.answered("PUT", "environments/a", 200, b"{}", 0.02)
    metrics.answered("GET", "environments/a", 200, b"{}", 0.02)
    metrics.answered("PUT", "environments/a", 409, b'{"code": "no_capacity"}', 0.02)
    for body in (b'{"code": "made up"}', b"<html>", b"[]"):
        metrics.answered("GET", "devices", 500, body, 0.02)
    get = metrics.registry.get_sample_value
    assert get("genv_attach_duration_seconds_count") == 2
    assert get("genv_refusals_total", {"code": "no_capacity"}) == 1
    assert get("genv_refusals_total", {"code": OTHER}) == 3
    assert OTHER not in all_errors()


def test_a_server_that_ends_leaves_nothing_behind(metrics: Metrics) -> None:
    other = Metrics(Hub(), metrics.registry)
    other.start()
    metrics.close()
    metrics.close()
    assert told(metrics).count("# TYPE genv_broker_up") == 1
    other.close()
    assert told(metrics) == ""


def families(metrics: Metrics) -> set[str]:
    hear(metrics)
    metrics.refused("no_capacity")
    return set(re.findall(r"^# TYPE (genv_\w+) ", told(metrics), re.M)) - {
        "genv_attach_duration_seconds_created"
    }


def test_the_page_has_every_metric(metrics: Metrics) -> None:
    text = (ROOT / "docs/monitoring.md").read_text()
    assert set(re.findall(rf"^\| `({NAME})` \|", text, re.M)) == families(metrics)


def test_the_dashboard_has_only_metrics_that_exist(metrics: Metrics) -> None:
    exist = families(metrics)
    named = set(re.findall(NAME, DASHBOARD.read_text()))
    assert len(named) > 8
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in named} <= exist
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_sensors_are_told_in_base_units_and_left_out_where_a_card_has_none(
    metrics: Metrics,
) -> None:
    warm = msgspec.structs.replace(
        device(0), temperature=61, power=212_500, memory_utilization=40, ecc_errors=2
    )
    metrics.hub.publish(Event(revision=1, snapshot=True, devices=(warm, device(1))))
    labels = {"uuid": UUIDS[0], "index": "0"}
    found = {
        name: metrics.registry.get_sample_value(f"genv_gpu_{name}", labels)
        for name in ("temperature_celsius", "power_watts", "memory_utilization_ratio")
    }
    assert found == {
        "temperature_celsius": 61,
        "power_watts": 212.5,
        "memory_utilization_ratio": 0.4,
    }
    assert told(metrics).count("genv_gpu_temperature_celsius{") == 1
    assert told(metrics).count("genv_gpu_uncorrected_memory_errors{") == 1
