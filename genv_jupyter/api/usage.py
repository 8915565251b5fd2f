"""What is and was used, over HTTP: the arguments of ``usage`` and ``usage/report``.

The past is read by a thread of its own: a disk that hangs keeps nobody but those who ask for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from genv_jupyter.errors import BadRequest, Unavailable
from genv_jupyter.reports import By
from genv_jupyter.units import parse_duration

if TYPE_CHECKING:
    from genv_jupyter.api.doors import Verbs

READ_SECONDS = 8.0
"""For which a reader of the past waits for the disk: less than clients wait for the broker."""

_reader = ThreadPoolExecutor(1, thread_name_prefix="past")


async def usage(verb: Verbs) -> None:
    """Answer ``GET usage``: of an environment now, or its past, or a device's."""
    environment = verb.get_query_argument("environment", None)
    device = verb.get_query_argument("device", None)
    since, step = verb.time("since"), verb.get_query_argument("step", None)
    if (environment is None) == (device is None):
        raise BadRequest(
            "usage is that of one environment or of one device.",
            hint="Say environment=ID, or device=UUID with since.",
        )
    caller, broker = verb.caller, verb.host.broker
    if since is None:
        if environment is None or step is not None:
            raise BadRequest(
                "A past begins somewhere: since is missing.",
                hint="Say since=2026-01-31T12:00:00Z; what is used now is in devices.",
            )
        asked = environment
        await verb.answer(lambda: broker.usage(caller, asked))
        return
    begin, seconds, past = since, None if step is None else parse_duration(step), broker.past
    if device is not None:
        asked = device
        await _read(verb, lambda: past.device(asked, begin, seconds, caller))
    elif environment is not None:
        asked = environment
        await _read(verb, lambda: past.environment(caller, asked, begin, seconds))


async def report(verb: Verbs) -> None:
    """Answer ``GET usage/report``."""
    since, by = verb.time("since"), verb.get_query_argument("by", "environment")
    if since is None:
        raise BadRequest("A report begins somewhere: since is missing.", hint="Say since=…Z.")
    begin, kind = since, _kind(by)
    await _read(verb, lambda: verb.host.broker.past.report(verb.caller, begin, kind))


def _kind(by: str) -> By:
    kinds: tuple[By, ...] = get_args(By)
    for kind in kinds:
        if by == kind:
            return kind
    raise BadRequest(f"by={by[:32]!r} is not known.", hint=f"Say one of {', '.join(kinds)}.")


async def _read(verb: Verbs, read: Callable[[], Any]) -> None:
    """Write what is read of the past, unless that takes too long."""
    reading = asyncio.get_running_loop().run_in_executor(_reader, read)
    try:
        found = await asyncio.wait_for(reading, READ_SECONDS)
    except TimeoutError:
        raise Unavailable(
            f"The history of use could not be read within {READ_SECONDS:g} s.",
            hint="The disk of your home directory is slow at present; try again later.",
        ) from None
    verb.finish(msgspec.json.encode(found))
