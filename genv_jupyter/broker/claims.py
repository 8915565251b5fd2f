"""What callers claim in a report, checked: ids, pids, texts of any length, and who may say it.

All processes of a user are one principal, and yet not each of them may tell what another one sees:
a device would be free that is in use. So a door says which process calls (the ``speaker``, as the
kernel names it), and what a kernel sees, or whether it has CUDA, is believed only of the process
itself, of one that it has started (it may be a wrapper around the kernel), and of the Jupyter
server that has started it. ``None`` is somebody within the broker, who is believed; 0 a process
that the broker cannot see, which never is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import msgspec
from msgspec import UNSET

from genv_jupyter.broker.books import Books
from genv_jupyter.errors import BadRequest, NotYours, TooMany, UnknownProcess
from genv_jupyter.isolation import processes
from genv_jupyter.ledger.rows import EnvironmentRow, ServerRow
from genv_jupyter.model import Cuda, EnvironmentPatch, Principal

MAX_TEXT = 4096
MOST = 1000
"""Environments, and Jupyter servers, that a broker of several users keeps for each of them."""
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


def check_server(row: ServerRow, speaker: int | None) -> None:
    """Refuse what somebody else tells in the name of a Jupyter server.

    Raises
    ------
    NotYours
        Another process of the same user says it.
    """
    if speaker is not None and not _is(speaker, row.pid, row.start):
        raise NotYours(
            f"Only the Jupyter server itself, process {row.pid}, may tell this.",
            hint="Start kernels through it, or use the environments' own calls.",
        )


def check_registration(old: ServerRow | None, pid: int, speaker: int | None) -> None:
    """Refuse a registration of another process, or in the place of one that lives.

    Raises
    ------
    NotYours
        It is not the server itself that registers, or another one has that id.
    """
    if speaker is None:
        return
    if speaker != pid:
        raise NotYours(
            f"Process {pid} is not the one that says so.",
            hint="A Jupyter server registers itself, under its own pid.",
        )
    if old is not None and old.pid != pid and processes.alive(old.pid, old.start):
        raise NotYours("Another living server has that id.", hint=OTHER_ID)


def speaks_for(books: Books, row: EnvironmentRow, speaker: int | None) -> bool:
    """Say whether somebody may tell what is seen inside the process of an environment."""
    if speaker is None:
        return True
    server = books.servers.get(row.server) if row.server is not None else None
    if server is not None and _is(speaker, server.pid, server.start):
        return True
    return any(who == (row.pid, row.start) for who in processes.ancestors(speaker))


def seen(cuda: Cuda, *, believed: bool) -> Cuda:
    """Return what is taken in of CUDA: that there is some is never doubted, that there is none is.

    Whoever holds a device too long harms nobody but themselves.
    """
    return cuda if believed or cuda == "initialized" else "unknown"


def believed_part(body: EnvironmentPatch) -> EnvironmentPatch:
    """Return a report of somebody who cannot know as one that is shown, and frees nothing."""
    cuda = None if body.cuda is None else seen(body.cuda, believed=False)
    return msgspec.structs.replace(body, cuda=cuda, revision=None, visible=UNSET)


def _is(speaker: int, pid: int, start: int | None) -> bool:
    """Say whether the caller is that very process: its pid may be another's by now."""
    return speaker == pid and processes.alive(pid, start)


def check_room(rows: Iterable[EnvironmentRow | ServerRow], owner: str, what: str) -> None:
    """Refuse one more of what somebody has very many of: each makes all that others see longer.

    Raises
    ------
    TooMany
        They have as many as are kept for one user.
    """
    if sum(row.owner == owner for row in rows) >= MOST:
        raise TooMany(
            f"You have {MOST} {what} at the GPU broker of this host already.",
            hint="End some: a kernel, a command, a Jupyter server.",
        )


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


def check_launch(number: int | None) -> None:
    """Refuse what is no number of a launch.

    Raises
    ------
    BadRequest
        It is negative, or too large to be counted.
    """
    if number is not None and not 0 <= number < 2**63:
        raise BadRequest("That is no number of a launch.", hint="Say 0 to 2⁶³ - 1.")


def short(text: str | None) -> str | None:
    """Cut what nobody would read to its end."""
    return None if text is None else text[:MAX_TEXT]
