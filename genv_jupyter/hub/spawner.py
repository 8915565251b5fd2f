"""Spawners whose users choose a GPU before their server starts.

``GpuSpawnerMixin`` stands before any spawner class; where a class is not wanted, the functions
``pre_spawn_hook``, ``post_stop_hook``, ``options_form`` and ``options_from_form`` do the same.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any

from jupyterhub.spawner import LocalProcessSpawner, SimpleLocalProcessSpawner
from jupyterhub.utils import maybe_future
from traitlets import default
from traitlets.config import LoggingConfigurable

from genv_jupyter.hub.nodes import device_allow
from genv_jupyter.hub.reservations import OPTION, GpuReservations, settings_of
from genv_jupyter.model import Environment
from genv_jupyter.reserving import RESERVATION
from genv_jupyter.units import format_memory

if TYPE_CHECKING:
    from jupyterhub.spawner import Spawner as Base
else:  # a spawner class has to start and stop something by itself
    Base = LoggingConfigurable


class GpuSpawnerMixin(Base):  # type: ignore[misc]
    """Reserves what the user has chosen before the server starts, and frees it when it has stopped.

    Attributes
    ----------
    gpu
        The settings (``c.GpuReservations``).
    gpu_reservation
        Id of what is reserved for this server, if anything is.
    gpu_devices
        UUIDs of the devices that are reserved.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.gpu_reservation: str | None = None
        self.gpu_devices: tuple[str, ...] = ()
        self._gpu_said: asyncio.Queue[str] = asyncio.Queue()
        super().__init__(*args, **kwargs)

    @default("apply_user_options")
    def _default_apply_user_options(self) -> Any:
        return lambda spawner, options: None  # it is looked at when something is reserved

    @property
    def gpu(self) -> GpuReservations:
        return settings_of(self)

    # -- choosing -------------------------------------------------------------------------------

    async def get_options_form(self) -> str:
        """Return the form of the spawner itself, and ours."""
        return (await super().get_options_form() or "") + await self.gpu.form(self)

    def run_options_from_form(self, form_data: dict[str, list[str]]) -> Any:
        """Return what the spawner itself makes of a form, and the user's choice."""
        return self._with_choice(form_data, super().run_options_from_form)

    def options_from_query(self, query_data: dict[str, list[str]]) -> Any:
        """Return the same for the arguments of a query."""
        return self._with_choice(query_data, super().options_from_query)

    def _with_choice(self, data: dict[str, list[str]], rest: Any) -> Any:
        others = {name: value for name, value in data.items() if name != OPTION}
        choice = options_from_form(data)
        found = rest(others)
        if inspect.isawaitable(found):
            return _joined(found, choice)
        return {**found, **choice}

    # -- reserving ------------------------------------------------------------------------------

    async def run_pre_spawn_hook(self) -> None:
        """Run the hook that is configured; then reserve what the user has chosen."""
        await maybe_future(super().run_pre_spawn_hook())
        self._gpu_said = asyncio.Queue()
        _, choice = await self.gpu.chosen(self)
        self._gpu_said.put_nowait(f"{choice.label} is being reserved.")
        made = await self.gpu.reserve(self)
        self.gpu_reservation = None if made is None else made.id
        self.gpu_devices = () if made is None else tuple(it.device for it in made.grants)
        if choice.request is not None:
            self._gpu_said.put_nowait(_reserved(made))

    async def run_post_stop_hook(self) -> None:
        """Free what was reserved; then run the hook that is configured."""
        if self.gpu_reservation is not None:
            await self.gpu.free(self, self.gpu_reservation)
            self.gpu_reservation, self.gpu_devices = None, ()
        await maybe_future(super().run_post_stop_hook())

    def get_env(self) -> Any:
        """Return the variables of the server, the id of what is reserved for it among them."""
        found: dict[str, str] = super().get_env()
        found.pop(RESERVATION, None)
        if self.gpu_reservation is not None:
            found[RESERVATION] = self.gpu_reservation
        return found

    async def progress(self) -> AsyncIterator[dict[str, Any]]:
        """Tell what is being reserved, beside what the spawner itself tells."""
        while not self._gpu_said.empty():
            yield {"progress": 20, "message": self._gpu_said.get_nowait()}
        async for event in super().progress():
            while not self._gpu_said.empty():
                yield {"message": self._gpu_said.get_nowait()}
            yield event

    # -- what outlives the Hub ------------------------------------------------------------------

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over what an earlier Hub has reserved."""
        super().load_state(state)
        self.gpu_reservation = state.get("gpu_reservation")
        self.gpu_devices = tuple(state.get("gpu_devices", ()))

    def get_state(self) -> Any:
        """Return what the next Hub has to know."""
        found = super().get_state()
        if self.gpu_reservation is not None:
            found["gpu_reservation"] = self.gpu_reservation
            found["gpu_devices"] = list(self.gpu_devices)
        return found


class GpuLocalProcessSpawner(GpuSpawnerMixin, LocalProcessSpawner):  # type: ignore[misc]
    """Servers as the Unix users that the users of the Hub are."""


class GpuSimpleLocalProcessSpawner(GpuSpawnerMixin, SimpleLocalProcessSpawner):  # type: ignore[misc]
    """Servers that all have the Hub's own uid: set ``c.GpuReservations.users = 'hub'``."""


