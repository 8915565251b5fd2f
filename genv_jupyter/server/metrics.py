"""Metrics for Prometheus, on the Jupyter server's own ``/metrics``.

A scrape reads what the event stream has brought: it asks nobody and waits for nothing. Labels are a
device's UUID and index, states and error codes: no names of users or notebooks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import get_args

import msgspec
from prometheus_client import REGISTRY, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from genv_jupyter.errors import all_errors
from genv_jupyter.model import Device, EnvironmentState
from genv_jupyter.server.events import Hub

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Seconds: an attach takes some 10 ms, and some seconds where a daemon of MPS is started for it."""

OTHER = "other"
_LABELS = ("uuid", "index")


class _Refusal(msgspec.Struct):
    code: str = OTHER


class Metrics(Collector):
    """What one server knows of its devices, and how the broker answered it.

    Parameters
    ----------
    hub
        Where the last known state is.
    registry
        Where it is to be found by a scrape.
    """

    def __init__(self, hub: Hub, registry: CollectorRegistry = REGISTRY) -> None:
        self.hub = hub
        self.registry = registry
        self._registered = False
        self._refusals: Counter[str] = Counter()
        self._attach = Histogram(
            "genv_attach_duration_seconds",
            "Time until the broker answered an attach over this server's REST API.",
            buckets=BUCKETS,
            registry=None,
        )

    def start(self) -> None:
        """Let scrapes see this; again is nothing."""
        if not self._registered:
            self.registry.register(self)
            self._registered = True

    def close(self) -> None:
        """Leave the registry, which outlives a server."""
        if self._registered:
            self.registry.unregister(self)
            self._registered = False

    def answered(self, method: str, path: str, status: int, body: bytes, seconds: float) -> None:
        """Count an answer of the broker."""
        if method == "PUT" and path.startswith("environments/"):
            self._attach.observe(seconds)
        if status >= 400:
            try:
                code = msgspec.json.decode(body, type=_Refusal).code
            except msgspec.MsgspecError:
                code = OTHER
            self.refused(code)

    def refused(self, code: str) -> None:
        """Count a refusal; what is no code of ours is counted together."""
        self._refusals[code if code in all_errors() else OTHER] += 1

    def describe(self) -> Iterable[Metric]:
        """Return no names: two servers of one process may both be there."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Return everything, as a scrape wants it."""
        devices, environments = self.hub.devices, self.hub.environments
        yield GaugeMetricFamily(
            "genv_broker_up",
            "Whether this server hears the GPU broker; without it there are no figures of devices.",
            value=float(self.hub.known),
        )
        if self.hub.known:
            yield from _devices(devices)
            states = Counter(environment.state for environment in environments)
            gauge = GaugeMetricFamily(
                "genv_environments", "GPU environments by state.", labels=["state"]
            )
            for state in get_args(EnvironmentState):
                gauge.add_metric([state], states[state])
            yield gauge
        yield from self._attach.collect()
        refusals = CounterMetricFamily(
            "genv_refusals",
            "Requests over this server's REST API that were refused, by error code.",
            labels=["code"],
        )
        for code, count in sorted(self._refusals.items()):
            refusals.add_metric([code], count)
        yield refusals


def _devices(devices: tuple[Device, ...]) -> Iterator[Metric]:
    """Return the gauges of devices; what is unknown of one is left out, and no zero."""
    for name, meaning, values in (
        (
            "genv_gpu_memory_bytes",
            "Memory of the device.",
            [device.memory_total for device in devices],
        ),
        (
            "genv_gpu_memory_usable_bytes",
            "Memory of the device that can be granted.",
            [device.memory_usable for device in devices],
        ),
        (
            "genv_gpu_memory_used_bytes",
            "Memory in use, by whomever.",
            [device.memory_used for device in devices],
        ),
        (
            "genv_gpu_memory_granted_bytes",
            "Memory granted to environments.",
            [sum(grant.memory for grant in device.grants) for device in devices],
        ),
        (
            "genv_gpu_memory_external_bytes",
            "Memory in use by processes of no environment.",
            [device.external_memory for device in devices],
        ),
        (
            "genv_gpu_memory_environments_bytes",
            "Memory in use by processes of environments.",
            [device.environments_memory for device in devices],
        ),
        (
            "genv_gpu_memory_unattributed_bytes",
            "Memory in use that no visible process explains.",
            [device.unattributed_memory for device in devices],
        ),
        (
            "genv_gpu_temperature_celsius",
            "Temperature of the device.",
            [device.temperature for device in devices],
        ),
        (
            "genv_gpu_power_watts",
            "Power that the device takes.",
            [None if it.power is None else it.power / 1000 for it in devices],
        ),
        (
            "genv_gpu_uncorrected_memory_errors",
            "Memory errors that could not be corrected since the driver was loaded.",
            [device.ecc_errors for device in devices],
        ),
        (
            "genv_gpu_memory_utilization_ratio",
            "Part of the time in which memory of the device was read or written, 0 to 1.",
            [
                None if it.memory_utilization is None else it.memory_utilization / 100
                for it in devices
            ],
        ),
        (
            "genv_gpu_utilization_ratio",
            "Part of the time in which the device computed, 0 to 1.",
            [None if it.utilization is None else it.utilization / 100 for it in devices],
        ),
        (
            "genv_gpu_healthy",
            "Whether the device can be read and used.",
            [int(device.health == "ok") for device in devices],
        ),
        (
            "genv_gpu_environments",
            "Environments with a grant on the device.",
            [len(device.grants) for device in devices],
        ),
        (
            "genv_gpu_draining_grants",
            "Grants that were given back and whose memory is still held.",
            [sum(grant.state == "draining" for grant in device.grants) for device in devices],
        ),
        (
            "genv_gpu_simulated",
            "Whether the device is simulated.",
            [int(device.simulated) for device in devices],
        ),
    ):
        gauge = GaugeMetricFamily(name, meaning, labels=_LABELS)
        for device, value in zip(devices, values, strict=True):
            if value is not None:
                index = "" if device.index is None else str(device.index)
                gauge.add_metric([device.uuid, index], value)
        yield gauge
