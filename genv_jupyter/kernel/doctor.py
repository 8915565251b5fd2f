"""``%gpu doctor``: one page to read when something is wrong, or to paste into a report."""

from __future__ import annotations

import os
import platform
from typing import Any

from genv_jupyter import __version__
from genv_jupyter.api.client import Client
from genv_jupyter.errors import GpuError
from genv_jupyter.isolation import live
from genv_jupyter.isolation.environ import VISIBLE, limits_of
from genv_jupyter.isolation.inherited import server_pool
from genv_jupyter.kernel import sight, words
from genv_jupyter.kernel.document import Block, Text, Title, facts
from genv_jupyter.kernel.session import Session
from genv_jupyter.kernel.views import PageView
from genv_jupyter.model import BrokerHealth, Device, Environment, Limit, Limits, Request
from genv_jupyter.units import WHOLE, format_memory


def examine(session: Session) -> PageView:
    """Look at everything between this process and the driver; broken parts are said, not raised."""
    try:
        health = session.client.health()
        environment = session.environment()
        every = session.client.devices()
        pool = session.devices(environment)
    except GpuError as error:
        blocks: list[Block] = [
            Title("GPU doctor"),
            Title("Broker", small=True),
            Text(str(error), "warn"),
        ]
        return PageView([*blocks, *_process(session, None, [])])
    mark = words.mark(every) or ("SIMULATED" if health.simulated else "")
    return PageView(
        [
            Title("GPU doctor", mark),
            *driver_part(health, every),
            *_pool(session, environment, every, pool),
            *broker_part(health),
            *rules_part(health),
            *_process(session, environment, every),
            *limits_part(health, every, limits_here(session.client, health, environment)),
        ]
    )


def driver_part(health: BrokerHealth, devices: list[Device]) -> list[Block]:
    """Say how the driver is."""
    blocks: list[Block] = [Title("Driver", small=True)]
    if health.driver:
        blocks.append(Text(health.driver, "warn"))
    version = "simulated, no driver is asked" if health.simulated else health.driver_version
    rows = [("driver", version or "unknown")]
    rows += [
        (
            words.device_label(device),
            f"{device.name or 'unnamed'}, {words.short(device.uuid)}, "
            f"{format_memory(device.memory_total)}, {device.health}",
        )
        for device in devices
    ]
    return [*blocks, facts(rows)]


def _pool(
    session: Session, environment: Environment | None, every: list[Device], pool: list[Device]
) -> list[Block]:
    served = environment is not None and environment.server is not None
    who = "the Jupyter server" if served else "this process"
    value = server_pool() if served else session.pool
    named = ", ".join(words.device_label(device) for device in pool) or "nothing"
    if value is None:
        why = f"{who} was started without {VISIBLE}: all devices of this host"
        if len(pool) < len(every):
            why = f"{len(pool)} of the {len(every)} devices of this host"
    else:
        why = f"{who} was started with {VISIBLE}={value!r}, read as CUDA reads it"
        if not served:
            named = f"what that names, of {named}"
    return [Title("Pool", small=True), facts([("devices", named), ("why", why)])]


def broker_part(health: BrokerHealth) -> list[Block]:
    """Say how the broker is."""
    kind = (
        "of this user: it binds your own notebooks and terminals, and not other users"
        if health.kind == "user"
        else "of this host: it binds all users"
    )
    rows = [
        ("broker", f"{kind} (pid {health.pid}, version {health.version})"),
        ("ledger", health.ledger),
        ("environments", str(health.environments)),
    ]
    blocks: list[Block] = [Title("Broker", small=True), facts(rows)]
    if health.version != __version__:
        blocks.append(
            Text(f"This process has genv-jupyter {__version__}: restart it to have one.", "warn")
        )
    return blocks + [Text(notice, "warn") for notice in health.notices]


def rules_part(health: BrokerHealth) -> list[Block]:
    """Say which rules the broker keeps to."""
    if not health.rules:
        return []
    rows = [(it.rule.replace("_", " "), it.summary) for it in health.rules]
    return [Title("Rules", small=True), facts(rows)]


def _process(
    session: Session, environment: Environment | None, devices: list[Device]
) -> list[Block]:
    kind = "terminal" if session.terminal else "kernel"
    visible = os.environ.get(VISIBLE)
    cuda = live.cuda_state().replace("_", " ")
    seen = live.seen()
    sees = "" if seen is None else f", where it sees {sight.seen_names(seen, devices)}"
    rows = [
        (kind, f"pid {os.getpid()}, Python {platform.python_version()}"),
        ("environment", environment.id if environment is not None else "none yet"),
        ("CUDA", f"{cuda} in this process{sees}"),
        (VISIBLE, "not set" if visible is None else repr(visible)),
    ]
    if environment is not None and environment.grants:
        names = {device.uuid: words.device_label(device) for device in devices}
        rows += [
            (f"holds of {names.get(grant.device, words.short(grant.device))}", words.amount(grant))
            for grant in environment.grants
        ]
    remarks = session.remarks(environment, devices) + session.origin(environment)
    return [
        Title(f"This {kind}", small=True),
        facts(rows),
        *(Text(remark, "warn") for remark in remarks),
    ]


def limits_here(
    client: Client, health: BrokerHealth, environment: Environment | None = None
) -> Limits:
    """Return the limits of the share that is held, or of one that would be given now."""
    for grant in () if environment is None else environment.grants:
        if not grant.exclusive:
            return grant.limits
    for fraction in (0.5, 0.1):
        try:
            (grant,) = client.place(Request(fraction=fraction)).grants
            return grant.limits
        except GpuError:  # so much is not free
            continue
    return limits_of(compute=WHOLE // 2, exclusive=False, simulated=health.simulated)


def limits_part(health: BrokerHealth, devices: list[Device], share: Limits) -> list[Block]:
    """Say which limits a shared grant has here, and what would make them stronger."""
    rows = [
        ("memory", _limit(share.memory)),
        ("compute", _limit(share.compute)),
        ("devices", _limit(share.devices)),
    ]
    return [
        Title("Limits of a shared grant here", small=True),
        facts(rows),
        Title("What would make them stronger", small=True),
        *(Text(line, "plain", 2) for line in _stronger(health, devices)),
    ]


def _limit(limit: Limit) -> str:
    verified: Any = {True: ", verified", False: ", seen to fail", None: ""}[limit.verified]
    return f"{limit.strength}{verified}. {limit.reason}".strip()


def _stronger(health: BrokerHealth, devices: list[Device]) -> list[str]:
    said = ["A whole GPU (%gpu attach 1): nobody else is given a part of it."]
    if any(device.kind == "mig" for device in devices):
        said.append("The MIG instances here: the hardware separates them from each other.")
    elif not health.simulated:
        said.append(
            "MIG instances, where the card has MIG and an administrator makes them: the hardware "
            "separates them, and they appear here as devices."
        )
    if health.kind == "user":
        said.append(
            "Other users of this host have brokers of their own: what they take is seen as memory "
            "outside, and they are not stopped from taking it."
        )
    return said
