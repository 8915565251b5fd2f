"""What callers claim in a report, checked: ids, pids, and texts of any length."""

from __future__ import annotations

import re
from pathlib import Path

from genv_jupyter.errors import BadRequest, NotYours, UnknownProcess
from genv_jupyter.isolation import processes
from genv_jupyter.model import Principal

MAX_TEXT = 4096
OTHER_ID = "Choose another id."
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII | re.IGNORECASE)


def start_of(principal: Principal, pid: int) -> int:
    """Return the start ticks of a process that must belong to the caller."""
    start = processes.start_of(pid) if pid > 0 else None
    if start is None:
        raise UnknownProcess(
            f"There is no process {pid} here.",
            hint="Say its pid as the broker's own pid namespace has it.",
        )
    if principal.realm == "local" and str(_uid_of(pid)) != principal.id:
        raise NotYours(
            f"Process {pid} belongs to another user.", hint="Name a process of your own."
        )
    return start


def _uid_of(pid: int) -> int | None:
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return None


def check_uuid(value: str, what: str) -> None:
    """Refuse an id that is no UUID.

    Raises
    ------
    BadRequest
        It is something else.
    """
    if not _UUID.fullmatch(value):
        raise BadRequest(
            f"The id of a {what} is a UUID, not {value[:64]!r}.", hint="Let Jupyter choose the ids."
        )


def short(text: str | None) -> str | None:
    """Cut what nobody would read to its end."""
    return None if text is None else text[:MAX_TEXT]
