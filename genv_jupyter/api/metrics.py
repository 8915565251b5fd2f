"""Metrics for Prometheus: of devices, environments, the queue, rules and attaches.

A broker tells them at its socket, and Jupyter servers on their ``/metrics``. Labels are a device's
UUID and index, states, rules and actions: no names of users or notebooks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import get_args

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from genv_jupyter.events import Event, Figures
from genv_jupyter.model import Device, Environment, EnvironmentState, QueueTicket

MEDIA = CONTENT_TYPE_LATEST
_LABELS = ("uuid", "index")


def families(
    devices: Iterable[Device],
    environments: Iterable[Environment],
    queue: Iterable[QueueTicket],
    figures: Figures | None,
) -> Iterator[Metric]:
    """Return everything that a broker knows, as a scrape wants it.

    Parameters
    ----------
    figures
        What it has counted; ``None`` where that was not told.
    """
    yield from _of_devices(tuple(devices))
    states = Counter(environment.state for environment in environments)
    gauge = GaugeMetricFamily("genv_environments", "GPU environments by state.", labels=["state"])
    for state in get_args(EnvironmentState):
        gauge.add_metric([state], states[state])
    yield gauge
    yield GaugeMetricFamily(
        "genv_queue_length",
        "Requests that wait in the queue.",
        value=sum(ticket.state == "waiting" for ticket in queue),
    )
    if figures is not None:
        yield from _counted(figures)


def page(known: Event) -> bytes:
    """Return what a broker knows as the text that Prometheus reads."""

    class Known(Collector):
        def collect(self) -> Iterator[Metric]:
            return families(known.devices, known.environments, known.queue or (), known.figures)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Known())
    return generate_latest(registry)


def _counted(figures: Figures) -> Iterator[Metric]:
    counts = tuple(accumulate(figures.attaches))
    yield HistogramMetricFamily(
        "genv_attach_duration_seconds",
        "Time that an attach, refused or not, took in the broker.",
        buckets=list(zip((*map(str, figures.bounds), "+Inf"), counts, strict=True)),
        sum_value=figures.attach_seconds,
    )
    actions = CounterMetricFamily(
        "genv_rule_actions", "Steps that rules have taken.", labels=["rule", "action"]
    )
    for it in figures.rules:
        actions.add_metric([it.rule, it.action], it.count)
    yield actions


def _of_devices(devices: tuple[Device, ...]) -> Iterator[Metric]:
    """Return the gauges of devices; what is unknown of one is left out, and no zero."""
    for name, (meaning, read) in _GAUGES.items():
        gauge = GaugeMetricFamily(f"genv_gpu_{name}", meaning, labels=_LABELS)
        for device in devices:
            value = read(device)
            if value is not None:
                index = "" if device.index is None else str(device.index)
                gauge.add_metric([device.uuid, index], value)
        yield gauge


def _part(value: int | None, whole: int) -> float | None:
    return None if value is None else value / whole


_GAUGES: dict[str, tuple[str, Callable[[Device], float | None]]] = {
    "memory_bytes": ("Memory of the device.", lambda it: it.memory_total),
    "memory_usable_bytes": (
        "Memory of the device that can be granted.",
        lambda it: it.memory_usable,
    ),
    "memory_used_bytes": ("Memory in use, by whomever.", lambda it: it.memory_used),
    "memory_granted_bytes": (
        "Memory granted to environments.",
        lambda it: sum(grant.memory for grant in it.grants),
    ),
    "memory_external_bytes": (
        "Memory in use by processes of no environment.",
        lambda it: it.external_memory,
    ),
    "memory_environments_bytes": (
        "Memory in use by processes of environments.",
        lambda it: it.environments_memory,
    ),
    "memory_unattributed_bytes": (
        "Memory in use that no visible process explains.",
        lambda it: it.unattributed_memory,
    ),
    "temperature_celsius": ("Temperature of the device.", lambda it: it.temperature),
    "power_watts": ("Power that the device takes.", lambda it: _part(it.power, 1000)),
    "uncorrected_memory_errors": (
        "Memory errors that could not be corrected since the driver was loaded.",
        lambda it: it.ecc_errors,
    ),
    "memory_utilization_ratio": (
        "Part of the time in which memory of the device was read or written, 0 to 1.",
        lambda it: _part(it.memory_utilization, 100),
    ),
    "utilization_ratio": (
        "Part of the time in which the device computed, 0 to 1.",
        lambda it: _part(it.utilization, 100),
    ),
    "healthy": ("Whether the device can be read and used.", lambda it: it.health == "ok"),
    "environments": ("Environments with a grant on the device.", lambda it: len(it.grants)),
    "draining_grants": (
        "Grants that were given back and whose memory is still held.",
        lambda it: sum(grant.state == "draining" for grant in it.grants),
    ),
    "simulated": ("Whether the device is simulated.", lambda it: it.simulated),
}
