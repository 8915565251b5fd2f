"""What a Hub reserves for a server before it starts, and what it tells its users of that.

The Hub asks the host's GPU daemon on behalf of the user. It must administer GPUs there: as the
Unix user it runs as (``Access.admin_users``) on the daemon's socket, or by the token of a service
with the scope ``custom:genv-jupyter:admin`` on the Hub socket.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec
from jupyterhub.utils import maybe_future
from tornado import web
from traitlets import Callable, Dict, Enum, TraitError, Unicode, Union, default, validate
from traitlets.config import LoggingConfigurable

from genv_jupyter.api import rendezvous
from genv_jupyter.api.connection import refusal
from genv_jupyter.demand import demand_of
from genv_jupyter.errors import GpuError, UnknownEnvironment
from genv_jupyter.hub.upstream import Upstream
from genv_jupyter.model import Device, Environment, Request
from genv_jupyter.quotas import QuotaUse, QuotaView
from genv_jupyter.reserving import NewReservation
from genv_jupyter.units import format_memory

T = TypeVar("T")
OPTION = "gpu"
"""The name of the field in the form, and in ``user_options``."""
LONGEST_START = 3600


class GpuReservations(LoggingConfigurable):
    """What users of a Hub may choose before their server starts, and how it is reserved."""

    choices = Union(
        [Dict(), Callable()],
        help="What users may choose: by name the `label` and the `request` (`gpus`, `fraction`, "
        "`memory`, `devices`; None: nothing). Or a function of the spawner that returns that, and "
        "may be async. Where there is one choice alone nobody is asked.",
    ).tag(config=True)
    preselected = Unicode(
        "",
        help="Name of the choice that is selected until a user has chosen. Empty: the first.",
    ).tag(config=True)
    socket = Unicode(
        help="Path of the GPU daemon's socket, or of its Hub socket together with `token`. By "
        "default that of the host, as GENV_JUPYTER_HOST_SOCKET names it.",
    ).tag(config=True)
    token = Unicode(
        "",
        help="Token of a service of this Hub with the scope custom:genv-jupyter:admin, for the Hub "
        "socket. Empty: the daemon knows the Unix user that the Hub runs as.",
    ).tag(config=True)
    users = Enum(
        ["account", "hub"],
        "account",
        help="Who owns what is reserved: the account of the host that `owner` names ('account'), "
        "or the user of the Hub, whose servers talk to the Hub socket ('hub').",
    ).tag(config=True)
    owner = Callable(
        help="A function of the spawner that returns the name of the owner. By default the user's, "
        "or what a SystemdSpawner's `username_template` makes of it.",
    ).tag(config=True)
    when_down = Enum(
        ["refuse", "start without"],
        "refuse",
        help="What becomes of a server whose user wants a GPU while the daemon does not answer: it "
        "does not start ('refuse'), or it starts, and its kernels may attach what is free then "
        "('start without').",
    ).tag(config=True)

    @default("choices")
    def _default_choices(self) -> dict[str, Any]:
        return {
            "none": {"label": "No GPU", "request": None},
            "half": {"label": "Half a GPU", "request": {"fraction": 0.5}},
            "whole": {"label": "One GPU", "request": {"gpus": 1}},
        }

    @default("socket")
    def _default_socket(self) -> str:
        return rendezvous.host_socket() or rendezvous.HOST_SOCKET

    @default("owner")
    def _default_owner(self) -> Any:
        return owner_of

    @validate("choices")
    def _check_choices(self, proposal: Any) -> Any:
        value = proposal["value"]
        if not callable(value):
            _read(value)
        return value

    # -- choosing -------------------------------------------------------------------------------

    async def offered(self, spawner: Any) -> dict[str, Choice]:
        """Return what a user may choose."""
        found: Any = self.choices
        return _read(await maybe_future(found(spawner)) if callable(found) else found)

    async def form(self, spawner: Any) -> str:
        """Return the part of the Hub's form that is about GPUs; empty where nobody is asked."""
        offered = await self.offered(spawner)
        if len(offered) < 2:
            return ""
        chosen = (spawner.user_options or {}).get(OPTION)
        if not isinstance(chosen, str) or chosen not in offered:
            chosen = self.preselected if self.preselected in offered else next(iter(offered))
        rows = "".join(
            f'<div class="form-check"><input class="form-check-input" type="radio" name="{OPTION}" '
            f'id="genv-gpu-{number}" value="{escape(name)}"{" checked" if name == chosen else ""}>'
            f'<label class="form-check-label" for="genv-gpu-{number}">{escape(choice.label)}'
            "</label></div>"
            for number, (name, choice) in enumerate(offered.items())
        )
        said = "".join(f"<p>{escape(line)}</p>" for line in await self._outlook(spawner))
        return (
            f'<fieldset class="genv-jupyter mb-3"><legend class="fs-6">GPU</legend>{rows}'
            f'<div class="form-text">{said}</div></fieldset>'
        )

    async def _outlook(self, spawner: Any) -> list[str]:
        """Return what is free now, and what the user may have."""
        try:
            devices = await self._call("GET", "devices", list[Device])
            said = ["Free now: " + ("; ".join(map(free_on, devices)) or "nothing") + "."]
        except GpuError as error:
            self.log.warning("GPUs: %s", error)
            return [f"{error} What is free cannot be told."]
        try:
            name = _quoted(self.owner(spawner))
            quota = await self._call("GET", f"quota?user={name}", QuotaView)
        except GpuError as error:  # one who never called is not known yet, and no administrator
            self.log.info("GPUs: the quota of %s is not known: %s", spawner.user.name, error)
            return said
        bounds = [text for use in quota.quantities if (text := _bound(use))]
        return [*said, *([f"Of your quota is left: {', '.join(bounds)}."] if bounds else ())]

    async def chosen(self, spawner: Any) -> tuple[str, Choice]:
        """Return what a user has chosen, in the form or in a call of the Hub's API.

        Raises
        ------
        Refused
            It is none of what they may choose.
        """
        offered = await self.offered(spawner)
        name = (spawner.user_options or {}).get(OPTION)
        if name is None:
            name = self.preselected if self.preselected in offered else next(iter(offered))
        if not isinstance(name, str) or name not in offered:
            text = f"There is no GPU choice {str(name)[:64]!r} here. Say {' or '.join(offered)}."
            raise Refused(text, 400)
        return name, offered[name]

    # -- reserving ------------------------------------------------------------------------------

    async def reserve(self, spawner: Any) -> Environment | None:
        """Reserve what a user has chosen; ``None``: nothing is.

        Raises
        ------
        Refused
            With who holds what, and what to do, for the Hub's page.
        """
        _, choice = await self.chosen(spawner)
        if choice.request is None:
            return None
        hub = self.users == "hub"
        new = NewReservation(
            user=self.owner(spawner),
            realm="hub" if hub else "local",
            groups=tuple(group.name for group in spawner.user.groups) if hub else None,
            server=spawner.name,
            request=choice.request,
            within=min(LONGEST_START, int(spawner.start_timeout + spawner.http_timeout) + 30),
        )
        try:
            return await self._call("POST", "reservations", Environment, new)
        except GpuError as error:
            if error.status < 500:
                raise _told(error, choice) from None
            self.log.warning("GPUs for %s: %s", spawner.user.name, error)
            if self.when_down == "refuse":
                raise _told(error, choice) from None
            return None

    async def free(self, spawner: Any, reservation: str | None) -> None:
        """Free what was reserved for a server that has stopped, or never came.

        By its id alone: names are those of a user of the Hub and of an account, who may be two.
        Without one (the Hub was started anew, with hooks) the daemon sees the end itself.
        """
        if reservation is None:
            return
        try:
            await self._call("DELETE", f"environments/{_quoted(reservation)}", Any)
        except UnknownEnvironment:
            pass  # the daemon has seen the end of the server itself
        except GpuError as error:  # it sees the end of the server, or the deadline
            self.log.warning("GPUs of %s: %s", spawner.user.name, error)

    async def _call(self, method: str, path: str, kind: type[T], body: Any = None) -> T:
        upstream = Upstream(self.socket)
        data = b"" if body is None else msgspec.json.encode(body)
        try:
            answer = await upstream.call(self.token, method, path, data)
        finally:
            await upstream.close()
        if answer.status >= 400:
            raise refusal(answer.body, answer.status)
        return msgspec.json.decode(answer.body or b"null", type=kind)


