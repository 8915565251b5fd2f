"""Metrics: what is heard is told, what is not is left out, and labels are few."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from genv_jupyter.api.metrics import page
from genv_jupyter.errors import all_errors
from genv_jupyter.events import Event, Figures, RuleActions
from genv_jupyter.model import QueueTicket
from genv_jupyter.server.events import Hub
from genv_jupyter.server.metrics import OTHER, Metrics
from tests.unit.brokers import HALF, bench
from tests.unit.test_magic_views import GIB, UUIDS, device, environment, held

ROOT = Path(__file__).parents[2]
NAME = r"\bgenv_[a-z_]+"
LE = ("0.1", "1.0", "+Inf")
DASHBOARD = ROOT / "examples/grafana/genv-jupyter.json"


FIGURES = Figures(
    bounds=(0.1, 1.0),
    attaches=(3, 2, 1),
    attach_seconds=6.5,
    rules=(RuleActions(rule="cap", action="kill", count=2),),
)


def ticket(state: Literal["waiting", "granted"]) -> QueueTicket:
    return QueueTicket(
        id="t",
        environment="e",
        user="ada",
        name="secret.ipynb",
        request=None,
        state=state,
        position=1,
        since=datetime.now(UTC),
        until=None,
        held=(),
        expected=None,
        guess=None,
        message="First in the queue.",
    )


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
        Event(
            revision=1,
            snapshot=True,
            devices=devices,
            environments=(environment(),),
            queue=(ticket("waiting"), ticket("waiting"), ticket("granted")),
            figures=FIGURES,
        )
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
    assert labels == {"uuid", "index", "state", "le", "rule", "action"}


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


def test_what_the_broker_has_counted_is_told(metrics: Metrics) -> None:
    hear(metrics)
    get = metrics.registry.get_sample_value
    buckets = [get("genv_attach_duration_seconds_bucket", {"le": it}) for it in LE]
    assert buckets == [3, 5, 6]
    assert get("genv_attach_duration_seconds_count") == 6
    assert get("genv_attach_duration_seconds_sum") == 6.5
    assert get("genv_rule_actions_total", {"rule": "cap", "action": "kill"}) == 2
    assert get("genv_queue_length") == 2
    later = msgspec.structs.replace(FIGURES, attaches=(4, 2, 1))
    metrics.hub.publish(Event(revision=1, figures=later))
    assert get("genv_attach_duration_seconds_count") == 7


class Browser:
    def __init__(self, heard: list[str]) -> None:
        self.send = heard.append

    def end(self) -> None: ...


def test_browsers_hear_nothing_of_what_was_counted(metrics: Metrics) -> None:
    heard: list[str] = []
    metrics.hub.join(Browser(heard), None)
    hear(metrics)
    metrics.hub.publish(Event(revision=1, figures=FIGURES))
    metrics.hub.join(Browser(heard), None)
    assert len(heard) == 2 and all('"figures":null' in it for it in heard)


def test_refusals_are_counted_by_known_codes(metrics: Metrics) -> None:
    metrics.answered(200, b"{}")
    metrics.answered(409, b'{"code": "no_capacity"}')
    for body in (b'{"code": "made up"}', b"<html>", b"[]"):
        metrics.answered(500, body)
    get = metrics.registry.get_sample_value
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
    return set(re.findall(r"^# TYPE (genv_\w+) ", told(metrics), re.M))


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


def test_a_broker_tells_the_same_of_itself(metrics: Metrics, tmp_path: Path) -> None:
    with bench(tmp_path) as desk:
        kernel = desk.kernel("secret.ipynb")
        kernel.attach(HALF)
        text = page(desk.broker.snapshot(desk.me)).decode()
    names = set(re.findall(r"^# TYPE (genv_\w+) ", text, re.M))
    assert names == families(metrics) - {"genv_broker_up", "genv_refusals_total"}
    assert "genv_attach_duration_seconds_count 1.0" in text
    assert "secret" not in text and desk.me.name not in text
