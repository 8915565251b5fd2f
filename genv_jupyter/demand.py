"""From a request as it was asked to the numbers that placement works with."""

from __future__ import annotations

from msgspec import Struct

from genv_jupyter.errors import BadRequest, OutOfRange
from genv_jupyter.model import Mps, Request
from genv_jupyter.units import WHOLE, parse_duration, parse_memory, parse_share

MAX_DEVICES = 1024
MAX_NAME = 200
MAX_PROCESSES = 48
_WHAT_TO_ASK = "Ask for a fraction (0.5), a number of GPUs (1), memory (4G) or named devices."


class Demand(Struct, frozen=True, kw_only=True):
    """A checked request.

    ``count`` devices, each ``exclusive`` or with ``fraction`` (of the usable memory, hundredths of
    a percent), ``memory`` (bytes) and a ``compute`` ceiling (hundredths of a percent). Where
    ``memory`` is ``None`` and ``fraction`` is not, the memory follows from the device. ``devices``
    are names as asked: UUIDs, unique prefixes or indices.
    """

    count: int
    exclusive: bool
    fraction: int | None
    memory: int | None
    compute: int | None
    devices: tuple[str, ...]
    processes: int
    duration: int | None
    wait: int | None
    mps: Mps


def demand_of(request: Request) -> Demand:
    """Check a request and compute its demand.

    Raises
    ------
    BadRequest
        Nothing was asked for, or the parts contradict each other.
    OutOfRange
        A number that no host could grant.
    """
    devices = _devices(request.devices)
    count, fraction = _shares(request)
    memory = None if request.memory is None else parse_memory(request.memory)
    if count is None and fraction is None and memory is None and not devices:
        raise BadRequest("Nothing was asked for.", hint=_WHAT_TO_ASK)
    if devices and count is not None and count != len(devices):
        raise BadRequest(
            f"{count} GPUs were asked for and {len(devices)} named.",
            hint="Leave the number out, or name as many devices.",
        )
    shared = fraction is not None or memory is not None
    if request.name is not None and len(request.name) > MAX_NAME:
        raise BadRequest("The name is too long.", hint=f"Use at most {MAX_NAME} characters.")
    processes = 1 if request.processes is None else request.processes
    if not 1 <= processes <= MAX_PROCESSES:
        raise OutOfRange(
            f"{processes} processes cannot share a GPU.",
            hint=f"Ask for 1 to {MAX_PROCESSES} processes.",
        )
    return Demand(
        count=len(devices) or count or 1,
        exclusive=not shared,
        fraction=fraction if memory is None else None,
        memory=memory,
        compute=fraction,
        devices=devices,
        processes=processes,
        duration=None if request.duration is None else parse_duration(request.duration),
        wait=None if request.wait is None else parse_duration(request.wait),
        mps=request.mps,
    )


def read_request(text: str) -> Request | None:
    """Read a request as one word of a configuration: ``0.5``, ``1``, ``4G``; empty is none.

    Raises
    ------
    BadRequest, OutOfRange
        It is not a request.
    """
    text = text.strip()
    if not text:
        return None
    try:
        request = Request(gpus=float(text))
    except ValueError:
        request = Request(memory=text)
    demand_of(request)
    return request


def _devices(asked: tuple[str, ...] | None) -> tuple[str, ...]:
    if asked is None:
        return ()
    names = tuple(name.strip() for name in asked)
    if not names or not all(names):
        raise BadRequest("The list of devices is empty.", hint="Name a UUID, a prefix or an index.")
    if len(names) > MAX_DEVICES or any(len(name) > 200 for name in names):
        raise OutOfRange(
            "More devices were named than any host has, or a name is too long.",
            hint="Name a UUID, a prefix or an index.",
        )
    return names


def _shares(request: Request) -> tuple[int | None, int | None]:
    """Return (number of devices, fraction), reading ``1.0`` as one device in either field."""
    count = fraction = None
    if request.gpus is not None:
        share = parse_share(request.gpus)
        if share < WHOLE:
            fraction = share
        else:
            count = share // WHOLE
            if count > MAX_DEVICES:
                raise OutOfRange(f"{count} GPUs are more than any host has.", hint=_WHAT_TO_ASK)
    if request.fraction is not None:
        share = parse_share(request.fraction)
        if fraction is not None:
            raise BadRequest("Two fractions were given.", hint=_WHAT_TO_ASK)
        if share > WHOLE:
            raise OutOfRange(
                f"A fraction of {request.fraction:g} is more than one device.",
                hint=f"Ask for gpus: {share // WHOLE} instead.",
            )
        if share == WHOLE:
            count = count or 1
        else:
            fraction = share
    return count, fraction
