"""What is kept for groups that are guaranteed something: pure functions of what is free.

A guarantee is a number of devices, of which half a device is a half. What the members of the group
hold counts towards it; for the rest, rounded up, devices that nobody uses are kept: nobody else
gets anything there. It takes nothing from anybody: where too little is free it is kept as soon as
something is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from genv_jupyter.policy import Policy
from genv_jupyter.slots import Slot, outsiders
from genv_jupyter.units import WHOLE


class Guarantee(Struct, frozen=True, kw_only=True):
    """What a group is guaranteed, and what its members hold (hundredths of a percent)."""

    group: str
    devices: int
    used: int

    @property
    def missing(self) -> int:
        """Whole devices that have to be kept for the group."""
        return -(-max(0, self.devices - self.used) // WHOLE)

    @property
    def words(self) -> str:
        """Say why a device is kept, as part of a sentence."""
        much, has = self.devices / WHOLE, self.used / WHOLE
        gpus = "1 GPU" if much == 1 else f"{much:g} GPUs"
        return f"kept for the group {self.group}, which is guaranteed {gpus} and has {has:g}"


def keep(
    slots: Iterable[Slot],
    guarantees: Iterable[Guarantee],
    groups: Iterable[str],
    policy: Policy,
) -> Mapping[str, Guarantee]:
    """Return the devices that are kept from somebody, and for whom.

    Parameters
    ----------
    slots
        All devices of the host, in index order. The last ones are kept: the first are given first.
    guarantees
        All that there are. Where not everybody's can be kept, nothing is kept from those who are
        guaranteed something themselves and do not have it.
    groups
        Those of the one who asks: nothing is kept from a member.
    policy
        What counts as used by outsiders.
    """
    mine = frozenset(groups)
    found = sorted(guarantees, key=lambda it: it.group)
    others = [it for it in found if it.group not in mine for _ in range(it.missing)]
    if not others:
        return {}
    own = sum(it.missing for it in found if it.group in mine)
    free = [slot.uuid for slot in slots if _free(slot, policy)]
    count = min(len(others), len(free) - own)
    return dict(zip(reversed(free), others[: max(0, count)], strict=False))


def _free(slot: Slot, policy: Policy) -> bool:
    return (
        not slot.exclusive
        and not slot.shared
        and slot.health == "ok"
        and slot.closed is None
        and not outsiders(slot, policy)
    )
