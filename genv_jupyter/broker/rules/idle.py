"""Devices that are held and not used: nothing executes, and the use is known to be zero."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from msgspec import Struct

from genv_jupyter.broker.rules.breaches import Breach, Key
from genv_jupyter.model import KernelState
from genv_jupyter.units import format_duration

HINT = "Keep it with the button or `%gpu keep`, or release what is not needed."


class Load(Struct, frozen=True):
    """What is known of one granted device: percent in use, and the environment's own processes.

    ``present`` is whether one of them is on it; ``None``: the driver does not tell.
    """

    utilization: int | None
    present: bool | None


def rests(state: KernelState | None, loads: Sequence[Load]) -> bool:
    """Say whether nothing executes and nothing is used, as far as that is *known*.

    The use of a shared device may be anybody's: only where none of one's own processes is there,
    or the whole device rests, is it known to be zero. What is unknown is never zero.
    """
    if state != "idle" or not loads:
        return False
    return all(load.present is False or load.utilization == 0 for load in loads)


class Idleness:
    """Since when each environment has rested without a break, on a clock that nobody turns.

    It begins with what this broker has seen: after a restart of the broker all begin anew.
    """

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._kernel_since: dict[str, datetime | None] = {}

    def observe(self, resting: Mapping[str, datetime | None], now: float) -> None:
        """Take in who rests at this moment, each with when its last execution ended.

        One that has executed something between two looks does not rest since the first.
        """
        self._since = {
            it: self._since[it] if it in self._since and self._kernel_since[it] == ended else now
            for it, ended in resting.items()
        }
        self._kernel_since = dict(resting)

    def keep(self, environment: str, now: float) -> None:
        """Begin anew: its owner wants to keep what is held."""
        if environment in self._since:
            self._since[environment] = now

    def seconds(self, environment: str, now: float) -> float | None:
        """Return for how long an environment has rested; ``None``: it does not."""
        since = self._since.get(environment)
        return None if since is None else now - since


def judge(
    environment: str, labels: Sequence[str], rested: float | None, after: float
) -> Breach | None:
    """Judge an environment that holds devices.

    Parameters
    ----------
    labels
        The devices it holds, as sentences name them.
    rested, after
        Seconds for which it has rested, and from which on that is too long.
    """
    if rested is None or rested < after:
        return None
    return Breach(
        key=Key("idle", environment),
        said=f"Nothing has run here for {format_duration(after)}, and {' and '.join(labels)} "
        f"{'is' if len(labels) == 1 else 'are'} held.",
        hint=HINT,
        whole=True,
    )