class Choice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One choice: what it is called, and what it asks for."""

    label: str
    request: Request | None = None


def settings_of(spawner: Any) -> GpuReservations:
    """Return the settings of a spawner's Hub."""
    return GpuReservations(parent=spawner)


def owner_of(spawner: Any) -> str:
    """Return the name of the account that a spawner's servers run as."""
    template = getattr(spawner, "username_template", None)
    if isinstance(template, str) and template:
        return template.format(USERNAME=spawner.user.name, USERID=spawner.user.id)
    return str(spawner.user.name)


def free_on(device: Device) -> str:
    """Say what is free on a device."""
    label = device.uuid if device.index is None else f"GPU {device.index}"
    if device.memory_usable is None or device.health == "lost" or device.maintenance is not None:
        return f"{label} cannot be used"
    held = sum(grant.memory for grant in device.grants)
    outside = (device.external_memory or 0) + (device.unattributed_memory or 0)
    room = device.memory_usable - held - outside
    if room <= 0 or any(grant.exclusive for grant in device.grants):
        return f"{label} nothing"
    if not device.grants and not outside:
        return f"{label} all of it ({format_memory(room)})"
    return f"{label} {format_memory(room)} of {format_memory(device.memory_usable)}"


class Refused(web.HTTPError):
    """What a Hub shows to its user as it is, and logs without a traceback."""

    def __init__(self, message: str, status: int, html: str = "") -> None:
        super().__init__(status, message, reason="GPU")
        self.jupyterhub_message = message
        self.jupyterhub_html_message = html or f"<p>{escape(message)}</p>"


