"""Metrics for Prometheus, on the Jupyter server's own ``/metrics``.

A scrape reads what the event stream has brought: it asks nobody and waits for nothing. What the
broker tells of itself is in ``api.metrics``; what this server was answered comes to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec
from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from genv_jupyter.api.metrics import families
from genv_jupyter.errors import all_errors
from genv_jupyter.server.events import Hub

OTHER = "other"


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

    def answered(self, status: int, body: bytes) -> None:
        """Count an answer of the broker."""
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
        hub = self.hub
        yield GaugeMetricFamily(
            "genv_broker_up",
            "Whether this server hears the GPU broker; without it there are no figures of devices.",
            value=float(hub.known),
        )
        if hub.known:
            yield from families(hub.devices, hub.environments, hub.queue, hub.figures)
        refusals = CounterMetricFamily(
            "genv_refusals",
            "Requests over this server's REST API that were refused, by error code.",
            labels=["code"],
        )
        for code, count in sorted(self._refusals.items()):
            refusals.add_metric([code], count)
        yield refusals
