"""What owners are told, kept in memory: one notice for each environment and kind, renewed.

Whoever has something to tell calls ``tell`` as often as it likes: a notice that says the same is
no news, and one that its owner has dismissed stays away for as long as it is about the same. After
a crash the board is empty, and whatever still holds is told again.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import datetime

import msgspec
from msgspec import Struct

from genv_jupyter.broker.books import Books
from genv_jupyter.errors import NotYours
from genv_jupyter.ledger.rows import EnvironmentRow
from genv_jupyter.model import Principal
from genv_jupyter.notices import Notice, NoticeAction, NoticeKind, NoticeLevel

KEPT = 24 * 3600.0
"""Seconds for which it is told what was ended, also when its environment is gone."""

LASTING: tuple[NoticeKind, ...] = ("ended",)
"""Kinds that outlive their environment."""

MOST = 200
"""Notices of what was ended that are kept of one owner; the oldest make room. All others stand as
long as what they tell of, and are as many as there are environments: one that made room for
another would be told anew a second later."""

_RANK: tuple[NoticeLevel, ...] = ("info", "warning", "error")


class Entry(Struct):
    """A notice, whose it is, what it is about, and whether its owner has dismissed it."""

    notice: Notice
    owner: str
    topic: str
    told: float
    dismissed: bool = False


class Noticeboard:
    """Holds the notices of one broker. Used with the broker's lock held.

    Parameters
    ----------
    books
        What environments there are.
    record
        Called with an event's name, the environment's row and ``reason`` for the records.
    clock, stamp
        Seconds since the epoch, and the same as a time.
    """

    def __init__(
        self,
        books: Books,
        record: Callable[..., None],
        clock: Callable[[], float],
        stamp: Callable[[float | None], datetime],
    ) -> None:
        self.books = books
        self.record = record
        self.clock = clock
        self.stamp = stamp
        self._changed = False
        self._entries: dict[tuple[str, NoticeKind], Entry] = {}

    # -- telling --------------------------------------------------------------------------------

    def tell(
        self,
        row: EnvironmentRow,
        kind: NoticeKind,
        message: str,
        *,
        level: NoticeLevel = "warning",
        hint: str = "",
        until: float | None = None,
        actions: tuple[NoticeAction, ...] = (),
        topic: str | None = None,
    ) -> Notice:
        """Put up a notice for the owner of an environment, or renew the one of that kind.

        Parameters
        ----------
        row
            The environment; one without an id (``EnvironmentRow.nobody``) only says whose it is.
        until
            When something will be done or is over, in seconds since the epoch.
        actions
            What the owner can do besides ``dismiss``, which is always there.
        topic
            What it is about: once dismissed it comes back when this has changed, or its level has
            risen. The message, where it is left out: give one if the message has numbers in it.

        Returns
        -------
        Notice
            The notice as it stands now.
        """
        key = (row.id or row.owner, kind)
        topic = message if topic is None else topic
        old = self._entries.get(key)
        if old is not None and (old.topic != topic or _rises(old.notice.level, level)):
            old = None  # it is another one now
        notice = Notice(
            id=str(uuid.uuid4()) if old is None else old.notice.id,
            environment=row.id or None,
            user=row.user,
            kind=kind,
            level=level,
            message=message,
            hint=hint,
            since=self.stamp(None) if old is None else old.notice.since,
            until=None if until is None else self.stamp(until),
            actions=(*actions, "dismiss"),
        )
        if old is None:
            self._put_up(key, Entry(notice, row.owner, topic, self.clock()), row)
        else:
            self._changed |= old.notice != notice and not old.dismissed
            self._entries[key] = msgspec.structs.replace(old, notice=notice, told=self.clock())
        return notice

    def _put_up(self, key: tuple[str, NoticeKind], entry: Entry, row: EnvironmentRow) -> None:
        """Put up what was not there yet, or was about something else."""
        self._entries.pop(key, None)
        self._entries[key] = entry
        self._changed = True
        self.record("notice", row, reason=f"{entry.notice.kind}: {entry.notice.message}")
        if entry.notice.kind in LASTING:
            self._make_room(row.owner)

    def withdraw(self, row: EnvironmentRow, *kinds: NoticeKind) -> None:
        """Take down what is over."""
        for kind in kinds:
            entry = self._entries.pop((row.id or row.owner, kind), None)
            self._changed |= entry is not None and not entry.dismissed

    def sweep(self) -> None:
        """Take down what is about environments that have ended, and what is old."""
        now = self.clock()
        for key, entry in list(self._entries.items()):
            lasting = entry.notice.kind in LASTING
            environment = entry.notice.environment
            gone = environment is not None and environment not in self.books.environments
            if (gone and not lasting) or (lasting and now - entry.told > KEPT):
                del self._entries[key]
                self._changed |= not entry.dismissed

    def lately(self, row: EnvironmentRow, kind: NoticeKind, seconds: float) -> list[str]:
        """Return what was told of that kind in the last seconds, dismissed or not."""
        entry = self._entries.get((row.id or row.owner, kind))
        fresh = entry is not None and self.clock() - entry.told <= seconds
        return [entry.notice.message] if entry is not None and fresh else []

    # -- for the doors --------------------------------------------------------------------------

    def of(self, principal: Principal) -> list[Notice]:
        """Return what somebody is told, the oldest first."""
        return [
            entry.notice
            for entry in self._entries.values()
            if not entry.dismissed and _may_see(entry, principal)
        ]

    def dismiss(self, principal: Principal, notice: str) -> None:
        """Do not show a notice any more; one that is not there is as good as dismissed.

        Raises
        ------
        NotYours
            It is told to somebody else.
        """
        for entry in self._entries.values():
            if entry.notice.id == notice:
                if not _may_see(entry, principal):
                    raise NotYours(
                        "This notice is told to somebody else.", hint="Only they can dismiss it."
                    )
                self._changed |= not entry.dismissed
                entry.dismissed = True

    def news(self) -> bool:
        """Say whether the list has changed since this was last asked."""
        changed, self._changed = self._changed, False
        return changed

    def _make_room(self, owner: str) -> None:
        mine = [
            key
            for key, entry in self._entries.items()
            if entry.owner == owner and entry.notice.kind in LASTING
        ]
        for key in mine[: max(0, len(mine) - MOST)]:
            del self._entries[key]


def _rises(old: NoticeLevel, new: NoticeLevel) -> bool:
    return _RANK.index(new) > _RANK.index(old)


def _may_see(entry: Entry, principal: Principal) -> bool:
    return entry.owner == principal.key or principal.admin
