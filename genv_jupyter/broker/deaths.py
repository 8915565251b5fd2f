"""Why a process of an environment died, where that was the GPU's, the host's or our doing.

What is known is gathered: what a rule has done, trouble of MPS, a device that is gone, critical
errors (Xid) of its devices at that time, and whether Linux killed something for want of memory. A
process that ended for reasons of its own is told nothing.
"""

from __future__ import annotations

import functools
import signal
from collections import deque
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from genv_jupyter import xids
from genv_jupyter.broker.sensors import trouble_of
from genv_jupyter.isolation import oom, processes
from genv_jupyter.ledger.rows import EnvironmentRow
from genv_jupyter.notices import NoticeKind

if TYPE_CHECKING:
    from genv_jupyter.broker.core import Core

LATELY = 30.0
"""Seconds before a death is heard of in which its cause is looked for: a server looks after its
kernels every three seconds."""

SLICE = 500
"""Processes looked at in one round: a round stays a few milliseconds, whatever their number."""

OUR_DOING: tuple[NoticeKind, ...] = ("ended", "mps")
HINT = "What it held in memory is gone. `%gpu usage` shows what is used, `%gpu doctor` the rest."
_OOM_HERE = (
    "Linux killed it because its memory (not the GPU's) was used up: {count} killed in its control "
    "group at that time. Load less at once, or ask for more memory."
)
_OOM_HOST = (
    "Linux was killing processes at that time because the host's memory (not the GPU's) was used "
    "up, and so probably this one too."
)


class _Counts(NamedTuple):
    """How many processes Linux has killed for want of memory: in a group, on the host."""

    group: int | None
    host: int | None


class _Watched(Struct):
    """A process, where Linux counts for it, and what that was, by steady seconds."""

    pid: int
    start: int | None
    files: tuple[Path, ...]
    counts: deque[tuple[float, _Counts]]


class Deaths:
    """Looks after what may end processes. Used with the broker's lock held."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._watched: dict[str, _Watched] = {}
        self._ended: dict[str, str] = {}
        self._todo: list[str] = []

    def of(self, environment: str) -> str | None:
        """Return why the process before the present one of an environment died."""
        return self._ended.get(environment)

    def round(self) -> None:
        """Note what Linux has counted so far, for each of a slice of the processes that live."""
        now, books, host = self.core.steady(), self.core.books, oom.killed_on_host()
        killed = functools.cache(oom.killed_in_group)  # many are in one group
        for known in self._watched.keys() - books.environments.keys():
            del self._watched[known]
        for known in self._ended.keys() - books.environments.keys():
            del self._ended[known]
        if not self._todo:
            self._todo = list(books.grants)
        turn, self._todo = self._todo[:SLICE], self._todo[SLICE:]
        for environment in turn:
            row = books.environments.get(environment)
            if row is None or row.pid is None:
                continue
            watched = self._watched.get(environment)
            if watched is None or (watched.pid, watched.start) != (row.pid, row.start):
                if not processes.alive(row.pid, row.start):
                    continue
                watched = _Watched(row.pid, row.start, oom.files(row.pid), deque())
                self._watched[environment] = watched
            if not watched.counts or processes.alive(row.pid, row.start):
                watched.counts.append((now, _Counts(killed(watched.files), host)))
            while len(watched.counts) > 1 and now - watched.counts[1][0] >= LATELY:
                watched.counts.popleft()

    def replaced(self, row: EnvironmentRow, died: int | None) -> None:
        """Take in that a process is to be replaced: ``died`` is its status if it ended by itself.

        As Python says it: the number of a signal is negative.
        """
        self._ended.pop(row.id, None)
        if died is None:
            return
        causes = list(self._causes(row, died))
        if not causes:
            return
        said = f"The {_what(row)} before this one died ({_how(died)}). {' '.join(causes)}"
        self._ended[row.id] = said
        self.core.record("ProcessDied", row, reason=said)
        if not any(self.core.board.lately(row, "ended", LATELY)):
            self.core.board.tell(row, "ended", said, level="error", hint=HINT)

    def _causes(self, row: EnvironmentRow, died: int) -> Iterable[str]:
        """Yield a sentence for everything that may have ended a process, the surest first."""
        core = self.core
        for kind in OUR_DOING:
            yield from core.board.lately(row, kind, LATELY)
        core.refresh()  # what ended it may have been told a moment ago
        for grant in core.books.grants_of(row.id):
            slot, usage = core.books.slots[grant.device], core.usage.get(grant.device)
            if slot.health == "lost":
                yield trouble_of(slot, None) or ""
            for error in () if usage is None else usage.reading.xids:
                if core.clock() - error.at <= LATELY:
                    yield (
                        f"{slot.label} had {xids.sentence(error.code)} at "
                        f"{_time(core.stamp(error.at))}, shortly before."
                    )
        if died == -signal.SIGKILL and (killed := self._out_of_memory(row)) is not None:
            yield killed

    def _out_of_memory(self, row: EnvironmentRow) -> str | None:
        """Say that Linux killed something for want of memory since the process was seen alive."""
        watched = self._watched.get(row.id)
        if watched is None or not watched.counts:
            return None
        before = watched.counts[0][1]
        now = _Counts(oom.killed_in_group(watched.files), oom.killed_on_host())
        if before.group is not None and now.group is not None and now.group > before.group:
            return _OOM_HERE.format(count=now.group - before.group)
        if before.host is not None and now.host is not None and now.host > before.host:
            return _OOM_HOST
        return None


def _what(row: EnvironmentRow) -> str:
    return "kernel" if row.kind == "kernel" else "process"


def _how(died: int) -> str:
    if died >= 0:
        return f"it ended with status {died}"
    try:
        return f"it was ended by {signal.Signals(-died).name}"
    except ValueError:
        return f"it was ended by signal {-died}"


def _time(at: datetime) -> str:
    return f"{at.astimezone():%H:%M:%S}"
