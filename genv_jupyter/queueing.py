"""Who of those who wait is next, and on what: a pure function of the line and of what is free.

First come, first served. Somebody is let past only

- onto a device that nobody before them can use as it is now, that is not held for one of them, and
  of which it is not known when one of them will;
- onto any device, where their lease is over before the present leases let those before them begin.

Once somebody has waited for ``patience`` seconds, as many devices as they need are *held* for them:
the ones that should be free first, and those stay the same. Whoever leaves such a device makes room
for them alone, so that a stream of small requests cannot keep a large one waiting for ever. What
somebody holds already they may keep, or make less, whoever waits.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from genv_jupyter.demand import Demand
from genv_jupyter.errors import GpuError
from genv_jupyter.placement import Placed, place
from genv_jupyter.policy import Policy
from genv_jupyter.reasons import reason_against
from genv_jupyter.slots import Own, Slot, memory_on, resolve

_NOW = 1e-6
"""Seconds from now on for somebody who leaves at once; 0 is somebody who should have left."""

Stays = Mapping[str, Sequence["Stay"]]
Closed = Mapping[str, "Gate"]


class Stay(NamedTuple):
    """A grant on a device as it is counted, and the seconds until it ends (``None``: unknown)."""

    environment: str
    owner: str
    counted: Own
    left: float | None


class Waiting(Struct, frozen=True, kw_only=True):
    """One who waits.

    ``slots`` are the devices of its pool, ``own`` what its environment holds already, ``waited``
    for how many seconds it has waited, and ``held`` the devices that an earlier decision held for
    it.
    """

    environment: str
    owner: str
    demand: Demand
    slots: Sequence[Slot]
    own: Mapping[str, Own]
    waited: float
    held: tuple[str, ...] = ()


class Gate(NamedTuple):
    """For whom a device is kept, and how long others may use it meanwhile (``None``: not at all).

    ``held`` says that it is held; otherwise the one before could use it as it is.
    """

    environment: str
    left: float | None
    held: bool


class Decision(Struct, frozen=True, kw_only=True):
    """What is to be done now.

    ``given`` is the place in line of the one who is next and what it gets; ``None``: nobody. What
    ``held`` and ``closed`` say is of those before it, and of all where ``given`` is ``None``:
    decide again after each.
    """

    given: tuple[int, tuple[Placed, ...]] | None
    held: Mapping[str, tuple[str, ...]]
    closed: Closed


def decide(
    line: Sequence[Waiting],
    stays: Stays,
    policy: Policy,
    patience: float,
    *,
    blocked: Container[str] = (),
) -> Decision:
    """Find the first in line who can be served now, so that nobody before them is delayed.

    Parameters
    ----------
    line
        Who waits, the first first.
    stays
        The grants on each device.
    policy
        What placement obeys.
    patience
        Seconds after which devices are held for somebody.
    blocked
        Environments that cannot be served now whatever is free; their place is kept.
    """
    closed: dict[str, Gate] = {}
    held: dict[str, tuple[str, ...]] = {}
    for number, one in enumerate(line):
        placed = None if one.environment in blocked else _placed(one, closed, policy)
        if placed is not None:
            return Decision(given=(number, placed), held=held, closed=closed)
        held[one.environment] = _close(one, closed, stays, policy, patience)
    return Decision(given=None, held=held, closed=closed)


def behind(line: Sequence[Waiting], stays: Stays, policy: Policy, patience: float) -> Closed:
    """Return what is closed to somebody who comes behind all of a line.

    What those get who can be served now, and have not been yet, is closed too.
    """
    closed: dict[str, Gate] = {}
    for one in line:
        for part in _placed(one, closed, policy) or ():
            closed[part.device] = Gate(one.environment, None, False)
        _close(one, closed, stays, policy, patience)
    return closed


def _placed(one: Waiting, closed: Closed, policy: Policy) -> tuple[Placed, ...] | None:
    """Return what somebody gets now, in their place in line."""
    try:
        slots = open_to(one.slots, closed, one.demand, one.own)
        return place(slots, one.demand, one.owner, policy, one.own) if slots else None
    except GpuError:  # no room; or devices that are not there at present, and may come back
        return None


def open_to(
    slots: Sequence[Slot], closed: Closed, demand: Demand, own: Mapping[str, Own]
) -> list[Slot]:
    """Return the devices on which somebody may be placed behind all who wait."""
    return [
        slot
        for slot in slots
        if (gate := closed.get(slot.uuid)) is None
        or _is_over(demand, gate)
        or _is_no_more(slot, demand, own.get(slot.uuid))
    ]


def expected(one: Waiting, ahead: Sequence[Waiting], stays: Stays, policy: Policy) -> float | None:
    """Return the seconds until somebody can be served, if stays end when they say.

    Those ahead who want one of the same devices are taken to get what is free first, and to stay;
    so this is no promise where there are any. ``None``: that cannot be told.
    """
    mine = _candidates(one)
    wanted = {slot.uuid for slot in mine}
    times = sorted(left for slot in mine if (left := free_in(slot, one, stays, policy)) is not None)
    rank = one.demand.count + sum(
        other.demand.count
        for other in ahead
        if not wanted.isdisjoint(slot.uuid for slot in _candidates(other))
    )
    return times[rank - 1] if len(times) >= rank else None


def delayed(
    line: Sequence[Waiting], stays: Stays, policy: Policy, environment: str, left: float | None
) -> Waiting | None:
    """Return the first who would wait longer if an environment stayed for so many seconds.

    Compared with its leaving when its lease ends (at once, where that is over). Nobody who waits
    would be told so by those of whom it is not known when they leave: they are taken to leave now.
    """
    before = _with(stays, environment, None)
    after = _with(stays, environment, math.inf if left is None else left)
    others = [it for it in line if it.environment != environment]
    for number, one in enumerate(others):
        then = expected(one, others[:number], before, policy)
        later = expected(one, others[:number], after, policy)
        if then is not None and (later is None or later > then):
            return one
    return None


def _with(stays: Stays, environment: str, left: float | None) -> Stays:
    """Return stays that all have an end, and one environment's with another one."""

    def end(stay: Stay) -> float:
        there = stay.left if left is None or stay.environment != environment else left
        return max(_NOW, there or 0.0)

    return {uuid: [it._replace(left=end(it)) for it in there] for uuid, there in stays.items()}


