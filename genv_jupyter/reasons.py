"""Why a request is refused: one sentence for each device, and one for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from genv_jupyter.demand import Demand
from genv_jupyter.errors import GpuError, NoCapacity, OutOfRange
from genv_jupyter.policy import Policy
from genv_jupyter.slots import RESIDUE, Own, Slot, inside, memory_on, others_on, outsiders
from genv_jupyter.units import format_memory, format_share

_WAIT = "wait in the queue (`--wait`), or ask a holder to release (`%gpu ask`)."


def refusal(
    slots: Sequence[Slot],
    demand: Demand,
    owner: str,
    policy: Policy,
    own: Mapping[str, Own],
    fitting: int,
) -> GpuError:
    """Return the refusal of a demand for which only ``fitting`` of the candidates do.

    ``OutOfRange`` where it could never be met here, whoever leaves; otherwise ``NoCapacity`` with
    ``details["reasons"]``: a sentence for each device that does not do, by UUID.
    """
    if (never := out_of_range(slots, demand)) is not None:
        return never
    if demand.exclusive:
        what = "free for a whole device"
        hint = f"Ask for a share (e.g. 0.5 or --memory 4G), {_WAIT}"
    else:
        what = f"free for {_share(demand)}"
        hint = f"Ask for less (e.g. --memory 4G), {_WAIT}"
    if demand.devices:
        hint = f"Do not name the device, {_WAIT}"
    if own:
        hint += " What you hold now stays yours."
    reasons = {
        slot.uuid: reason
        for slot in slots
        if (reason := reason_against(slot, demand, owner, policy, own.get(slot.uuid)))
    }
    if fitting:
        verb = "is" if fitting == 1 else "are"
        message = f"Only {fitting} of {_gpus(demand.count)} {verb} {what}."
    elif demand.devices:
        verb = "is" if len(slots) == 1 else "are"
        message = f"{_labels(slots)} {verb} not {what}."
    else:
        message = f"No GPU is {what}."
    return NoCapacity(message, hint=hint, details={"reasons": reasons})


def out_of_range(slots: Sequence[Slot], demand: Demand) -> OutOfRange | None:
    """Return an error for what can never be granted on these devices."""
    if demand.count > len(slots):
        are = "is" if len(slots) == 1 else "are"
        have = f"{are} only {_gpus(len(slots))} here" if slots else "is no GPU here"
        were = "was" if demand.count == 1 else "were"
        return OutOfRange(
            f"There {have}, and {_gpus(demand.count)} {were} asked for.",
            hint="`%gpu devices` or `jupyter gpu devices` lists what there is.",
        )
    if demand.memory is None or not all(slot.capacity for slot in slots):
        return None
    if sum(slot.capacity >= demand.memory for slot in slots) >= demand.count:
        return None
    most = sorted(slot.capacity for slot in slots)[-demand.count]
    if demand.devices:
        where = f"on {_labels(slots)}"
    else:
        where = "on one GPU" if demand.count == 1 else f"on each of {demand.count} GPUs"
    return OutOfRange(
        f"{format_memory(demand.memory)} {where} is more than there is.",
        hint=f"Ask for at most {format_memory(most)}, or for whole GPUs.",
    )


def reason_against(
    slot: Slot, demand: Demand, owner: str, policy: Policy, held: Own | None
) -> str | None:
    """Say why a device does not do; ``None`` when it does."""
    mine = held or Own(0, None, False)
    name = slot.label
    if slot.health == "lost":
        return f"{name} is lost: it does not answer any more."
    if slot.closed is not None and held is None:
        return f"{name} is {slot.closed}."
    if slot.exclusive > int(mine.exclusive):
        return f"{name} is held whole."
    if demand.exclusive:
        if slot.shared > int(held is not None and not mine.exclusive):
            return f"{name} is shared."
        if outsiders(slot, policy):
            return f"{name}: {_in_the_way(slot, whole=True)}."
        return None
    if not slot.capacity:
        return f"{name} does not tell how much memory it has, and can only be had whole."
    alone = held is not None and slot.shared == 1
    if slot.only is not None and not alone and slot.only != inside(demand, owner, policy):
        return (
            f"{name} is shared under MPS in compute mode exclusive process, which lets in nobody "
            "but that user's processes under MPS."
        )
    if held is None and policy.share_between_users == "never" and others_on(slot, owner):
        return f"{name}: another user works on it, and users do not share devices here."
    left = max(0, slot.capacity - slot.granted - slot.external + mine.memory)
    if left < max(1, memory_on(slot, demand)):
        room = f"{name} has {format_memory(left)} left of {format_memory(slot.capacity)}"
        if outsiders(slot, policy):
            return f"{room}; {_in_the_way(slot, whole=False)}."
        return f"{room}."
    others = slot.compute.get(owner, 0) - (mine.compute or 0)
    if demand.compute and others + demand.compute > policy.compute_overcommit:
        return (
            f"{name}: your shares there come to {format_share(others)} already, "
            f"of {format_share(policy.compute_overcommit)}."
        )
    return None


def _in_the_way(slot: Slot, *, whole: bool) -> str:
    """Say who uses what was not granted."""
    outside, excess = format_memory(slot.external - slot.excess), format_memory(slot.excess)
    said = []
    if slot.external - slot.excess > RESIDUE or not slot.excess:
        much, more = ("it", f" ({outside})") if whole else (f"{outside} of it", "")
        said.append(f"somebody uses {much} outside any environment{more}")
    if slot.excess:
        said.append(f"environments use {excess} more of it than they were granted")
    return ", and ".join(said)


def _share(demand: Demand) -> str:
    if demand.memory is not None:
        return format_memory(demand.memory)
    return f"{format_share(demand.fraction)} of a device"


def _labels(slots: Sequence[Slot]) -> str:
    return " and ".join(slot.label for slot in slots)


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"
