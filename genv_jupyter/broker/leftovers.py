"""What kernels have left behind on devices: shown to its owner, and ended when that is wanted.

A process is ended only when it is proved to come from an environment of ours that is gone (or from
before its kernel's restart), only by whoever owned that, only if it runs as them and nobody else,
and only as the process it was when that was proved: pid and start ticks are compared once more with
a descriptor in hand. By itself nothing is ended that no rule would touch.
"""

from __future__ import annotations

import logging
import signal
import threading
from functools import partial
from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from traitlets import Enum
from traitlets.config import Configurable

from genv_jupyter.broker.attribution import Identity
from genv_jupyter.broker.books import Former
from genv_jupyter.broker.posts import uid_of
from genv_jupyter.broker.rules import protection
from genv_jupyter.broker.traits import Seconds
from genv_jupyter.errors import GpuError, NotYours, UnknownProcess
from genv_jupyter.isolation import evidence, processes
from genv_jupyter.ledger import former
from genv_jupyter.ledger.records import RecordsLedger
from genv_jupyter.ledger.rows import EnvironmentRow
from genv_jupyter.leftovers import Leftover, LeftoverUse
from genv_jupyter.model import Principal, Process
from genv_jupyter.units import format_memory

if TYPE_CHECKING:
    from genv_jupyter.broker.core import Core

log = logging.getLogger(__name__)

HOW_TO_END = "To end that: the sidebar, or `jupyter gpu leftovers --end all`."


class LeftoverSettings(Configurable):
    """What is done about processes that outlive their kernel and hold a GPU."""

    action = Enum(
        ["warn", "end"],
        "warn",
        help="What is done about processes that outlive their kernel and still use a GPU: their "
        "owner is told ('warn'), or they are ended after `grace` ('end').",
    ).tag(config=True)
    grace = Seconds(
        60.0,
        help="For how long such a process may go on before it is ended by itself: seconds, or 2m.",
    )
    patience = Seconds(
        5.0,
        help="For how long a process that was asked to end (SIGTERM) may take before it is killed "
        "(SIGKILL): seconds.",
    )


class Entry(Struct):
    """A leftover process as the last reading saw it.

    ``since`` is when it was first seen as one, and ``asked`` when it was told to end, in steady
    seconds; ``killed`` says that it did not.
    """

    environment: str
    former: Former
    after: Literal["ended", "restarted"]
    uses: list[Process]
    since: float
    asked: float | None = None
    killed: bool = False


