"""What drivers tell, made fit to be believed: pure functions over raw values.

Drivers have been seen to return undecodable names, process ids that cannot be, sizes larger than
the card, and more used than there is. Such a value becomes unknown, never a wrong number, and the
device is called unreliable.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from genv_jupyter.devices.source import ProcessKind

MAX_PID = 4_194_304
"""Linux never gives a larger one (``PID_MAX_LIMIT``)."""

MAX_MEMORY = 2**50
"""No device has more; bounds what is said where the total is unknown."""

_UUID = re.compile(r"(?:GPU|MIG)-[A-Za-z0-9/-]{1,80}", re.ASCII)
_STRENGTH: Mapping[ProcessKind, int] = {"graphics": 0, "compute": 1, "mps": 2}


class Doubt:
    """What was told that cannot be, each in a few words."""

    def __init__(self) -> None:
        self.words: dict[str, None] = {}

    @property
    def raised(self) -> bool:
        """Whether there is any."""
        return bool(self.words)

    def say(self, words: str) -> None:
        """Note something; the same again is noted once."""
        self.words[words] = None

    def within(self, value: Any, highest: int, what: str) -> int | None:
        """Return ``value`` if it is an integer from 0 to ``highest``, else ``None`` and doubt."""
        if value is None:
            return None
        if not isinstance(value, int) or not 0 <= value <= highest:
            self.say(f"{what} that cannot be")
            return None
        return value


class Memory(NamedTuple):
    """Bytes of a device; ``None`` is unknown."""

    total: int | None
    reserved: int | None
    free: int | None


def clean_memory(info: Any, doubt: Doubt) -> Memory:
    """Read an NVML memory structure (version 1 has no ``reserved``), or ``None``."""
    if info is None or info.total == 0:
        return Memory(None, None, None)  # memory of its own is what unified chips do not have
    total = doubt.within(info.total, MAX_MEMORY, "a memory size")
    highest = MAX_MEMORY if total is None else total
    reserved = doubt.within(getattr(info, "reserved", None), highest, "a memory reserve")
    free = doubt.within(info.free, highest, "free memory")
    # Not used itself, but it shows what the rest is worth.
    doubt.within(info.used, highest, "used memory")
    if free is not None and free + (reserved or 0) > highest:
        doubt.say("more free memory than there is")
        free = highest - (reserved or 0)
    return Memory(total, reserved, free)


def merge(
    lists: Mapping[ProcessKind, Sequence[tuple[Any, Any]]], total: int | None, doubt: Doubt
) -> list[tuple[int, int | None, ProcessKind]]:
    """Merge the driver's lists of (pid, bytes) into one by pid.

    The same process stands in several lists, with the same memory in each: the largest counts,
    once. A client of MPS is more than a computing process, that more than a drawing one.
    """
    found: dict[int, tuple[int | None, ProcessKind]] = {}
    for kind, entries in lists.items():
        for raw_pid, raw_memory in entries:
            pid = doubt.within(raw_pid, MAX_PID, "a process id")
            if not pid:
                doubt.say("a process id that cannot be")
                continue
            most = MAX_MEMORY if total is None else total
            memory = doubt.within(raw_memory, most, "memory of a process")
            other, other_kind = found.get(pid, (None, kind))
            known = [amount for amount in (memory, other) if amount is not None]
            found[pid] = (
                max(known, default=None),
                max(kind, other_kind, key=_STRENGTH.__getitem__),
            )
    return [(pid, *found[pid]) for pid in sorted(found)]


def clean_uuid(value: Any) -> str | None:
    """Return a UUID as text, ``None`` if CUDA could not be told it."""
    text = value.decode("ascii", "replace") if isinstance(value, bytes) else value
    return text if isinstance(text, str) and _UUID.fullmatch(text) else None


def clean_text(value: Any) -> str | None:
    """Return a name as printable text on one line, ``None`` if nothing is left."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if not isinstance(value, str):
        return None
    kept = "".join(letter if letter.isprintable() else " " for letter in value[:128])
    return " ".join(kept.split()) or None
