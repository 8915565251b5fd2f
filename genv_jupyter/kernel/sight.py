"""What this process's CUDA really sees, against what is granted and what its variable says now."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from genv_jupyter.isolation import live
from genv_jupyter.isolation.environ import VISIBLE
from genv_jupyter.kernel import words
from genv_jupyter.model import Device, Environment


class Sight(Struct, frozen=True):
    """What can be seen from within, without initialising CUDA.

    Attributes
    ----------
    initialized
        Whether CUDA has read its variables, for good.
    seen
        The digits of the UUIDs of the devices that it sees then, asked of CUDA itself; ``None``
        where it is not initialised, or cannot say.
    visible
        ``CUDA_VISIBLE_DEVICES`` as it is now; ``None`` when it is not set.
    set_to
        What we have set it to (``None``: unset); ``False`` when that is not ours to know.
    remembering
        What may have looked for devices while they were hidden, and may never look again.
    """

    initialized: bool
    seen: tuple[str, ...] | None = None
    visible: str | None = None
    set_to: str | bool | None = False
    remembering: tuple[str, ...] = ()


def look(environment: Environment | None) -> Sight:
    """Look at this process; what is seen is shown."""
    loaded = stub()
    if loaded is not None:
        loaded.warned = True
    seen = live.seen()
    return Sight(
        live.cuda_state() == "initialized",
        None if seen is None else tuple(seen),
        os.environ.get(VISIBLE),
        _set_to(loaded, environment),
        () if loaded is None else tuple(loaded.remembering),
    )


def stub() -> Any:
    """Return our stub, which kernels load when they start; ``None`` where it is not loaded."""
    return getattr(sys.modules.get("genv_jupyter_stub"), "stub", None)


def _set_to(loaded: Any, environment: Environment | None) -> str | bool | None:
    if loaded is not None and loaded.expected is not None:
        return str(loaded.expected)
    if environment is None or environment.environ is None or environment.applied != "live":
        return False
    return environment.environ.get(VISIBLE, False)


def remarks(sight: Sight, environment: Environment | None, devices: Sequence[Device]) -> list[str]:
    """Say what is granted, effective and edited, one sentence each, where they differ."""
    grants = () if environment is None else environment.grants
    granted = [grant.device for grant in grants if grant.state != "draining"]
    effective = _effective(sight, environment, granted, devices)
    edited = _edited(sight, bool(grants))
    said = [line for line in (*effective, edited) if line]
    if edited or (effective and sight.seen is not None):
        said.insert(0, f"Granted: {_names(granted, devices) or 'nothing'}.")
    if sight.remembering and granted and not sight.initialized:
        said.append(live.remembered(sight.remembering))
    return said


def _effective(
    sight: Sight,
    environment: Environment | None,
    granted: Sequence[str],
    devices: Sequence[Device],
) -> list[str]:
    """Say what CUDA has read, where that is not what is granted."""
    if not sight.initialized:
        return []
    if sight.seen is None:
        return [
            "Effective: nothing. CUDA was initialised in the process that this one was forked "
            "from, and does not work in a fork."
        ]
    seen = set(sight.seen)
    held = {grant.device for grant in environment.grants} if environment is not None else set()
    if seen == {live.digits(uuid) for uuid in granted}:
        if environment is not None and environment.applied == "at_restart":
            return [
                "Effective: the settings that CUDA read when it initialised here; those of the "
                "grant come with a restart."
            ]
        return []
    if not granted and seen <= {live.digits(uuid) for uuid in held}:
        return []  # draining, and that is said
    start = (
        f"Effective: {seen_names(sight.seen, devices)}, which CUDA read when it initialised here."
    )
    if not granted:
        return [f"{start} They may be somebody else's: restart, and attach first."]
    if environment is not None and environment.server is not None:
        return [f"{start} Restart the kernel to see the grant, which is kept."]
    return [f"{start} Restart by hand, and attach before anything uses CUDA."]


def _edited(sight: Sight, attached: bool) -> str:
    """Say that the variable is not what we have set; empty where it is."""
    if sight.set_to is False or sight.visible == sight.set_to:
        return ""
    now = "is not set" if sight.visible is None else f"is {sight.visible!r}"
    start = f"Edited: {VISIBLE} {now}, changed by hand."
    if sight.initialized:
        return f"{start} CUDA has read it before; what is started from here reads this."
    if attached:
        return f"{start} `%gpu attach` with the same request sets it again."
    return f"{start} What CUDA then finds may be somebody else's: attach instead."


def seen_names(seen: Iterable[str], devices: Sequence[Device]) -> str:
    """Name the devices that CUDA sees, as ``live.seen`` has them."""
    return _names([_uuid(digits, devices) for digits in seen], devices)


def _uuid(digits: str, devices: Iterable[Device]) -> str:
    """Return the UUID that has these digits; the digits themselves where no device is known."""
    return next((d.uuid for d in devices if live.digits(d.uuid) == digits), f"GPU-{digits}")


def _names(uuids: Iterable[str], devices: Iterable[Device]) -> str:
    by_uuid = {device.uuid: device for device in devices}
    return ", ".join(_name(by_uuid.get(uuid), uuid) for uuid in uuids)


def _name(device: Device | None, uuid: str) -> str:
    label = words.device_label(device, uuid)
    return label if label == words.short(uuid) else f"{label} ({words.short(uuid)})"
