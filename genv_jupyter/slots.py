"""What is counted on each device, and how people name one.

The broker keeps one ``Slot`` per device and counts every grant in it; nothing else changes one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from genv_jupyter.demand import Demand
from genv_jupyter.errors import AmbiguousDevice, BadRequest, UnknownDevice
from genv_jupyter.model import DeviceKind, Health
from genv_jupyter.policy import Policy
from genv_jupyter.units import WHOLE

RESIDUE = 64 * 2**20
"""Bytes that no process explains on any busy driver; less than one CUDA context ever takes."""

INDEX_DIGITS = 7
"""Digits up to which a bare number is an index; the first block of a UUID has eight."""


class Own(NamedTuple):
    """What one environment holds on one device: a credit when its grant there is changed."""

    memory: int
    compute: int | None
    exclusive: bool


@dataclass(slots=True, kw_only=True, eq=False)
class Slot:
    """What is counted on one device.

    Attributes
    ----------
    capacity
        Usable bytes times the memory overcommit; 0 where the device does not tell.
    granted
        Bytes of all grants, as counted.
    exclusive, shared
        Numbers of grants.
    compute
        Sum of the ceilings of each owner, in hundredths of a percent.
    owners
        Number of grants of each owner.
    external
        Bytes of outsiders (compute, graphics), of our MPS servers, bytes that no process explains,
        and ``excess``.
    graphics
        The part of ``external`` that graphics processes hold: the desktop.
    users
        Owners (``local:1000``) whose processes compute there outside any environment.
    only
        The owner whose processes alone get in, under MPS (compute mode exclusive process).
    closed
        Why nobody (or not the one who asks) gets anything new here, as part of a sentence: ``under
        maintenance since …``.
    servers
        The part of ``external`` that our own MPS servers hold: they leave for a whole grant.
    excess
        The part of ``external`` that environments use beyond what is counted for them.
    """

    uuid: str
    index: int | None = None
    name: str | None = None
    kind: DeviceKind = "gpu"
    capacity: int = 0
    granted: int = 0
    exclusive: int = 0
    shared: int = 0
    compute: dict[str, int] = field(default_factory=dict)
    owners: dict[str, int] = field(default_factory=dict)
    external: int = 0
    graphics: int = 0
    servers: int = 0
    excess: int = 0
    users: frozenset[str] = frozenset()
    only: str | None = None
    closed: str | None = None
    health: Health = "ok"

    @property
    def label(self) -> str:
        """The device as sentences name it: ``GPU 0``, ``MIG 3``, or its UUID."""
        return self.uuid if self.index is None else f"{self.kind.upper()} {self.index}"

    def add(self, owner: str, memory: int, compute: int | None, exclusive: bool) -> None:
        """Count a grant of ``owner``."""
        self._count(owner, memory, compute or 0, exclusive, 1)

    def drop(self, owner: str, memory: int, compute: int | None, exclusive: bool) -> None:
        """Take back what ``add`` counted for the same grant."""
        self._count(owner, memory, compute or 0, exclusive, -1)

    def _count(self, owner: str, memory: int, compute: int, exclusive: bool, sign: int) -> None:
        self.granted += sign * memory
        if exclusive:
            self.exclusive += sign
        else:
            self.shared += sign
        for table, amount in ((self.compute, compute), (self.owners, 1)):
            left = table.get(owner, 0) + sign * amount
            if left:
                table[owner] = left
            else:
                table.pop(owner, None)


def whole_memory(slot: Slot) -> int:
    """Bytes of a whole grant: all that outsiders (the desktop) leave."""
    return max(0, slot.capacity - (slot.external - slot.servers))


def outsiders(slot: Slot, policy: Policy) -> bool:
    """Tell whether somebody outside any environment uses the device, beyond a desktop."""
    external = slot.external - slot.servers
    if external <= RESIDUE:
        return False
    desktop = max(policy.desktop_memory, slot.capacity * policy.desktop_share // WHOLE)
    return slot.graphics > desktop or external - slot.graphics > RESIDUE


def others_on(slot: Slot, owner: str) -> bool:
    """Tell whether somebody else than ``owner`` works on a device, as far as that is known."""
    return len(slot.owners) > (owner in slot.owners) or bool(slot.users - {owner})


def inside(demand: Demand, owner: str, policy: Policy) -> str | None:
    """Return who may share a device that lets in only what runs under MPS; ``None``: nobody."""
    without = demand.mps == "off" or policy.mps == "never" or demand.count > 1
    if demand.compute is None and demand.mps != "on" and not policy.mps_memory_only:
        without = True
    return None if without else owner


def memory_on(slot: Slot, demand: Demand) -> int:
    """Bytes that a demand comes to on one device."""
    if demand.exclusive:
        return whole_memory(slot)
    if demand.memory is not None:
        return demand.memory
    return slot.capacity * (demand.fraction or 0) // WHOLE


def resolve(names: Iterable[str], slots: Sequence[Slot]) -> list[Slot]:
    """Find devices by UUID, unique UUID prefix (with or without ``GPU-``), or index.

    Raises
    ------
    UnknownDevice
        A name fits no device of ``slots``.
    AmbiguousDevice
        A prefix fits several.
    BadRequest
        Two names mean the same device.
    """
    found: list[Slot] = []
    for name in names:
        slot = _resolve_one(name, slots)
        if slot in found:
            raise BadRequest(f"{slot.label} is named twice.", hint="Name each device once.")
        found.append(slot)
    return found


def _resolve_one(name: str, slots: Sequence[Slot]) -> Slot:
    if name.isascii() and name.isdigit() and len(name) <= INDEX_DIGITS:
        found = [slot for slot in slots if slot.index == int(name)]
    else:
        wanted = name.lower()
        bare = wanted.removeprefix("gpu-").removeprefix("mig-")
        found = [slot for slot in slots if slot.uuid.lower() == wanted]
        if not found and bare:
            found = [slot for slot in slots if _has_prefix(slot.uuid.lower(), wanted)]
    if len(found) == 1:
        return found[0]
    listed = found or list(slots)
    which = ", ".join(f"{slot.label} ({slot.uuid})" for slot in listed[:8])
    more = f" and {len(listed) - 8} more" if len(listed) > 8 else ""
    if found:
        raise AmbiguousDevice(
            f"{name!r} may be any of {which}{more}.", hint="Write more of the UUID."
        )
    raise UnknownDevice(
        f"There is no GPU {name!r} here.",
        hint=f"Name one of {which}{more}." if slots else "No GPU can be used here at all.",
    )


def _has_prefix(uuid: str, wanted: str) -> bool:
    return uuid.startswith(wanted) or uuid[4:].startswith(wanted)
