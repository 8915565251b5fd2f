"""Kinds of traits for the broker's configuration: written as people write them, kept exactly.

``4G``, ``2h30m`` and ``1.2`` are read by the same code as requests are (``genv_jupyter.units``).
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any

from traitlets import TraitError, TraitType

from genv_jupyter.errors import GpuError
from genv_jupyter.units import MAX_SECONDS, WHOLE, parse_duration, parse_memory

_MOST = 100


class Read(TraitType[Any, Any]):
    """A trait whose text is read by a function that says in words what is wrong with it.

    traitlets may hand it what it has read already: that must read as itself.
    """

    read: Callable[[Any], Any]

    def __init__(self, default: Any, *, help: str, allow_none: bool = False) -> None:
        super().__init__(default, help=help, allow_none=allow_none)
        self.tag(config=True)

    def validate(self, obj: Any, value: Any) -> Any:
        """Read a value, or say what is wrong with it."""
        try:
            return type(self).read(value)
        except GpuError as error:
            raise TraitError(f"{self.name}: {error}") from None


def _size(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TraitError(f"{value!r} is not an amount of memory: write 4G, 4GiB or bytes.")
    return 0 if value in (0, "0") else parse_memory(value)


def _seconds(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MAX_SECONDS:
        return float(value)
    if not isinstance(value, int | str):
        raise TraitError(f"{value!r} is not a duration: write 2h30m, 45m or a number of seconds.")
    return 0.0 if value == "0" else float(parse_duration(value))


def _share(value: object) -> Decimal:
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
            raise InvalidOperation
        text = str(value).strip()
        share = Decimal(text[:-1]) / 100 if text.endswith("%") else Decimal(text)
    except InvalidOperation:
        raise TraitError(f"{value!r} is not a share: write 1.0, 1.25 or 125%.") from None
    if not (share.is_finite() and 0 <= share <= _MOST):
        raise TraitError(f"{value} is not a share between 0 and {_MOST}.")
    if share * WHOLE % 1:
        raise TraitError(f"{value} is finer than a hundredth of a percent.")
    return share


class Size(Read):
    """Memory in bytes: a number, ``4G`` (4·10⁹) or ``4GiB`` (4·2³⁰); 0 is none."""

    info_text = "an amount of memory such as 4G, 4GiB or a number of bytes"
    read = staticmethod(_size)


class Seconds(Read):
    """A duration in seconds: a number, or text such as ``2h30m``."""

    info_text = "a duration such as 2h30m, 45m or a number of seconds"
    read = staticmethod(_seconds)


class Share(Read):
    """A ratio as a ``Decimal``, written ``1.25`` or ``125%``, to a hundredth of a percent."""

    info_text = "a ratio such as 1.0, 1.25 or 125%"
    read = staticmethod(_share)
