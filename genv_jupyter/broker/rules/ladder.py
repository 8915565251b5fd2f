"""Which step is due: tell, and after a grace interrupt, terminate, kill; a pure function of time.

Where a rule is about an environment and not about a process, the step after telling is the whole:
its kernel is restarted or shut down. A breach that is over is forgotten, and begins anew with
telling; so do all of them after a crash of the broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import msgspec
from msgspec import Struct

from genv_jupyter.broker.rules.breaches import Breach, Key, Rule, Target

Mode = Literal["off", "warn", "act"]
Action = Literal["processes", "restart", "shutdown"]
Step = Literal["interrupt", "terminate", "kill", "restart", "shutdown", "release"]
Identity = tuple[int, int | None]

REPEAT = 60.0
"""Seconds after which a kernel that is still there is to be restarted, or shut down, again."""

REMEMBERED = 60.0
"""Seconds for which it is known, besides ``pause``, what was done about a process that is no target
any more: where two take turns at being the largest, each would be asked anew for ever."""

_NEXT: Mapping[Step, Step] = {"interrupt": "terminate", "terminate": "kill", "kill": "kill"}


class Terms(Struct, frozen=True, kw_only=True):
    """How one rule stands; times in seconds.

    ``patience`` is for how long a breach lasts before it is one, ``grace`` the time from telling
    to the first step, ``pause`` that between the steps. ``dry`` only records what would be done.
    """

    mode: Mode
    grace: float
    pause: float
    patience: float = 0.0
    dry: bool = False
    action: Action = "processes"


class Taken(Struct, frozen=True):
    """The last step that was taken against a process, or the environment, and when."""

    step: Step
    at: float


class Rung(Struct, frozen=True, kw_only=True):
    """How far the ladder was climbed for one breach.

    ``began`` is when it was first seen (where the grace begins anew, then), ``told`` whether it has
    lasted long enough to be told, and ``terms`` what was told of the consequences. ``taken`` is by
    process, and under ``None`` for the whole.
    """

    breach: Breach
    began: float
    told: bool = False
    terms: Terms | None = None
    taken: Mapping[Identity | None, Taken] = {}


class Order(Struct, frozen=True, kw_only=True):
    """A step that is due now."""

    step: Step
    breach: Breach
    target: Target | None = None
    dry: bool = False


Rungs = Mapping[Key, Rung]


def climb(
    rungs: Rungs,
    breaches: Iterable[Breach],
    terms: Mapping[Rule, Terms],
    now: float,
    *,
    unsure: Callable[[Key], bool] = lambda key: False,
    served: Callable[[str], bool] = lambda environment: True,
) -> tuple[dict[Key, Rung], list[Order]]:
    """Return how far each breach has come, and the steps that are due.

    Parameters
    ----------
    rungs
        What the last call returned.
    unsure
        Whether nothing is known of a breach at present: it stays as it is, and its grace begins
        anew.
    served
        Whether an environment has a Jupyter server that can restart or shut it down.
    """
    after: dict[Key, Rung] = {}
    orders: list[Order] = []
    for key, rung in rungs.items():
        if unsure(key) and terms[key.rule].mode != "off":
            after[key] = msgspec.structs.replace(rung, began=now)
    for breach in breaches:
        key, term = breach.key, terms[breach.key.rule]
        if term.mode == "off" or key in after:
            continue
        rung = rungs.get(key) or Rung(breach=breach, began=now)
        told = rung.told or now - rung.began >= term.patience
        if told and (not rung.told or rung.terms != term):
            # The grace begins with telling; and with terms that nobody was told, all begins anew.
            rung = msgspec.structs.replace(rung, began=now, terms=term, taken={})
        rung = msgspec.structs.replace(rung, breach=breach, told=told)
        due = _due(rung, term, now, served(key.environment)) if told else []
        taken = {**_remembered(rung, term, now), **{_whom(it): Taken(it.step, now) for it in due}}
        after[key] = msgspec.structs.replace(rung, taken=taken)
        orders += due
    return after, orders


def next_at(rung: Rung, term: Terms) -> float | None:
    """Return when the first step follows; ``None``: none will, or it was taken."""
    if term.mode != "act" or rung.taken or not (rung.breach.targets or rung.breach.whole):
        return None
    return rung.began + term.grace


def _due(rung: Rung, term: Terms, now: float, served: bool) -> list[Order]:
    if term.mode != "act" or now - rung.began < term.grace:
        return []
    breach = rung.breach
    if breach.whole and term.action != "processes":
        before = rung.taken.get(None)
        if served:
            if before is not None and (term.dry or now - before.at < REPEAT):
                return []
            return [Order(step=term.action, breach=breach, dry=term.dry)]
        if before is None:
            return [Order(step="release", breach=breach, dry=term.dry)]
        if now - before.at < term.pause:
            return []
    return [
        Order(step=step, breach=breach, target=target, dry=term.dry)
        for target in breach.targets
        if (step := _next(rung.taken.get(target.identity), term, now)) is not None
    ]


def _next(before: Taken | None, term: Terms, now: float) -> Step | None:
    if before is None:
        return "interrupt"
    if now - before.at < term.pause or (before.step == "kill" and term.dry):
        return None
    return _NEXT[before.step]


def _remembered(rung: Rung, term: Terms, now: float) -> dict[Identity | None, Taken]:
    """Forget the steps against processes that have been no targets for a while."""
    here = {None, *(target.identity for target in rung.breach.targets)}
    since = now - term.pause - REMEMBERED
    return {whom: it for whom, it in rung.taken.items() if whom in here or it.at > since}


def _whom(order: Order) -> Identity | None:
    return None if order.target is None else order.target.identity
