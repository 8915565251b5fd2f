"""Which device a request gets: a pure function of what is free, what is asked, and the policy.

Order of candidates for a shared request: the device this environment is on already, then one that
the same owner shares, then the fullest on which it fits, then an empty one (and, last, an empty
one that outsiders use), so that whole devices stay whole. One that another user works on comes
after these, or not at all, unless the policy says otherwise: under MPS users take turns. For whole
devices: the environment's own, then the lowest index. A device whose readings cannot be relied on
comes after all others, and one under maintenance is for those alone who hold it already. Several
devices are given all or none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from msgspec import Struct

from genv_jupyter.demand import Demand
from genv_jupyter.policy import Policy
from genv_jupyter.reasons import refusal
from genv_jupyter.slots import Own, Slot, inside, memory_on, others_on, outsiders, resolve
from genv_jupyter.units import WHOLE

__all__ = ["Own", "Placed", "Slot", "place", "resolve", "satisfied"]

_MINE, _MIXED, _SHARED, _EMPTY, _USED, _OTHERS, _SICK = range(1, 8)
"""For a shared request, the best first: a device that its owner shares, and others too; one that
somebody shares; an empty one, or one that outsiders use; one that only others work on; one whose
readings cannot be relied on."""

_FIRST = (_EMPTY, _USED, _SICK)
"""Of these the first is as good as any; of the others the fullest is best."""

_NOTHING: Mapping[str, Own] = MappingProxyType({})


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
    if demand.exclusive:
        chosen = _choose_whole(candidates, demand, policy, own)
    else:
        chosen = _choose_shared(candidates, demand, owner, policy, own)
    if len(chosen) < demand.count:
        raise refusal(candidates, demand, owner, policy, own, len(chosen))
    if len(chosen) > 1:
        names = {slot.uuid for slot in chosen}
        chosen = [slot for slot in candidates if slot.uuid in names]
    return tuple(
        Placed(slot.uuid, memory_on(slot, demand), demand.compute, demand.exclusive)
        for slot in chosen
    )


def satisfied(own: Mapping[str, Own], demand: Demand, slots: Sequence[Slot]) -> bool:
    """Tell whether grants held (as they were *wanted*, not as counted) are what is asked for.

    Raises
    ------
    UnknownDevice, AmbiguousDevice, BadRequest
        As ``place`` does for the names.
    """
    named = resolve(demand.devices, slots) if demand.devices else slots
    if len(own) != demand.count:
        return False
    held = [slot for slot in named if slot.uuid in own]
    return len(held) == len(own) and all(_same(slot, own[slot.uuid], demand) for slot in held)


def _same(slot: Slot, held: Own, demand: Demand) -> bool:
    if slot.health == "lost" or held.exclusive != demand.exclusive:
        return False
    if demand.exclusive:
        return True
    return held.memory == memory_on(slot, demand) and held.compute == demand.compute


def _choose_whole(
    slots: Sequence[Slot], demand: Demand, policy: Policy, own: Mapping[str, Own]
) -> list[Slot]:
    mine: list[Slot] = []
    free: list[Slot] = []
    for slot in slots:
        held = own.get(slot.uuid)
        others = slot.exclusive + slot.shared - (held is not None)
        if others or slot.health == "lost" or outsiders(slot, policy):
            continue
        if slot.closed is not None and held is None:
            continue
        (free if held is None else mine).append(slot)
    free.sort(key=_doubtful)  # stable: by index among those of one kind
    return (mine + free)[: demand.count]


def _doubtful(slot: Slot) -> bool:
    return slot.health != "ok"


def _choose_shared(
    slots: Sequence[Slot], demand: Demand, owner: str, policy: Policy, own: Mapping[str, Own]
) -> list[Slot]:
    chosen: list[Slot] = []
    rest = list(slots)
    if own:
        chosen = [
            slot
            for slot in slots
            if slot.uuid in own and _fits_own(slot, demand, owner, policy, own[slot.uuid])
        ][: demand.count]
        rest = [slot for slot in slots if slot.uuid not in own]
    while len(chosen) < demand.count:
        best = _best_shared(rest, demand, owner, policy)
        if best is None:
            break
        chosen.append(best)
        rest.remove(best)
    return chosen


def _fits_own(slot: Slot, demand: Demand, owner: str, policy: Policy, held: Own) -> bool:
    """Tell whether a grant on this device can become what is asked for.

    Nobody else's exclusive grant can be in the way: this environment has one here.
    """
    left = slot.capacity - slot.granted - slot.external + held.memory
    others = slot.compute.get(owner, 0) - (held.compute or 0)
    compute = demand.compute or 0
    return (
        1 <= memory_on(slot, demand) <= left
        and slot.health != "lost"
        and (slot.only is None or slot.shared == 1 or slot.only == inside(demand, owner, policy))
        and not (compute and others + compute > policy.compute_overcommit)
    )


def _best_shared(slots: Sequence[Slot], demand: Demand, owner: str, policy: Policy) -> Slot | None:
    """Find the best device on which the environment is not yet.

    One pass that looks only at what can still win: with hundreds of devices this loop is most of
    what an attach costs.
    """
    memory, fraction, compute = demand.memory, demand.fraction or 0, demand.compute or 0
    ceiling = policy.compute_overcommit - compute
    apart = policy.share_between_users != "always"
    shared = _OTHERS if apart else _SHARED  # where the owner is not: by somebody else
    insider = inside(demand, owner, policy)
    best: Slot | None = None
    best_rank, best_left = 9, 0
    need, measured = memory or 0, -1
    for slot in slots:
        capacity = slot.capacity
        if memory is None and capacity != measured:
            need, measured = capacity * fraction // WHOLE, capacity
        left = capacity - slot.granted - slot.external
        if left < need:
            continue
        if slot.health != "ok":
            rank = _SICK
        elif owner in slot.owners:
            rank = _MINE
        elif slot.shared:
            rank = shared
        elif best_rank <= _EMPTY:
            continue
        else:
            rank = _USED if slot.external and outsiders(slot, policy) else _EMPTY
        if rank > best_rank or (rank == best_rank and (rank in _FIRST or left >= best_left)):
            continue
        if apart and others_on(slot, owner):
            if policy.share_between_users == "never":
                continue
            rank = _MIXED if rank == _MINE else max(rank, _OTHERS)
            if rank > best_rank or (rank == best_rank and left >= best_left):
                continue
        if need < 1 or slot.exclusive or slot.health == "lost":
            continue
        if slot.closed is not None:
            continue
        if slot.only is not None and slot.only != insider:
            continue
        if compute and slot.compute.get(owner, 0) > ceiling:
            continue
        best, best_rank, best_left = slot, rank, left
    return best
