"""Sizes, shares and durations, as people write them and as the product counts them.

Everything that decides is an integer: memory in bytes, compute in hundredths of a percent
(``10_000`` is a whole device), durations in seconds.
"""

from __future__ import annotations

import math
import re
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Annotated

from msgspec import Meta

from genv_jupyter.errors import BadRequest, OutOfRange

Time = Annotated[datetime, Meta(tz=True)]
"""A point in time; on the wire RFC 3339, never without its zone."""

WHOLE = 10_000
"""Compute of a whole device, in hundredths of a percent."""

MAX_BYTES = 2**63 - 1
"""The largest memory that the ledger can store (SQL ``BIGINT``)."""

MAX_SECONDS = 366 * 24 * 3600

_DECIMAL = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
_MEMORY = re.compile(r"([+-]?[0-9]*\.?[0-9]+)\s*([KMGTPE]?)(I?)B?", re.IGNORECASE | re.ASCII)
_DURATION = re.compile(
    r"(?:(\d{1,6})d)?\s*(?:(\d{1,6})h)?\s*(?:(\d{1,8})m)?\s*(?:(\d{1,9})s?)?", re.ASCII
)
_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MEMORY_HINT = "Write for example 4G (4·10⁹ bytes), 4GiB (4·2³⁰ bytes) or a number of bytes."
_SHARE_HINT = "Ask for a fraction such as 0.5, or for a whole number of GPUs such as 1 or 2."


def parse_memory(value: int | str) -> int:
    """Read an amount of memory.

    ``4G`` is 4·10⁹ bytes and ``4Gi`` or ``4GiB`` is 4·2³⁰ (as in Kubernetes and genv); a bare
    number is bytes; case does not matter.

    Parameters
    ----------
    value
        An integer of bytes, or text.

    Returns
    -------
    int
        Bytes, at least 1.

    Raises
    ------
    BadRequest
        The text is not an amount of memory.
    OutOfRange
        It is one, but zero, negative, or beyond 2⁶³ - 1 bytes.
    """
    if isinstance(value, bool):
        raise BadRequest(f"{value!r} is not an amount of memory.", hint=_MEMORY_HINT)
    if isinstance(value, int):
        amount = Decimal(value)
    else:
        match = _MEMORY.fullmatch(value.strip()) if len(value) <= 64 else None
        if match is None or (match[3] and not match[2]):
            raise BadRequest(f"{_short(value)!r} is not an amount of memory.", hint=_MEMORY_HINT)
        base = 1024 if match[3] else 1000
        amount = Decimal(match[1]) * base ** _DECIMAL[match[2].upper()]
    if amount < 1:
        raise OutOfRange(f"Memory must be at least 1 byte, not {_short(value)}.", hint=_MEMORY_HINT)
    if amount > MAX_BYTES:
        raise OutOfRange(
            f"{_short(value)} is more memory than any device has.", hint="Ask for less, such as 4G."
        )
    return int(amount)


def parse_share(value: float | str) -> int:
    """Read how much compute is wanted: a fraction of one device, or a number of devices.

    Parameters
    ----------
    value
        ``0.5``, ``1``, ``"2"``, ``"1.0"``.

    Returns
    -------
    int
        Hundredths of a percent: below ``WHOLE`` a fraction, otherwise a multiple of ``WHOLE``.

    Raises
    ------
    BadRequest
        It is not a number.
    OutOfRange
        It is not positive, has more than two decimals, or is neither a fraction nor whole.
    """
    try:
        if isinstance(value, bool) or (isinstance(value, str) and len(value) > 32):
            raise InvalidOperation
        number = Decimal(str(value).strip())
    except InvalidOperation:
        raise BadRequest(
            f"{_short(value)!r} is not a share of a GPU.", hint=_share_hint(value)
        ) from None
    if not number.is_finite() or number <= 0:
        raise OutOfRange(f"A share must be more than 0, not {_short(value)}.", hint=_SHARE_HINT)
    if number > 1_000_000:
        raise OutOfRange(f"{_short(value)} GPUs are more than any host has.", hint=_SHARE_HINT)
    if number > 1 and number != number.to_integral_value():
        whole = math.floor(number)
        raise OutOfRange(
            f"{_short(value)} GPUs cannot be given: a fraction lives on one device.",
            hint=f"Ask for {whole} or {whole + 1} whole GPUs, or for a fraction below 1 such as "
            f"{number - whole}; a share of several devices is `2 --memory 10G`.",
        )
    share = number * WHOLE
    if share % 100:
        raise OutOfRange(
            f"A fraction has two decimals at most, not {_short(value)}.", hint=_SHARE_HINT
        )
    return int(share)


