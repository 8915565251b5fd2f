"""``%gpu quota``: what the caller may have, has, and has left."""

from __future__ import annotations

from genv_jupyter.kernel.document import Block, Table, Text, Title
from genv_jupyter.kernel.views import View
from genv_jupyter.quotas import QuotaUse, QuotaView
from genv_jupyter.units import format_duration, format_memory

_NAMES = {
    "devices": "devices",
    "fraction": "of one shared device",
    "memory": "memory",
    "environments": "environments",
    "queue": "places in the queue",
    "lease": "lease",
    "hours_day": "GPU hours today",
    "hours_week": "GPU hours this week",
    "hours_month": "GPU hours this month",
}


class QuotaPage(View):
    """Somebody's quota, a line for each quantity that is bounded or used."""

    def __init__(self, quota: QuotaView) -> None:
        self.quota = quota

    def blocks(self) -> list[Block]:
        """Return the page."""
        title = Title(f"GPU quota of {self.quota.user}")
        shown = [it for it in self.quota.quantities if it.limit is not None or it.used]
        if not any(it.limit is not None for it in shown):
            used = [Text(f"Used now: {_used(shown)}.")] if shown else []
            return [title, Text("Nothing is bounded."), *used, *self._guarantees()]
        rows = tuple(self._row(it) for it in shown)
        heads = ("", "used", "of", "left", "rule", "more comes")
        return [title, Table(heads, rows), *self._guarantees()]

    def _guarantees(self) -> list[Block]:
        return [
            Text(f"Kept for the group {it.group}: {it.devices:g} GPUs, {it.used:g} in use.")
            for it in self.quota.guarantees
        ]

    def _row(self, it: QuotaUse) -> tuple[str, ...]:
        reset = "" if it.reset is None or it.limit is None else _time(it)
        return (
            _NAMES[it.quantity],
            _value(it, it.used),
            "no bound" if it.limit is None else _value(it, it.limit),
            _value(it, it.left),
            it.rule or "",
            reset,
        )


def _time(it: QuotaUse) -> str:
    return "" if it.reset is None else f"{it.reset.astimezone():%Y-%m-%d %H:%M}"


def _value(it: QuotaUse, value: float | None) -> str:
    if value is None:
        return ""
    if it.quantity == "memory":
        return format_memory(int(value))
    return format_duration(value) if it.quantity == "lease" else f"{value:.4g}"


def _used(shown: list[QuotaUse]) -> str:
    return ", ".join(f"{_value(it, it.used)} {_NAMES[it.quantity]}" for it in shown)
