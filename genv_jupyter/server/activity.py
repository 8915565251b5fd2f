"""Work on a GPU counts as activity of the Jupyter server, for whoever culls idle ones.

A cell that trains for hours and prints nothing is no activity for Jupyter. What counts here is work
and not possession: a process of a kernel is on a device that is granted to it, the device computes,
and it is the kernel's own work as far as can be told: nobody else is on the device, or the kernel
executes something.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from genv_jupyter.errors import GpuError
from genv_jupyter.model import Device, EnvironmentUsage, GrantUsage, KernelState

if TYPE_CHECKING:
    from genv_jupyter.server.kernels import ServerHost

SOURCE = "genv_jupyter"
"""The name of ours among what Jupyter knows of activity."""


class Activity:
    """Looks again and again at what the kernels of a server use.

    Parameters
    ----------
    activities
        When something was active last, by name: ``last_activity_times`` of the server's settings.
    seconds
        Between two looks. The broker remembers for five minutes how devices were used.
    """

    def __init__(self, host: ServerHost, activities: dict[str, datetime], seconds: float) -> None:
        self.host = host
        self.activities = activities
        self.seconds = seconds

    async def watch(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await asyncio.sleep(self.seconds)
            reports = self.host.reports
            states = {kernel.id: kernel.state for kernel in reports.kernels.values() if kernel.pid}
            if not states:
                continue
            try:
                works = await asyncio.wrap_future(reports.link.submit(partial(self._works, states)))
            except GpuError as error:  # the broker is down: nothing is known of the present
                self.host.log.debug("Whether GPUs are used is not known: %s", error)
                continue
            if works:
                self.activities[SOURCE] = datetime.now(UTC)

    def _works(self, states: Mapping[str, KernelState]) -> bool:
        """Ask the broker whether a kernel works; in a thread of the link."""
        client = self.host.reports.link.reports
        holders = [
            environment.id
            for environment in client.environments()
            if environment.id in states and environment.grants
        ]
        if not holders:
            return False
        devices = {device.uuid: device for device in client.devices()}
        return any(works(client.usage(one), states[one], devices) for one in holders)


def works(usage: EnvironmentUsage, state: KernelState, devices: Mapping[str, Device]) -> bool:
    """Say whether the environment of a kernel computes on one of its devices."""
    return any(
        _is_used(grant) and (state == "busy" or _alone(grant, devices.get(grant.device)))
        for grant in usage.grants
    )


def _is_used(grant: GrantUsage) -> bool:
    """Say whether a process is on the device, which computes or has in the last minutes."""
    return bool(grant.memory_used) and bool(grant.utilization or grant.utilization_max)


def _alone(grant: GrantUsage, device: Device | None) -> bool:
    """Say whether nobody else can be what makes a device compute."""
    if device is None or grant.memory_used is None or device.environments_memory is None:
        return False
    others = device.environments_memory - grant.memory_used
    return others <= 0 and not device.external_memory