def parse_duration(value: int | str) -> int:
    """Read a duration: seconds as an integer, or text such as ``2h30m``, ``45m``, ``1d``.

    Returns
    -------
    int
        Seconds, at least 1.

    Raises
    ------
    BadRequest
        The text is not a duration.
    OutOfRange
        It is zero, negative or beyond 366 days.
    """
    hint = "Write for example 2h30m, 45m, 1d, or a number of seconds."
    if isinstance(value, bool):
        raise BadRequest(f"{value!r} is not a duration.", hint=hint)
    if isinstance(value, int):
        seconds = value
    else:
        text = value.strip().lower()
        match = _DURATION.fullmatch(text) if 0 < len(text) <= 32 else None
        if match is None:
            raise BadRequest(f"{_short(value)!r} is not a duration.", hint=hint)
        days, hours, minutes, rest = (int(part or 0) for part in match.groups())
        seconds = ((days * 24 + hours) * 60 + minutes) * 60 + rest
    if not 0 < seconds <= MAX_SECONDS:
        raise OutOfRange("A duration is between 1 second and 366 days.", hint=hint)
    return seconds


def format_memory(amount: int | None) -> str:
    """Write bytes in GiB (or MiB below one), as capacities are shown: ``23.7 GiB``."""
    if amount is None:
        return "?"
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(amount) >= size:
            return f"{round(amount / size, 1):g} {unit}"
    return f"{amount} B"


def echo_memory(asked: int | str) -> str:
    """Write a request as it was asked, with the other unit beside it: ``4G (3.7 GiB)``."""
    amount = parse_memory(asked)
    if isinstance(asked, int) or asked.strip().isdigit():
        return format_memory(amount)
    text = asked.strip()
    if "i" in text.lower():
        return f"{text} ({round(amount / 1e9, 1):g} GB)"
    return f"{text} ({format_memory(amount)})"


def format_share(compute: int | None) -> str:
    """Write hundredths of a percent: ``50 %``; no ceiling is an empty string."""
    return "" if compute is None else f"{compute / 100:g} %"


def format_duration(seconds: float) -> str:
    """Write a span as people say it: ``3 min``, ``2 h 05 min``, ``4 d``."""
    total = max(0, int(seconds))
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60} min"
    if total < 48 * 3600:
        return f"{total // 3600} h {total % 3600 // 60:02d} min"
    return f"{total // 86400} d"


def _share_hint(value: float | str) -> str:
    """Say how to ask for it, to whoever has written an amount of memory where a share belongs."""
    amount = _MEMORY.fullmatch(str(value).strip())
    if amount is None or not amount[2]:
        return _SHARE_HINT
    return f"An amount of memory is asked for with `--memory {amount[0]}`. {_SHARE_HINT}"


def _short(value: float | str) -> str:
    """Quote what somebody wrote without letting it fill the screen."""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 40 else f"{text[:40]}…"


def short_uuid(uuid: str) -> str:
    """Return as much of a UUID as tells devices apart, prefix included."""
    prefix, _, rest = uuid.partition("-")
    return f"{prefix}-{rest[:8]}" if rest else uuid[:12]


def format_moment(when: datetime, now: datetime) -> str:
    """Write a moment in local time: ``14:02``, ``Tue 14:02`` within six days, else with the date.

    Six days, since a week away the weekday is today's own.
    """
    local, today = when.astimezone(), now.astimezone()
    days = abs((local.date() - today.date()).days)
    if days == 0:
        return f"{local:%H:%M}"
    if days <= 6:
        return f"{_WEEKDAYS[local.weekday()]} {local:%H:%M}"  # not %a: that is the locale's
    return f"{local:%Y-%m-%d %H:%M}"


def format_since(when: datetime, now: datetime) -> str:
    """Write since when in local time, and how long that is: ``14:02 (12 min)``."""
    return f"{format_moment(when, now)} ({format_duration((now - when).total_seconds())})"
