"""A host with very many devices and environments, as its event stream would tell of it.

Everything but the broker is real: the page, and the server that it comes from. Only the messages
of the stream are made here, from the types that travel.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import msgspec
from playwright.sync_api import Page, WebSocketRoute

from genv_jupyter.devices.simulated import simulated_uuid
from genv_jupyter.events import Event
from genv_jupyter.model import (
    BrokerHealth,
    Device,
    DeviceGrant,
    Environment,
    EnvironmentUsage,
    Grant,
    GrantUsage,
    Limit,
    Limits,
)

GIB = 2**30
TOTAL = 80 * GIB
BEGAN = datetime(2026, 1, 1, 8, tzinfo=UTC)
_NONE = Limit(strength="none")
_LIMITS = Limits(memory=_NONE, compute=_NONE, devices=_NONE)
_USERS = tuple(f"user-{number}" for number in range(1, 9))


class Crowd:
    """Devices and environments, some of which change.

    Parameters
    ----------
    devices, environments
        How many.
    seed
        Of what is drawn by chance.
    """

    def __init__(self, devices: int, environments: int, seed: int = 1) -> None:
        self._random = random.Random(seed)
        self._uuids = [simulated_uuid(index) for index in range(devices)]
        self._used = [0.0] * environments
        self._busy = [0] * devices
        self._revision = 0
        self.viewer: str | None = None

    def snapshot(self) -> Event:
        """Return everything."""
        return self._event(range(len(self._uuids)), range(len(self._used)), snapshot=True)

    def change(self, rows: int) -> Event:
        """Let so many environments use more or less, and tell of them and their devices."""
        chosen = self._random.sample(range(len(self._used)), rows)
        for number in chosen:
            self._used[number] = self._random.random()
        devices = sorted({number % len(self._uuids) for number in chosen})
        for device in devices:
            self._busy[device] = self._random.randrange(100)
        return self._event(devices, chosen, snapshot=False)

    def _event(
        self, devices: Sequence[int], environments: Sequence[int], *, snapshot: bool
    ) -> Event:
        self._revision += 1
        return Event(
            revision=self._revision,
            snapshot=snapshot,
            devices=tuple(self._device(number) for number in devices),
            environments=tuple(self._environment(number) for number in environments),
            usage=tuple(self._usage(number) for number in environments),
            health=self._health() if snapshot else None,
        )

    def _held(self) -> int:
        """Return what each environment holds: all of a device but an eighth is given out."""
        each = max(1, -(-len(self._used) // len(self._uuids)))
        return TOTAL * 7 // 8 // each

    def _name(self, number: int) -> str:
        return f"experiment-{number:04}.ipynb"

    def _user(self, number: int) -> str:
        return _USERS[number % len(_USERS)]

    def _since(self, number: int) -> datetime:
        return BEGAN + timedelta(minutes=number % 600)

    def _device(self, number: int) -> Device:
        held = range(number, len(self._used), len(self._uuids))
        return Device(
            uuid=self._uuids[number],
            index=number,
            name="NVIDIA H100 80GB HBM3",
            kind="gpu",
            parent=None,
            memory_total=TOTAL,
            memory_usable=TOTAL,
            memory_used=sum(int(self._used[one] * self._held()) for one in held),
            utilization=self._busy[number],
            health="ok",
            simulated=True,
            grants=tuple(
                DeviceGrant(
                    environment=str(one),
                    user=self._user(one),
                    name=self._name(one),
                    memory=self._held(),
                    compute=None,
                    exclusive=False,
                    state="granted",
                    since=self._since(one),
                )
                for one in held
            ),
            external_memory=0,
            unattributed_memory=0,
            temperature=40 + self._busy[number] // 3,
            power=1000 * (70 + 6 * self._busy[number]),
        )

    def _environment(self, number: int) -> Environment:
        return Environment(
            id=str(number),
            previous=None,
            user=self._user(number),
            kind="kernel",
            name=self._name(number),
            path=None,
            server=None,
            kernel_state="busy" if self._used[number] > 0.5 else "idle",
            idle_since=None if self._used[number] > 0.5 else self._since(number),
            request=None,
            pending=None,
            grants=(
                Grant(
                    device=self._uuids[number % len(self._uuids)],
                    memory=self._held(),
                    compute=None,
                    exclusive=False,
                    state="granted",
                    applied="live",
                    limits=_LIMITS,
                    since=self._since(number),
                ),
            ),
            state="active",
            applied="live",
            created=BEGAN,
            expires=None,
            cuda="initialized",
            reason=None,
        )

    def _usage(self, number: int) -> EnvironmentUsage:
        used = int(self._used[number] * self._held())
        return EnvironmentUsage(
            environment=str(number),
            at=BEGAN,
            simulated=True,
            grants=(
                GrantUsage(
                    device=self._uuids[number % len(self._uuids)],
                    memory=self._held(),
                    memory_used=used,
                    memory_peak=used,
                    peak_since=self._since(number),
                    seconds_used=60,
                    since=self._since(number),
                    utilization=None,
                    utilization_mean=None,
                    utilization_max=None,
                    utilization_seconds=None,
                ),
            ),
        )

    def _health(self) -> BrokerHealth:
        return BrokerHealth(
            version="",
            kind="host",
            pid=1,
            ledger="",
            simulated=True,
            driver=None,
            driver_version=None,
            devices=len(self._uuids),
            environments=len(self._used),
            revision=self._revision,
            user=self.viewer,
        )


class Stream:
    """The page's event stream, told by hand. Make it before the page is opened."""

    def __init__(self, page: Page, crowd: Crowd) -> None:
        self.page = page
        self.crowd = crowd
        self.sockets: list[WebSocketRoute] = []
        self.sent = 0
        page.route_web_socket("**/genv-jupyter/v1/events*", self._open)

    def tell(self, event: Event) -> None:
        """Send a message to the page."""
        self.sent += 1
        self.sockets[-1].send(msgspec.json.encode(event).decode())

    def _open(self, socket: WebSocketRoute) -> None:
        self.sockets.append(socket)
        socket.send(msgspec.json.encode(self.crowd.snapshot()).decode())
