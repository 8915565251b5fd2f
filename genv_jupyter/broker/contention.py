"""Who came onto a device after it was granted, and belongs to no environment.

Only what can be proved is said. In a pid namespace of our own the driver may name processes by
ids that mean somebody else here, so nobody is accused there before the driver has been seen to name
a process of ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from genv_jupyter.broker.usage import DeviceUsage, Outsider
from genv_jupyter.isolation import processes
from genv_jupyter.ledger.rows import GrantRow
from genv_jupyter.slots import RESIDUE
from genv_jupyter.units import format_memory

if TYPE_CHECKING:
    from genv_jupyter.broker.core import Core

Presence = tuple[str, int, int | None]
"""A device, and a process on it: its pid and start."""

HINT = (
    "It may take memory and compute that you were promised. Ask its owner to use an environment, "
    "or attach elsewhere."
)


class Contention:
    """Knows since when outsiders are on devices. Used with the broker's lock held."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._here: dict[Presence, float] | None = None
        self._ours = processes.in_initial_namespace()
        self._grants: dict[int, tuple[Outsider, ...]] = {}
        self._before: dict[int, frozenset[Presence]] = {}

    def of(self, grant: GrantRow) -> tuple[Outsider, ...]:
        """Return the outsiders who came onto the device of a grant after it was given."""
        return self._grants.get(grant.id, ())

    def take(self, clock: float) -> None:
        """Take in a reading that was begun at ``clock`` (seconds since the epoch)."""
        usage = self.core.usage
        self._ours = self._ours or any(device.own for device in usage.values())
        self._here = self._seen(usage, clock)
        before, self._grants = self._grants, {}
        known, self._before = self._before, {}
        for uuid, device in usage.items():
            outsiders = [it for it in device.outside if _matters(it)] if self._ours else []
            for grant in self.core.books.on_device.get(uuid, {}).values():
                # Once, by the clock, which may be set back afterwards.
                there = known.get(grant.id)
                if there is None:
                    there = frozenset(it for it, at in self._here.items() if at <= grant.since)
                there &= self._here.keys()  # who has left and comes back comes after it
                self._before[grant.id] = there
                late = tuple(it for it in outsiders if _presence(it) not in there)
                if late and grant.state == "granted":
                    self._grants[grant.id] = late
        self._tell(before)

    def _seen(self, usage: dict[str, DeviceUsage], clock: float) -> dict[Presence, float]:
        """Return since when each outsider is on its device."""
        before = self._here
        found: dict[Presence, float] = {}
        for device in usage.values():
            for outsider in device.outside:
                who = _presence(outsider)
                if before is not None:
                    found[who] = before.get(who, clock)
                elif outsider.start is not None:
                    # It was there before this broker looked: since its start at the earliest.
                    found[who] = processes.started_at(outsider.start)
                else:
                    found[who] = float("-inf")
        return found

    def _tell(self, before: dict[int, tuple[Outsider, ...]]) -> None:
        core = self.core
        grants = {
            grant.id: grant for held in core.books.on_device.values() for grant in held.values()
        }
        told: set[str] = set()
        for number, outsiders in self._grants.items():
            grant = grants[number]
            row = core.books.environments[grant.environment]
            label = core.books.slots[grant.device].label
            message = said(label, outsiders, self._user)
            if number not in before:
                core.books.touch(grant.environment)
                core.record("GrantContended", row, device=grant.device, reason=message)
            topic = str([_presence(outsider) for outsider in outsiders])
            core.board.tell(row, "contended", message, hint=HINT, topic=topic)
            told.add(grant.environment)
        for number in before.keys() - self._grants.keys():
            grant_before = grants.get(number)
            row_before = (
                None
                if grant_before is None
                else core.books.environments.get(grant_before.environment)
            )
            if row_before is not None and row_before.id not in told:
                core.books.touch(row_before.id)
                core.board.withdraw(row_before, "contended")

    def _user(self, uid: int) -> str:
        """Return the name of a user, as it was found last: nobody waits for a directory here."""
        name = self.core.identities.last(f"local:{uid}").name
        return f"uid {uid}" if name == str(uid) else name


def said(label: str, outsiders: tuple[Outsider, ...], user: Callable[[int], str]) -> str:
    """Say who else is on a device; ``user`` names a uid."""
    first = max(outsiders, key=lambda it: it.memory or 0)
    name = f" ({first.name})" if first.name else ""
    whose = "" if first.uid is None else f" of {user(first.uid)}"
    much = "" if first.memory is None else f" and holds {format_memory(first.memory)} there"
    others = len(outsiders) - 1
    more = f", as did {others} more" if others else ""
    return (
        f"Process {first.pid}{name}{whose} belongs to no environment. It came onto {label} after "
        f"that was granted to you{much}{more}."
    )


def _presence(outsider: Outsider) -> Presence:
    return outsider.device, outsider.pid, outsider.start


def _matters(outsider: Outsider) -> bool:
    """Say whether somebody who can be seen really computes there.

    Not the desktop, nor what no context takes, nor a process that has ended meanwhile.
    """
    small = outsider.memory is not None and outsider.memory <= RESIDUE
    return outsider.start is not None and outsider.kind != "graphics" and not small
