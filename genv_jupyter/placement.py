"""Which device a request gets: a pure function of what is free, what is asked, and the policy.

The broker keeps one ``Slot`` per device, counts every grant in it, and calls ``place``. Nothing
here changes a slot except ``Slot.add`` and ``Slot.drop``; nothing reads a clock or a driver.

Order of candidates for a shared request: the device this environment is on already, then one that
the same owner shares, then the fullest on which it fits, then an empty one (and, last, an empty
one that outsiders use), so that whole devices stay whole. For whole devices: the environment's
own, then the lowest index. Several devices are given all or none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from types import MappingProxyType
from typing import NamedTuple

from msgspec import Struct

from genv_jupyter.demand import Demand
from genv_jupyter.errors import (
    AmbiguousDevice,
    BadRequest,
    GpuError,
    NoCapacity,
    OutOfRange,
    UnknownDevice,
)
from genv_jupyter.model import DeviceKind, Health
from genv_jupyter.policy import Policy
from genv_jupyter.units import WHOLE, format_memory, format_share

RESIDUE = 64 * 2**20
"""Bytes that no process explains on any busy driver; less than one CUDA context ever takes."""

INDEX_DIGITS = 7
"""Digits up to which a bare number is an index; the first block of a UUID has eight."""

_WAIT = "wait, or ask a holder to release."


class Own(NamedTuple):
    """What one environment holds on one device: a credit when its grant there is changed."""

    memory: int
    compute: int | None
    exclusive: bool


_NOTHING: Mapping[str, Own] = MappingProxyType({})


@dataclass(slots=True, kw_only=True)
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
        Bytes of outsiders (compute, graphics) and bytes that no process explains.
    graphics
        The part of ``external`` that graphics processes hold: the desktop.
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


class Placed(Struct, frozen=True):
    """One grant that the request would get: bytes, ceiling (``None``: none), exclusive or not."""

    device: str
    memory: int
    compute: int | None
    exclusive: bool


def place(
    slots: Sequence[Slot],
    demand: Demand,
    owner: str,
    policy: Policy,
    own: Mapping[str, Own] = _NOTHING,
) -> tuple[Placed, ...]:
    """Choose devices for a demand.

    Parameters
    ----------
    slots
        The devices of the caller's pool, in index order.
    demand
        What is asked for.
    owner
        Key of the principal, such as ``local:1000``.
    policy
        Overcommit and desktop tolerance.
    own
        What this environment holds already, by device; it does not stand in its own way.

    Returns
    -------
    tuple of Placed
        In the order of the names asked for, otherwise in index order.

    Raises
    ------
    NoCapacity
        Not now; ``details["reasons"]`` has a sentence for each device that does not do.
    OutOfRange
        Never in this pool: too many devices, or more memory than they have.
    UnknownDevice, AmbiguousDevice, BadRequest
        A name fits no device, several, or one that was named already.
    """
    candidates = resolve(demand.devices, slots) if demand.devices else slots
    _check_range(candidates, demand)
    if demand.exclusive:
        chosen = _choose_whole(candidates, demand, policy, own)
    else:
        chosen = _choose_shared(candidates, demand, owner, policy, own)
    if len(chosen) < demand.count:
        raise _refusal(candidates, demand, owner, policy, own, len(chosen))
    return tuple(
        Placed(slot.uuid, _memory_on(slot, demand), demand.compute, demand.exclusive)
        for slot in (candidates[position] for position in sorted(chosen))
    )


def satisfied(own: Mapping[str, Own], demand: Demand, slots: Sequence[Slot]) -> bool:
    """Tell whether grants held (as they were *wanted*, not as counted) are what is asked for.

    Raises
    ------
    UnknownDevice, AmbiguousDevice, BadRequest
        As ``place`` does for the names.
    """
    named = resolve(demand.devices, slots) if demand.devices else None
    if len(own) != demand.count:
        return False
    held = [slot for slot in (slots if named is None else named) if slot.uuid in own]
    return len(held) == len(own) and all(_same(slot, own[slot.uuid], demand) for slot in held)


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


def whole_memory(slot: Slot) -> int:
    """Bytes of a whole grant: all that outsiders (the desktop) leave."""
    return max(0, slot.capacity - slot.external)


def outsiders(slot: Slot, policy: Policy) -> bool:
    """Tell whether somebody outside any environment uses the device, beyond a desktop."""
    if slot.external <= RESIDUE:
        return False
    desktop = max(policy.desktop_memory, slot.capacity * policy.desktop_share // WHOLE)
    return slot.graphics > desktop or slot.external - slot.graphics > RESIDUE


def _choose_whole(
    slots: Sequence[Slot], demand: Demand, policy: Policy, own: Mapping[str, Own]
) -> list[int]:
    mine: list[int] = []
    free: list[int] = []
    for position, slot in enumerate(slots):
        held = own.get(slot.uuid)
        others = slot.exclusive + slot.shared - (held is not None)
        if others or slot.health == "lost" or outsiders(slot, policy):
            continue
        (free if held is None else mine).append(position)
    return (mine + free)[: demand.count]


def _choose_shared(
    slots: Sequence[Slot], demand: Demand, owner: str, policy: Policy, own: Mapping[str, Own]
) -> list[int]:
    """One pass; with hundreds of devices this loop is what an attach costs."""
    memory = demand.memory
    fraction = demand.fraction or 0
    compute = demand.compute or 0
    ceiling = policy.compute_overcommit - compute
    fits: list[tuple[int, int, int]] = []
    for position, slot in enumerate(slots):
        capacity = slot.capacity
        need = capacity * fraction // WHOLE if memory is None else memory
        left = capacity - slot.granted - slot.external
        if own and slot.uuid in own:
            if not _fits_own(slot, need, owner, ceiling, own[slot.uuid], compute):
                continue
            rank = 0
        elif (
            left < need
            or need < 1
            or slot.exclusive
            or slot.health == "lost"
            or (compute and slot.compute.get(owner, 0) > ceiling)
        ):
            continue
        elif owner in slot.owners:
            rank = 1
        elif slot.shared:
            rank = 2
        else:
            rank = 4 if slot.external and outsiders(slot, policy) else 3
        fits.append((rank, left if rank < 3 else 0, position))
    if demand.count == 1:
        return [min(fits)[2]] if fits else []
    return [position for _, _, position in nsmallest(demand.count, fits)]


def _fits_own(slot: Slot, need: int, owner: str, ceiling: int, held: Own, compute: int) -> bool:
    left = slot.capacity - slot.granted - slot.external + held.memory
    others = slot.compute.get(owner, 0) - (held.compute or 0)
    return (
        1 <= need <= left
        and slot.exclusive == int(held.exclusive)
        and slot.health != "lost"
        and not (compute and others > ceiling)
    )


def _memory_on(slot: Slot, demand: Demand) -> int:
    if demand.exclusive:
        return whole_memory(slot)
    if demand.memory is not None:
        return demand.memory
    return slot.capacity * (demand.fraction or 0) // WHOLE


def _same(slot: Slot, held: Own, demand: Demand) -> bool:
    if slot.health == "lost" or held.exclusive != demand.exclusive:
        return False
    if demand.exclusive:
        return True
    return held.memory == _memory_on(slot, demand) and held.compute == demand.compute


def _check_range(slots: Sequence[Slot], demand: Demand) -> None:
    """Refuse what can never be granted in this pool, whoever leaves."""
    if demand.count > len(slots):
        have = "There is no GPU" if not slots else f"There is only {_gpus(len(slots))}"
        raise OutOfRange(
            f"{have} here, and {_gpus(demand.count)} {_were(demand.count)} asked for.",
            hint="`%gpu devices` lists what this notebook can use.",
        )
    if demand.memory is None or any(not slot.capacity for slot in slots):
        return
    if sum(slot.capacity >= demand.memory for slot in slots) < demand.count:
        most = format_memory(max(slot.capacity for slot in slots))
        where = "on each of the GPUs" if demand.count > 1 else "on one GPU"
        raise OutOfRange(
            f"{format_memory(demand.memory)} {where} is more than there is; "
            f"the largest here has {most}.",
            hint=f"Ask for at most {most}, or for whole GPUs.",
        )


def _refusal(
    slots: Sequence[Slot],
    demand: Demand,
    owner: str,
    policy: Policy,
    own: Mapping[str, Own],
    fitting: int,
) -> NoCapacity:
    if demand.exclusive:
        what = "free for a whole device"
        hint = f"Ask for a share (e.g. 0.5 or --memory 8G), {_WAIT}"
    else:
        need = demand.memory
        size = format_share(demand.fraction) if need is None else format_memory(need)
        what = f"able to give {size} now"
        hint = f"Ask for less (e.g. --memory 4G), {_WAIT}"
    if demand.devices:
        hint = f"Leave the device open, {_WAIT}"
    reasons = {
        slot.uuid: reason
        for slot in slots
        if (reason := _reason(slot, demand, owner, policy, own.get(slot.uuid)))
    }
    if fitting:
        verb = "is" if fitting == 1 else "are"
        message = f"Only {fitting} of {_gpus(demand.count)} {verb} {what}."
    else:
        message = f"No GPU is {what}."
    return NoCapacity(message, hint=hint, details={"reasons": reasons})


def _reason(slot: Slot, demand: Demand, owner: str, policy: Policy, held: Own | None) -> str | None:
    """Say why this device does not do; ``None`` when it does."""
    mine = held or Own(0, None, False)
    exclusive = slot.exclusive - mine.exclusive
    shared = slot.shared - (held is not None and not mine.exclusive)
    name = slot.label
    if slot.health == "lost":
        return f"{name} is lost: it does not answer any more."
    if exclusive:
        return f"{name} is held whole."
    if demand.exclusive:
        if shared:
            given = format_memory(slot.granted - mine.memory)
            return f"{name} is shared: {given} of {format_memory(slot.capacity)} are given out."
        if outsiders(slot, policy):
            used = format_memory(slot.external)
            return f"{name}: somebody uses it outside any environment ({used})."
        return None
    if not slot.capacity:
        return f"{name} does not tell its memory and can only be had whole."
    left = max(0, slot.capacity - slot.granted - slot.external + mine.memory)
    if left < max(1, _memory_on(slot, demand)):
        besides = ""
        if outsiders(slot, policy):
            used = format_memory(slot.external)
            besides = f"; somebody uses {used} outside any environment"
        return f"{name} has {format_memory(left)} left of {format_memory(slot.capacity)}{besides}."
    others = slot.compute.get(owner, 0) - (mine.compute or 0)
    if demand.compute and others + demand.compute > policy.compute_overcommit:
        return (
            f"{name}: your shares there come to {format_share(others)} already, "
            f"of {format_share(policy.compute_overcommit)}."
        )
    return None


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
    error: type[GpuError] = AmbiguousDevice if found else UnknownDevice
    listed = found or list(slots)
    which = ", ".join(f"{slot.label} ({slot.uuid})" for slot in listed[:8])
    more = f" and {len(listed) - 8} more" if len(listed) > 8 else ""
    if found:
        raise error(f"{name!r} may be any of {which}{more}.", hint="Write more of the UUID.")
    raise error(
        f"There is no GPU {name!r} here.",
        hint=f"Name one of {which}{more}." if slots else "No GPU can be used here at all.",
    )


def _has_prefix(uuid: str, wanted: str) -> bool:
    return uuid.startswith(wanted) or uuid[4:].startswith(wanted)


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


def _were(count: int) -> str:
    return "was" if count == 1 else "were"
