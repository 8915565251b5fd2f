"""How warm a device is and what power it takes, as the doors show it, and what is wrong with it."""

from __future__ import annotations

from typing import Any

import msgspec

from genv_jupyter.broker.usage import DeviceUsage
from genv_jupyter.devices.source import DeviceReading
from genv_jupyter.slots import Slot

_SHOWN = (
    *("memory_utilization", "temperature", "power", "power_limit"),
    *("sm_clock", "memory_clock", "ecc_errors"),
)
_STEPS = {"temperature": 2, "power": 5_000, "sm_clock": 50, "memory_clock": 50}
"""Changes that are worth a message on their own: 2 °C, 5 W, 50 MHz. What is smaller is told along
with the next: a device where nothing happens costs nobody anything."""

_LOST = (
    "{label} has fallen off the bus: it does not answer any more. See `sudo dmesg | grep -i xid`; "
    "a reboot brings it back, or else look at its power and slot. Grants on it are kept."
)
_UNKNOWN = "{label} could not be read this time: what is shown is the last that was."
_UNRELIABLE = "{label} is not to be relied on, and given to nobody while there is another: {why}."


def sensors_of(slot: Slot, usage: DeviceUsage | None) -> dict[str, Any]:
    """Return the fields of ``Device`` that tell how it does."""
    if usage is None:
        return {"trouble": trouble_of(slot, None)}
    reading = usage.reading
    return {
        **{name: getattr(reading, name) for name in _SHOWN},
        "environments_memory": usage.environments,
        "xid": reading.xids[-1].code if reading.xids else None,
        "trouble": trouble_of(slot, reading),
    }


def trouble_of(slot: Slot, reading: DeviceReading | None) -> str | None:
    """Say in a sentence what is wrong with a device."""
    if slot.health == "lost":
        return _LOST.format(label=slot.label)
    if slot.health == "unknown":
        return _UNKNOWN.format(label=slot.label)
    if slot.health == "unreliable" and reading is not None:
        why = "; ".join(reading.doubts) or "the driver told what cannot be"
        return _UNRELIABLE.format(label=slot.label, why=why)
    return None


def steadied(told: DeviceUsage | None, new: DeviceUsage) -> DeviceUsage:
    """Return a usage with what has hardly moved since it was told as it was told then."""
    if told is None:
        return new
    kept: dict[str, int] = {}
    for name, step in _STEPS.items():
        before, now = getattr(told.reading, name), getattr(new.reading, name)
        if before is not None and now is not None and abs(now - before) < step:
            kept[name] = before
    if not kept:
        return new
    reading = msgspec.structs.replace(new.reading, **kept)
    return msgspec.structs.replace(new, reading=reading)
