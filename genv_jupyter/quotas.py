"""How much somebody may have: rules, which of them holds, and what is left of it.

A rule is for everybody (``default``), for a group (``group:lab``) or for a user (``user:ann``), and
bounds some quantities; others it leaves to weaker rules. For each quantity the user's own rule
comes first, then the most generous among those of the user's groups, then the default. Everything
is counted in integers: shares in hundredths of a percent of a device, memory in bytes, time in
seconds, GPU time in seconds of one whole device.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Literal, NamedTuple

from msgspec import UNSET, Struct, UnsetType

from genv_jupyter.errors import BadRequest, OutOfRange, QuotaExceeded
from genv_jupyter.model import Time
from genv_jupyter.units import (
    WHOLE,
    format_duration,
    format_memory,
    parse_duration,
    parse_memory,
)

Quantity = Literal[
    "devices",
    "fraction",
    "memory",
    "environments",
    "queue",
    "lease",
    "hours_day",
    "hours_week",
    "hours_month",
]
Period = Literal["hours_day", "hours_week", "hours_month"]
QUANTITIES: tuple[Quantity, ...] = (
    *("devices", "fraction", "memory", "environments", "queue", "lease"),
    *("hours_day", "hours_week", "hours_month"),
)
PERIODS: tuple[Period, ...] = ("hours_day", "hours_week", "hours_month")
DEFAULT = "default"
_HOUR = 3600
_SCOPE_HINT = "Say default, group:NAME or user:NAME."


class QuotaLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one rule says, as it was written; ``null`` is no bound, what is left out is not said.

    ``devices`` are whole devices, of which half a device is a half; ``fraction`` is the most of one
    shared device; ``memory`` is over all devices; ``environments`` those that hold something;
    ``lease`` the longest that a lease may run; ``hours_…`` GPU hours in each day, week (from
    Monday) and month. ``guaranteed`` bounds nothing: so many devices are kept for a group.
    """

    devices: float | UnsetType | None = UNSET
    fraction: float | UnsetType | None = UNSET
    memory: int | str | UnsetType | None = UNSET
    environments: int | UnsetType | None = UNSET
    queue: int | UnsetType | None = UNSET
    lease: int | str | UnsetType | None = UNSET
    hours_day: float | UnsetType | None = UNSET
    hours_week: float | UnsetType | None = UNSET
    hours_month: float | UnsetType | None = UNSET
    guaranteed: float | UnsetType = UNSET


class QuotaRule(Struct, frozen=True, kw_only=True):
    """One rule, as it is listed: whom it is for, what it says, where from, and by whom since."""

    scope: str
    limits: QuotaLimits
    source: Literal["configuration", "set", "hub"]
    by: str | None = None
    since: Time | None = None


class QuotaUse(Struct, frozen=True, kw_only=True):
    """One quantity of somebody's quota.

    In devices, bytes, hours, seconds (``lease``), or a number. ``limit`` and ``left`` are ``null``
    where nothing bounds it, and ``rule`` is which one does. ``used`` is ``null`` where nothing is
    counted (``fraction``, ``lease``) or known. ``reset`` is when a period begins anew.
    """

    quantity: Quantity
    used: float | None
    limit: float | None
    left: float | None
    rule: str | None
    reset: Time | None = None


class GuaranteeUse(Struct, frozen=True, kw_only=True):
    """What a group is guaranteed, in devices, and what its members hold of it, all together."""

    group: str
    devices: float
    used: float


class QuotaView(Struct, frozen=True, kw_only=True):
    """Answer of ``GET quota``; ``guarantees`` are those of the user's groups."""

    user: str
    groups: tuple[str, ...]
    timezone: str
    quantities: tuple[QuotaUse, ...]
    guarantees: tuple[GuaranteeUse, ...] = ()


class Bound(NamedTuple):
    """What bounds a quantity (``None``: nothing does), and the rule that says so."""

    limit: int | None
    rule: str | None


NO_BOUND = Bound(None, None)
Bounds = Mapping[str, int | None]
"""What one rule says, read: the quantities it names."""


class Use(NamedTuple):
    """What somebody holds or asks for."""

    devices: int = 0
    memory: int = 0
    environments: int = 0
    fraction: int = 0


def read_limits(limits: QuotaLimits) -> dict[str, int | None]:
    """Read what a rule says into integers.

    Raises
    ------
    BadRequest, OutOfRange
        A value cannot be read; its name is in the message.
    """
    found: dict[str, int | None] = {}
    for name in QUANTITIES:
        value = getattr(limits, name)
        if value is not UNSET:
            try:
                found[name] = None if value is None else _read(name, value)
            except (BadRequest, OutOfRange) as error:
                raise type(error)(f"{name}: {error.message}", hint=error.hint) from None
    try:
        guaranteed_by(limits)
    except OutOfRange as error:
        raise OutOfRange(f"guaranteed: {error.message}", hint=error.hint) from None
    return found


def _read(name: Quantity, value: Any) -> int:
    if name == "memory":
        return 0 if value in (0, "0") else parse_memory(value)
    if name == "lease":
        return parse_duration(value)
    if name in ("devices", "fraction"):
        return _number(value, WHOLE, WHOLE if name == "fraction" else 1024 * WHOLE)
    if name in PERIODS:
        return _number(value, _HOUR, 10**7 * _HOUR)
    return _number(value, 1, 10**6)