class Leftovers:
    """Knows the leftover processes of a broker. Used with the broker's lock held."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._entries: dict[Identity, Entry] = {}
        self._told: tuple[object, ...] = ()
        self._owners: set[str] = set()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def settings(self) -> LeftoverSettings:
        """What was decided about them."""
        return self.core.config.of(LeftoverSettings)

    # -- once a second --------------------------------------------------------------------------

    def round(self) -> None:
        """Take in what the last reading saw, tell owners, and go on with what is being ended."""
        self._take_in()
        for who, entry in self._entries.items():
            self._go_on(who, entry)
        self._tell()

    def news(self) -> bool:
        """Say whether the list has changed since this was last asked."""
        now = tuple(
            (who, it.environment, it.after, it.asked is not None, tuple(it.uses))
            for who, it in self._entries.items()
        )
        before, self._told = self._told, now
        return now != before

    # -- for the doors --------------------------------------------------------------------------

    def of(self, principal: Principal) -> list[Leftover]:
        """Return the leftovers of somebody, the longest left first."""
        mine = (
            (who, it)
            for who, it in self._entries.items()
            if it.former.owner == principal.key or principal.admin
        )
        return [self._view(who, it) for who, it in sorted(mine, key=lambda item: item[1].since)]

    def end(self, principal: Principal, pid: int, start: int) -> Leftover:
        """Have a leftover process end; again is nothing.

        Raises
        ------
        UnknownProcess
            It is no leftover of the caller's: it has ended, has a living kernel, or was never ours.
        NotYours
            It came from there, and runs as somebody else.
        """
        entry = self._mine(principal, pid, start)
        if entry.asked is None:
            self._ask(pid, start, entry, f"{principal.name} asked for it")
        return self._view((pid, start), entry)

    def devices_of(self, principal: Principal, pid: int, start: int) -> tuple[str, ...]:
        """Return the devices that a leftover uses which somebody may end.

        Raises
        ------
        UnknownProcess, NotYours
            As ``end``.
        """
        return tuple(use.device for use in self._mine(principal, pid, start).uses)

    def _mine(self, principal: Principal, pid: int, start: int) -> Entry:
        entry = self._entries.get((pid, start))
        if entry is None or not (entry.former.owner == principal.key or principal.admin):
            raise UnknownProcess(
                f"Process {pid} is no leftover of a kernel of yours, or it has just ended.",
                hint="`jupyter gpu leftovers` lists those there are.",
            )
        if entry.asked is not None or not processes.alive(pid, start):
            return entry
        if not _runs_as(entry.former.owner, pid):
            raise NotYours(
                f"Process {pid} came from a kernel of {entry.former.user}, and runs as another "
                "user.",
                hint="Have it ended by whoever it runs as, or by root.",
            )
        return entry

    # -- by itself ------------------------------------------------------------------------------

    def due(self) -> list[tuple[Identity, tuple[str, ...]]]:
        """Return what is to be ended now without anybody's click, and the devices that it uses."""
        latest = self.core.steady() - self.settings.grace
        return [
            (who, tuple(use.device for use in entry.uses))
            for who, entry in self._entries.items()
            if entry.asked is None and entry.since <= latest and self._by_itself(who, entry)
        ]

    def end_due(self, who: Identity) -> None:
        """End one of those, if it is still there and nobody has been faster."""
        entry = self._entries.get(who)
        if entry is not None and entry.asked is None and self._by_itself(who, entry):
            self._ask(*who, entry, "it outlived its kernel for too long")

    # -- ours -----------------------------------------------------------------------------------

    def _take_in(self) -> None:
        found: dict[Identity, list[tuple[str, Process]]] = {}
        for usage in self.core.usage.values():
            for remnant in usage.remnants:
                who = remnant.process.pid, remnant.process.start
                found.setdefault(who, []).append((remnant.environment, remnant.process))
        before, self._entries = self._entries, {}
        for who, seen in found.items():
            environment, uses = seen[0][0], [process for _, process in seen]
            old = before.get(who)
            if old is not None:
                old.uses = uses
                self._entries[who] = old
            elif (entry := self._entry(environment, uses)) is not None:
                self._entries[who] = entry

    def _entry(self, environment: str, uses: list[Process]) -> Entry | None:
        now = self.core.steady()
        books = self.core.books
        row = books.environments.get(environment)
        if row is not None:
            name = row.name or (row.path.rsplit("/", 1)[-1] if row.path else None)
            before = Former(row.owner, row.user, name)
            return Entry(environment, before, "restarted", uses, now)
        known = books.former.get(environment)
        if known is None:
            return None
        return Entry(environment, known, "ended", uses, now)

    def _go_on(self, who: Identity, entry: Entry) -> None:
        now = self.core.steady()
        if entry.asked is None or entry.killed or now - entry.asked < self.settings.patience:
            return
        entry.killed = True
        if _runs_as(entry.former.owner, who[0]):
            self._send(*who, signal.SIGKILL)

    def _by_itself(self, who: Identity, entry: Entry) -> bool:
        """Say whether a leftover is to be ended without anybody's click."""
        if self.settings.action != "end" or not _runs_as(entry.former.owner, who[0]):
            return False
        uid = processes.uid_of(who[0])
        name = entry.uses[0].name
        spared = protection.spared(
            uid=uid, start=who[1], kind="compute", name=name, member=True, me=uid
        )
        return spared is None

    def _ask(self, pid: int, start: int, entry: Entry, reason: str) -> None:
        entry.asked = self.core.steady()
        command = entry.uses[0].name or "a process"
        self.core.record(
            "LeftoverEnded",
            self._row(entry),
            device=entry.uses[0].device,
            memory=entry.uses[0].memory,
            reason=f"process {pid} ({command}): {reason}",
        )
        log.info("ending process %d (%s), left of %s: %s", pid, command, entry.environment, reason)
        self._send(pid, start, signal.SIGTERM)

    def _send(self, pid: int, start: int, number: int) -> None:
        self.core.powers.order(pid, start, number, uid=processes.uid_of(pid))

    def _tell(self) -> None:
        """Keep one notice for each owner."""
        board = self.core.board
        owners: dict[str, dict[Identity, Entry]] = {}
        for who, entry in self._entries.items():
            owners.setdefault(entry.former.owner, {})[who] = entry
        for owner in self._owners - owners.keys():
            board.withdraw(self.core.nothing_of(owner), "leftover")
        for owner, entries in owners.items():
            row = self.core.nothing_of(owner)
            message, hint, until = self._words(entries)
            pids = sorted(pid for pid, _ in entries)
            board.tell(row, "leftover", message, hint=hint, until=until, topic=str(pids))
        self._owners = set(owners)

    def _words(self, found: dict[Identity, Entry]) -> tuple[str, str, float | None]:
        """Return what the owner of leftovers is told, how to end them, and when that is done."""
        count, entries = len(found), list(found.values())
        uses = [use for entry in entries for use in entry.uses]
        slots = self.core.books.slots
        where = sorted({slots[u.device].label if u.device in slots else u.device for u in uses})
        names = sorted({entry.former.name for entry in entries if entry.former.name})
        of = f" of {', '.join(names)}" if names else ""
        known = [use.memory for use in uses if use.memory is not None]
        much = f" {format_memory(sum(known))}" if known else ""
        what = "A process" if count == 1 else f"{count} processes"
        gone = "outlived its kernel and holds" if count == 1 else "outlived their kernels and hold"
        message = f"{what}{of} {gone}{much} on {' and '.join(where)}."
        due = [entry.since for who, entry in found.items() if self._by_itself(who, entry)]
        if not due:
            return message, HOW_TO_END, None
        first = min(due) + self.settings.grace
        until = self.core.clock() + max(0.0, first - self.core.steady())
        return f"{message} {_ending(len(due), count)}", HOW_TO_END, until

    def _row(self, entry: Entry) -> EnvironmentRow:
        row = self.core.books.environments.get(entry.environment)
        return self.core.nothing_of(entry.former.owner) if row is None else row

    def _view(self, who: Identity, entry: Entry) -> Leftover:
        core = self.core
        now = core.steady()
        until = None
        if entry.asked is None and self._by_itself(who, entry):
            until = core.stamp(core.clock() + entry.since + self.settings.grace - now)
        return Leftover(
            pid=who[0],
            start=who[1],
            command=entry.uses[0].name,
            environment=entry.environment,
            name=entry.former.name,
            user=entry.former.user,
            after=entry.after,
            uses=tuple(LeftoverUse(device=u.device, memory=u.memory) for u in entry.uses),
            started=core.stamp(processes.started_at(who[1])),
            left=core.stamp(core.clock() - (now - entry.since)),
            until=until,
            state="running" if entry.asked is None else "ending",
        )


def _ending(due: int, count: int) -> str:
    if due == count:
        return "It will be ended." if count == 1 else "They will be ended."
    return f"{due} of them will be ended."


def _runs_as(owner: str, pid: int) -> bool:
    """Say whether a process runs as an owner, and as nobody else: not all have a uid of theirs."""
    uids, uid = set(evidence.uids(pid) or ()), uid_of(owner)
    return len(uids) == 1 and (uid is None or uids == {uid})


def recall(core: Core, lock: threading.RLock, records: RecordsLedger | None) -> None:
    """Look up the environments that markers name and that this broker has not known.

    Called without the lock: the records may be on a disk that hangs.
    """
    with lock:
        strange, core.attribution.strange = core.attribution.strange, set()
    if not strange or records is None:
        return
    for environment in strange:
        try:
            found = records.run(partial(former.whose, environment=environment))
        except GpuError as error:
            log.warning("whose %s was is not known: %s", environment, error)
            continue
        if found is not None:
            with lock:
                core.books.remember(environment, Former(*found))
                core.attribution.look_again()
