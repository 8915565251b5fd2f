"""Leases: until when an environment has what it has.

The end is kept in steady seconds, so that neither a step of the clock nor another broker moves it.
What happens at the end is a rule's business; here it is set, extended, shown and announced.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec
from traitlets import Bool
from traitlets.config import Configurable

from genv_jupyter.broker.core import Core
from genv_jupyter.broker.discretion import owner_of, seen
from genv_jupyter.broker.rules.settings import THEN, Rules
from genv_jupyter.broker.traits import Seconds
from genv_jupyter.demand import Demand
from genv_jupyter.errors import Conflict, OutOfRange
from genv_jupyter.ledger.rows import EnvironmentRow
from genv_jupyter.units import MAX_SECONDS, format_duration, parse_duration


class Leases(Configurable):
    """How leases end and how long they may be."""

    notice = Seconds(
        600.0,
        help="How long before its end the owner of a lease is told of it: seconds, or 10m; at "
        "most a fifth of the time that was asked for.",
    )
    longest = Seconds(
        0.0,
        help="The longest that a lease may run from now on, extensions included: seconds, or 8h. "
        "0: as long as somebody asks for.",
    )
    extend_while_awaited = Bool(
        False,
        help="Whether a lease can be extended although somebody in the queue would have to wait "
        "longer for what is held.",
    ).tag(config=True)


def end_of(
    core: Core, demand: Demand, owner: str, before: EnvironmentRow | None = None
) -> float | None:
    """Return when a lease that begins now ends (steady seconds); ``None``: it has no end.

    Where the owner's quota bounds leases, who asks for none has one of that length. ``before`` is
    an environment that keeps its devices: its lease stays as it is if somebody who waits would
    wait longer for them.

    Raises
    ------
    OutOfRange, QuotaExceeded
        That is longer than leases may be, or those of the owner.
    """
    if demand.duration is not None:
        _check(core, demand.duration)
    seconds = core.quotas.lease(owner, demand.duration)
    end = None if seconds is None else core.steady() + seconds
    if before is not None and before.expires is not None and (end is None or end > before.expires):
        return before.expires if _delayed(core, before, end) is not None else end
    return end


def extend(core: Core, row: EnvironmentRow, duration: int | str) -> EnvironmentRow:
    """Return an environment whose lease ends later; one that is over begins anew.

    Raises
    ------
    BadRequest, OutOfRange
        That is no duration, or longer than leases may be.
    Conflict
        There is no lease, or somebody who waits would wait longer.
    """
    seconds = parse_duration(duration)
    if row.expires is None or not core.books.grants.get(row.id):
        raise Conflict(
            "There is no lease to extend: what is held here has no end."
            if core.books.grants.get(row.id)
            else "There is no lease to extend: nothing is held here.",
            hint="`%gpu attach 1 --for 2h` gives it one.",
        )
    end = max(row.expires, core.steady()) + seconds
    _check(core, end - core.steady())
    core.quotas.lease(row.owner, end - core.steady())
    waiter = _delayed(core, row, end)
    if waiter is not None:
        shown = seen(core, waiter, owner_of(row))
        who = f"{shown.name} of {shown.user}" if shown.name else shown.user
        raise Conflict(
            f"{who} waits for what is held here, and would have to wait longer.",
            hint="Your lease stays as it is. Agree with them, or get in line for another turn: "
            "`%gpu attach … --wait`.",
        )
    return msgspec.structs.replace(row, expires=end)


def promise(core: Core, row: EnvironmentRow, seconds: float) -> EnvironmentRow:
    """Return an environment that gives back what it has in so many seconds, or before."""
    end = core.steady() + seconds
    if not core.books.grants.get(row.id) or (row.expires is not None and row.expires <= end):
        return row
    return msgspec.structs.replace(row, expires=end)


def shown(core: Core, row: EnvironmentRow) -> datetime | None:
    """Return the end of a lease as a time, to the second."""
    if row.expires is None:
        return None
    end = core.stamp(core.clock() + row.expires - core.steady() + 0.5)
    return end - timedelta(microseconds=end.microsecond)


def _delayed(core: Core, row: EnvironmentRow, end: float | None) -> EnvironmentRow | None:
    """Return who would wait longer if a lease ended then; nobody, where that is allowed."""
    if core.config.of(Leases).extend_while_awaited:
        return None
    return core.line.delayed(row, None if end is None else end - core.steady())


class Announcer:
    """Tells owners that their lease is about to end. Called once a second, under the lock."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._told: set[str] = set()

    def round(self) -> None:
        """Put up what is to be said now, and take down what is no longer true."""
        core, books = self.core, self.core.books
        due = set()
        for environment in books.grants:
            row = books.environments[environment]
            if row.expires is not None and core.steady() >= row.expires - self._before(row):
                due.add(environment)
                self._tell(row, row.expires)
        for environment in self._told - due:
            gone = books.environments.get(environment)
            if gone is not None:
                core.board.withdraw(gone, "lease")
        self._told = due

    def _before(self, row: EnvironmentRow) -> float:
        notice = float(self.core.config.of(Leases).notice)
        asked = None if row.request is None else _Asked.of(row.request)
        return notice if asked is None else min(notice, asked / 5)

    def _tell(self, row: EnvironmentRow, expires: float) -> None:
        left = expires - self.core.steady()
        if left > 0:
            message = f"The lease of what is held here ends in {format_duration(left)}."
        else:
            message = f"The lease of what is held here is over since {format_duration(-left)}."
        until = self.core.clock() + left
        term = self.core.config.of(Rules).terms()["lease"]
        if term.mode == "act" and not term.dry:
            after = "then" if term.grace < 1 else f"{format_duration(term.grace)} after its end"
            message += f" {after[0].upper()}{after[1:]} {THEN[term.action]}."
            until += 0.0 if left > 0 else term.grace
        self.core.board.tell(
            row,
            "lease",
            message,
            hint="Extend it (`%gpu extend 1h`), or release what is no longer needed.",
            until=round(
                until
            ),  # the same while nothing changes: two clocks are never quite in step
            actions=("extend", "release"),
            topic=f"{expires} {left > 0}",
        )


class _Asked(msgspec.Struct):
    """The part of a request that leases are about."""

    duration: int | str | None = None

    @classmethod
    def of(cls, request: str) -> int | None:
        """Return the seconds that were asked for."""
        found = msgspec.json.decode(request, type=cls).duration
        return None if found is None else parse_duration(found)


def _check(core: Core, seconds: float) -> None:
    longest = core.config.of(Leases).longest or MAX_SECONDS
    if seconds > longest:
        raise OutOfRange(
            f"A lease of {format_duration(seconds)} is longer than leases may be.",
            hint=f"Ask for at most {format_duration(longest)} from now on.",
        )
