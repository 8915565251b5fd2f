"""``%gpu usage``: what is really used of what is granted, and one line of advice."""

from __future__ import annotations

from collections.abc import Sequence

from genv_jupyter.advice import NO_GRANT
from genv_jupyter.kernel import words
from genv_jupyter.kernel.document import Block, Fill, Meter, Text, Title
from genv_jupyter.kernel.session import Session
from genv_jupyter.kernel.views import View
from genv_jupyter.model import Device, Environment, EnvironmentUsage, Grant, GrantUsage
from genv_jupyter.units import format_duration, format_memory


class UsageView(View):
    """What is used of each grant, as one reading saw it; ``usage`` has the numbers."""

    def __init__(
        self,
        environment: Environment | None,
        usage: EnvironmentUsage | None,
        devices: Sequence[Device],
        *,
        terminal: bool = False,
    ) -> None:
        self.environment = environment
        self.usage = usage
        self.devices = tuple(devices)
        self.terminal = terminal
        self.advice = NO_GRANT if usage is None else usage.advice

    def blocks(self) -> list[Block]:
        here = words.here(self.environment, self.terminal)
        if self.usage is None or not self.usage.grants:
            return [Title(f"{here} has no grant."), Text(self.advice, "plain", 2)]
        mark = "SIMULATED" if self.usage.simulated else ""
        found: list[Block] = [Title(f"{here}: used of what it has", mark)]
        for grant in self.usage.grants:
            found += self._grant(grant)
        return [*found, Text(self.advice, "plain", 2)]

    def _grant(self, usage: GrantUsage) -> list[Block]:
        label = words.device_label(self._device(usage.device), usage.device)
        grant = self._granted(usage.device)
        state = ", draining" if grant is not None and grant.state == "draining" else ""
        return [
            Title(label + state, small=True),
            meter(usage),
            Text(device_load(usage), "dim", 2),
        ]

    def _device(self, uuid: str) -> Device | None:
        return next((device for device in self.devices if device.uuid == uuid), None)

    def _granted(self, uuid: str) -> Grant | None:
        grants = () if self.environment is None else self.environment.grants
        return next((grant for grant in grants if grant.device == uuid), None)


def meter(usage: GrantUsage) -> Meter:
    """Return the bar of one grant, with used, cap and peak beside it."""
    parts: tuple[tuple[Fill, float], ...] = ()
    if usage.memory_used is None:
        said = f"use unknown, of {format_memory(usage.memory)}"
    else:
        parts = (("mine", min(1.0, usage.memory_used / max(1, usage.memory))),)
        said = f"{words.in_use(usage.memory_used)} of {format_memory(usage.memory)}"
    return Meter(parts, f"{said}, {peak(usage)}")


def peak(usage: GrantUsage) -> str:
    """Say the peak, and since when it is known where that is not the grant's beginning."""
    if usage.memory_peak is None:
        return "peak unknown"
    said = f"peak {words.in_use(usage.memory_peak)}"
    if usage.peak_since is None or (usage.peak_since - usage.since).total_seconds() < 5:
        return said
    return f"{said} (seen since {words.since(usage.peak_since)})"


def device_load(usage: GrantUsage) -> str:
    """Say how busy the device is: by whomever, which a share of it cannot tell apart."""
    if usage.utilization is None:
        return "How busy the device is, the driver does not say."
    said = f"The device is {usage.utilization} % busy, whoever uses it"
    if usage.utilization_mean is None or not usage.utilization_seconds:
        return f"{said}."
    return (
        f"{said}; {usage.utilization_mean} % on average and {usage.utilization_max} % at most in "
        f"the last {format_duration(usage.utilization_seconds)}."
    )


def look(session: Session) -> UsageView:
    """Return what this process really uses."""
    environment = session.environment()
    return UsageView(
        environment,
        None if environment is None else session.client.usage(environment.id),
        session.devices(environment),
        terminal=session.terminal,
    )