def free_in(slot: Slot, one: Waiting, stays: Stays, policy: Policy) -> float | None:
    """Return the seconds until a device would do, if stays end when they say."""
    held = one.own.get(slot.uuid)
    then = dataclasses.replace(slot, compute=dict(slot.compute), owners=dict(slot.owners))
    others = [it for it in stays.get(slot.uuid, ()) if it.environment != one.environment]
    # One that should have ended is as good as one of which nobody knows when it will.
    known = sorted(
        ((it.left, it) for it in others if it.left is not None and it.left > 0),
        key=lambda it: it[0],
    )
    left = 0.0
    for end, stay in known:
        if reason_against(then, one.demand, one.owner, policy, held) is None:
            return left
        then.drop(stay.owner, *stay.counted)
        left = end
    return left if reason_against(then, one.demand, one.owner, policy, held) is None else None


def _close(
    one: Waiting, closed: dict[str, Gate], stays: Stays, policy: Policy, patience: float
) -> tuple[str, ...]:
    """Keep for somebody who has to wait what those behind must not take; return what is held."""
    candidates = _candidates(one)
    if len(candidates) < one.demand.count:
        return ()  # too few are there at present: none of them is kept idle for that
    times = {slot.uuid: free_in(slot, one, stays, policy) for slot in candidates}
    rest = [slot for slot in candidates if slot.uuid not in closed]
    held = _held(one, rest, times, stays) if one.waited >= patience else ()
    known = sorted(left for left in times.values() if left is not None)
    # It is served when the last device that it needs is free, if it is known when that will be.
    start = known[one.demand.count - 1] if len(known) == len(times) else None
    for uuid in dict.fromkeys((*held, *_usable(one.demand.count, rest, times))):
        left = times[uuid] or None if start is None else start
        closed[uuid] = Gate(one.environment, left, uuid in held)
    return held


def _usable(count: int, slots: Sequence[Slot], times: Mapping[str, float | None]) -> list[str]:
    """Return the devices that somebody can use now, and those of which it is known when.

    Of the latter the first that are enough; so where somebody is let past for a known time, others
    do not follow because the device is in use anyway.
    """
    known = [(left, slot.uuid) for slot in slots if (left := times[slot.uuid]) is not None]
    known.sort(key=lambda it: it[0])
    return [uuid for number, (left, uuid) in enumerate(known) if number < count or not left]


def _held(
    one: Waiting,
    candidates: Sequence[Slot],
    times: Mapping[str, float | None],
    stays: Stays,
) -> tuple[str, ...]:
    """Choose the devices to hold: those that were held before, then what should be free first."""

    def rank(slot: Slot) -> tuple[bool, bool, float, int]:
        left = times[slot.uuid]
        return (
            slot.uuid not in one.held,
            left is None,
            left or 0.0,
            len(stays.get(slot.uuid, ())),
        )

    best = sorted(candidates, key=rank)[: one.demand.count]
    return tuple(slot.uuid for slot in best)


def _candidates(one: Waiting) -> list[Slot]:
    """Return the devices that could ever do for somebody, whoever leaves."""
    try:
        slots = resolve(one.demand.devices, one.slots) if one.demand.devices else one.slots
    except GpuError:  # a named device is not there at present
        return []
    demand = one.demand
    return [
        slot
        for slot in slots
        if slot.health != "lost"
        and (slot.closed is None or slot.uuid in one.own)
        and (demand.exclusive or 0 < memory_on(slot, demand) <= slot.capacity)
    ]


def _is_over(demand: Demand, gate: Gate) -> bool:
    """Say whether somebody's lease ends before the device can be used by the one it is kept for."""
    return demand.duration is not None and gate.left is not None and demand.duration <= gate.left


def _is_no_more(slot: Slot, demand: Demand, own: Own | None) -> bool:
    """Say whether a demand takes no more of a device than the environment has of it already."""
    if own is None or demand.exclusive > own.exclusive:
        return False
    if own.exclusive:
        return True
    return memory_on(slot, demand) <= own.memory and (demand.compute or 0) <= (own.compute or 0)