def _told(error: GpuError, choice: Choice) -> Refused:
    hint = error.hint
    if error.code in ("no_capacity", "quota_exceeded"):
        hint = "Choose less, or start your server again later."
    elif error.status >= 500:
        hint = "Start your server without a GPU, or again later; the Hub's log says more."
    said = (f"{choice.label} could not be reserved.", error.message, hint)
    html = "".join(f"<p>{escape(line)}</p>" for line in said)
    return Refused(" ".join(said), error.status, html)


def _bound(use: QuotaUse) -> str | None:
    if use.left is None or use.quantity == "queue":
        return None
    if use.quantity == "memory":
        return f"{format_memory(int(use.left))} of memory"
    words = {"devices": "devices", "environments": "environments"}
    what = words.get(use.quantity, f"GPU hours {use.quantity.removeprefix('hours_')}")
    return f"{use.left:g} {what}"


def _read(value: Any) -> dict[str, Choice]:
    """Read choices.

    Raises
    ------
    TraitError
        They cannot be read; the sentence says which and why.
    """
    if not isinstance(value, Mapping) or not value:
        raise TraitError("choices: name at least one choice.")
    found = {}
    for name, it in value.items():
        try:
            found[str(name)] = choice = msgspec.convert(it, Choice)
            if choice.request is not None:
                demand_of(choice.request)
        except (msgspec.ValidationError, GpuError) as error:
            raise TraitError(f"choices[{name!r}]: {error}") from None
    return found


def _quoted(text: str) -> str:
    return quote(text, safe="")
