"""Which devices an inherited ``CUDA_VISIBLE_DEVICES`` leaves: exactly as CUDA reads it.

CUDA takes the entries from left to right and stops at the first that it cannot resolve: that
entry and everything after it are hidden. A device named twice hides all. An entry is a number
(read as ``strtol`` does: leading blanks and whatever follows the digits are ignored, so ``1gpu2``
is 1) or a prefix of exactly one UUID.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from genv_jupyter.devices.source import DeviceReading

VARIABLE = "CUDA_VISIBLE_DEVICES"
_NUMBER = re.compile(r"[ \t\n\v\f\r]*([+-]?[0-9]+)", re.ASCII)
_NOTHING = ("", "NoDevFiles")
"""What batch systems write when they mean "no device"."""


class Pool(Struct, frozen=True):
    """The devices that may be used, in the order they were named.

    ``notice`` is a sentence when somebody should look at the variable.
    """

    uuids: tuple[str, ...]
    notice: str | None = None


class _InvalidEntry(Exception):
    """Why an entry cannot be resolved: the end of a sentence."""


def read_pool(value: str | None, devices: Sequence[DeviceReading]) -> Pool:
    """Read the value of ``CUDA_VISIBLE_DEVICES`` as CUDA would.

    Numbers count GPUs in PCI order (``CUDA_DEVICE_ORDER=PCI_BUS_ID``), lost ones included, so that
    a device that falls off the bus never hands its number to another. Where CUDA would show a
    process only the first of several MIG instances, the pool has all that are named: each process
    is given one of them.

    Parameters
    ----------
    value
        The variable; ``None`` when it is not set, which leaves all devices.
    devices
        The host's devices, as an inventory lists them.
    """
    if value is None:
        return Pool(tuple(device.uuid for device in devices))
    if value.strip() in _NOTHING:
        return Pool((), f"{VARIABLE} is {value!r}, so CUDA sees no GPU here. {_CURE}")
    if not devices:
        return Pool(())  # the driver's trouble is the thing to say
    chosen: list[DeviceReading] = []
    notices: list[str] = []
    entries = value.split(",")
    for position, entry in enumerate(entries):
        try:
            device = _resolve(entry, devices)
        except _InvalidEntry as why:
            if entry or position < len(entries) - 1:  # "0," hides nothing
                notices.append(_stopped(entry, str(why), entries[position + 1 :]))
            break
        if any(device.uuid == other.uuid for other in chosen):
            return Pool((), f"{VARIABLE} names {device.uuid} twice, so CUDA hides all. {_CURE}")
        chosen.append(device)
    notices += _doubts(entries, chosen, devices)
    return Pool(tuple(device.uuid for device in chosen), " ".join(notices) or None)


_CURE = "Correct or unset the variable where the server is started, then start the server again."


def _resolve(entry: str, devices: Sequence[DeviceReading]) -> DeviceReading:
    text = entry.lstrip(" \t")
    if text.startswith(("GPU-", "MIG-")):
        return _by_uuid(text, devices)
    match = _NUMBER.match(entry)
    if match is None:
        raise _InvalidEntry("is neither a number nor a UUID")
    number = int(match[1][:20])
    for device in devices:  # of a GPU in MIG mode CUDA takes the first instance
        if number == (device.index if device.kind == "gpu" else device.parent_index):
            return device
    raise _InvalidEntry("is no GPU of this host")


def _by_uuid(text: str, devices: Sequence[DeviceReading]) -> DeviceReading:
    kind = "mig" if text.startswith("MIG-") else "gpu"
    found = [
        device
        for device in devices
        if device.kind == kind and (device.uuid.startswith(text) or _old_name(device) == text)
    ]
    parents: dict[str, DeviceReading] = {}
    if kind == "gpu":
        for device in devices:
            if device.parent is not None and device.parent.startswith(text):
                parents.setdefault(device.parent, device)
    found += parents.values()
    if len(found) > 1:
        raise _InvalidEntry(f"fits {len(found)} devices")
    if not found:
        raise _InvalidEntry("is the UUID of no device of this host")
    return found[0]


def _old_name(device: DeviceReading) -> str | None:
    """Return what drivers before R470 called a MIG instance."""
    if device.parent is None or device.instance is None:
        return None
    return f"MIG-{device.parent}/{device.instance[0]}/{device.instance[1]}"


def _stopped(entry: str, why: str, rest: list[str]) -> str:
    hidden = f" and what follows it ({','.join(rest)[:64]})" if rest else ""
    return f"{VARIABLE} has {entry[:64]!r}, which {why}: CUDA hides it{hidden}. {_CURE}"


def _doubts(
    entries: Sequence[str], chosen: Sequence[DeviceReading], devices: Sequence[DeviceReading]
) -> list[str]:
    """Return what is no error, and yet may not be what was meant."""
    doubts = []
    numbers = any(_NUMBER.match(entry) for entry in entries)
    if numbers and len({device.name for device in devices if device.kind == "gpu"}) > 1:
        doubts.append(
            f"{VARIABLE} has numbers and the GPUs of this host differ; they are counted in PCI "
            "order here, as nvidia-smi does. Use UUIDs to be sure."
        )
    parents = {device.parent for device in chosen if device.parent is not None}
    if any(device.parent in parents and device not in chosen for device in devices) and not any(
        entry.lstrip().startswith("MIG-") for entry in entries
    ):
        doubts.append(
            f"{VARIABLE} names a GPU in MIG mode, of which CUDA uses the first instance only. "
            "Name the instances (MIG-…) to have more."
        )
    return doubts