def _number(value: Any, unit: int, most: int) -> int:
    try:
        number = Decimal(str(value)) * unit
    except InvalidOperation:
        number = Decimal("NaN")
    if not number.is_finite() or not 0 <= number <= most or number % 1:
        raise OutOfRange(
            f"{value} is not between 0 and {most // unit}, or too fine.", hint="Write 2 or 0.5."
        )
    return int(number)


def check_rule(scope: str, limits: QuotaLimits) -> None:
    """Check whom a rule is for, and what it says.

    Raises
    ------
    BadRequest, OutOfRange
        That is nobody, or cannot be read.
    """
    check_scope(scope)
    read_limits(limits)
    if not scope.startswith("group:") and limits.guaranteed is not UNSET:
        raise BadRequest(
            f"guaranteed: devices are kept for groups, and {scope} is none.",
            hint="Say group:NAME; a group may have one member.",
        )


def guaranteed_by(limits: QuotaLimits) -> int:
    """Return what a rule guarantees, in hundredths of a percent of a device.

    Raises
    ------
    OutOfRange
        It cannot be read.
    """
    value = limits.guaranteed
    return 0 if value is UNSET else _number(value, WHOLE, 1024 * WHOLE)


def check_scope(scope: str) -> str:
    """Check whom a rule is for.

    Raises
    ------
    BadRequest
        That is nobody.
    """
    kind, colon, name = scope.partition(":")
    named = kind in ("group", "user") and colon and 0 < len(name) <= 200 and name.isprintable()
    if scope == DEFAULT or named:
        return scope
    raise BadRequest(f"{scope[:64]!r} is nobody that a quota could be for.", hint=_SCOPE_HINT)


def bound_of(
    quantity: Quantity, name: str, groups: Iterable[str], rules: Mapping[str, Bounds]
) -> Bound:
    """Return what bounds a quantity for a user: own rule, most generous group, default."""
    own = f"user:{name}"
    if quantity in rules.get(own, {}):
        return Bound(rules[own][quantity], own)
    best: Bound | None = None
    for group in sorted(groups):
        scope = f"group:{group}"
        if quantity not in rules.get(scope, {}):
            continue
        limit = rules[scope][quantity]
        if best is None or (best.limit is not None and (limit is None or limit > best.limit)):
            best = Bound(limit, scope)
    if best is not None:
        return best
    if quantity in rules.get(DEFAULT, {}):
        return Bound(rules[DEFAULT][quantity], DEFAULT)
    return NO_BOUND


def share_of(memory: int, compute: int | None, capacity: int, *, exclusive: bool) -> int:
    """Return what part of a device a grant is: of its memory or its compute, whichever is more."""
    if exclusive:
        return WHOLE
    part = memory * WHOLE // capacity if capacity else 0
    return min(WHOLE, max(part, compute or 0))


def began(period: Period, now: datetime) -> datetime:
    """Return when the present period began, in the time zone of ``now``."""
    day = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if period == "hours_week":
        return day - timedelta(days=now.weekday())
    return day.replace(day=1) if period == "hours_month" else day


def resets(period: Period, now: datetime) -> datetime:
    """Return when the next period begins."""
    start = began(period, now)
    if period == "hours_day":
        return start + timedelta(days=1)
    if period == "hours_week":
        return start + timedelta(days=7)
    return (start + timedelta(days=32)).replace(day=1)


def shown(quantity: Quantity, value: int | None) -> float | None:
    """Return a value in the unit in which it is shown."""
    if value is None:
        return None
    if quantity in ("devices", "fraction"):
        return value / WHOLE
    return value / _HOUR if quantity in PERIODS else value


def said(quantity: Quantity, value: int) -> str:
    """Say a value with its unit."""
    if quantity == "memory":
        return format_memory(value)
    if quantity == "lease":
        return format_duration(value)
    number = f"{shown(quantity, value):.4g}"
    if quantity in PERIODS:
        return f"{number} GPU hours"
    one = number == "1"
    words = {
        "devices": ("device", "devices"),
        "fraction": ("of a device", "of a device"),
        "environments": ("environment", "environments"),
        "queue": ("place in the queue", "places in the queue"),
    }
    return f"{number} {words[quantity][0 if one else 1]}"


_PERIOD = {"hours_day": "today", "hours_week": "this week", "hours_month": "this month"}


def refusal(
    quantity: Quantity,
    bound: Bound,
    *,
    used: int,
    asked: int,
    reset: datetime | None = None,
) -> QuotaExceeded:
    """Return the error that says which bound was reached, and what to do."""
    limit = bound.limit or 0
    have, may = said(quantity, used), said(quantity, limit)
    if quantity in PERIODS:
        message = f"You have used {have} of {may} {_PERIOD[quantity]}."
        hint = "Release what you do not need"
        hint += f"; more comes on {reset:%Y-%m-%d at %H:%M %Z}." if reset else "."
    elif quantity in ("fraction", "lease"):
        message = f"You asked for {said(quantity, asked)}, and may have {may} at most."
        hint = "Ask for less."
    else:
        message = f"You have {have} and asked for {said(quantity, asked)}; you may have {may}."
        hint = "Release something of yours, or ask for less."
    return QuotaExceeded(
        message,
        hint=f"{hint} `%gpu quota` or `jupyter gpu quota` shows all of it.",
        details={
            "quantity": quantity,
            "used": shown(quantity, used),
            "asked": shown(quantity, asked),
            "limit": shown(quantity, limit),
            "left": shown(quantity, max(0, limit - used)),
            "rule": bound.rule,
            "reset": None if reset is None else reset.isoformat(),
        },
    )