class GpuSystemdMixin(GpuSpawnerMixin):
    """For ``SystemdSpawner``: the server's unit may open the devices that are reserved, no other.

    A server for which nothing is reserved can open none. Kernels can use no more than what was
    reserved then, whatever they attach.
    """

    unit_extra_properties: Any

    async def start(self) -> Any:
        allow = device_allow(self.gpu_devices)
        own = self.unit_extra_properties
        self.unit_extra_properties = {**own, "DevicePolicy": "closed", "DeviceAllow": allow}
        try:
            return await super().start()
        finally:
            self.unit_extra_properties = own

    def _expand_user_vars(self, value: Any) -> Any:
        """Expand lists too: the spawner takes them, and expands strings alone."""
        if isinstance(value, list):
            return [self._expand_user_vars(one) for one in value]
        return super()._expand_user_vars(value)


class GpuDockerMixin(GpuSpawnerMixin):
    """For ``DockerSpawner``: the container has the devices that are reserved, and no other."""

    extra_host_config: Any

    async def create_object(self) -> Any:
        own = self.extra_host_config
        found = await maybe_future(own(self) if callable(own) else own)
        self.extra_host_config = {**found, **docker_devices(self)}
        try:
            return await super().create_object()
        finally:
            self.extra_host_config = own


def docker_devices(spawner: Any) -> dict[str, Any]:
    """Return the part of a container's ``host_config`` that gives it the reserved devices."""
    devices = reserved_devices(spawner)
    if not devices:
        return {}
    from docker.types import DeviceRequest

    return {"device_requests": [DeviceRequest(device_ids=devices, capabilities=[["gpu"]])]}


def reserved_devices(spawner: Any) -> list[str]:
    """Return the UUIDs of the devices that are reserved for a spawner's server."""
    found: Iterable[str] = getattr(spawner, "gpu_devices", ())
    return list(found)


# -- without a class -------------------------------------------------------------------------------


async def pre_spawn_hook(spawner: Any) -> None:
    """Reserve what the user has chosen (``c.Spawner.pre_spawn_hook``)."""
    made = await settings_of(spawner).reserve(spawner)
    spawner.gpu_devices = () if made is None else tuple(it.device for it in made.grants)
    environment = {it: value for it, value in spawner.environment.items() if it != RESERVATION}
    spawner.environment = environment | ({} if made is None else {RESERVATION: made.id})


async def post_stop_hook(spawner: Any) -> None:
    """Free what was reserved (``c.Spawner.post_stop_hook``)."""
    made = spawner.environment.get(RESERVATION)
    await settings_of(spawner).free(spawner, made if isinstance(made, str) else None)


async def options_form(spawner: Any) -> str:
    """Return the form (``c.Spawner.options_form``)."""
    return await settings_of(spawner).form(spawner)


def options_from_form(form_data: dict[str, list[str]]) -> dict[str, Any]:
    """Return what was chosen in the form (``c.Spawner.options_from_form``)."""
    values = form_data.get(OPTION)
    return {OPTION: values[-1]} if values else {}


def _reserved(made: Environment | None) -> str:
    if made is None:
        return "The GPU daemon does not answer: the server starts without a reservation."
    total = sum(grant.memory for grant in made.grants)
    number = len(made.grants)
    what = f"{number} GPU{'' if number == 1 else 's'}, {format_memory(total)} of memory"
    return f"Reserved: {what}."


async def _joined(found: Any, choice: dict[str, Any]) -> dict[str, Any]:
    return {**await found, **choice}
