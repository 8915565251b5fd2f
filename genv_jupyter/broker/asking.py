"""Polite notes between those who need a device and those who hold it; in the live ledger."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

import msgspec

from genv_jupyter.asks import Answer, Ask, Asked
from genv_jupyter.broker import leases, servers
from genv_jupyter.broker.core import Core
from genv_jupyter.broker.discretion import owner_of, seen
from genv_jupyter.broker.line import asked_by
from genv_jupyter.broker.release import FRESH
from genv_jupyter.broker.views import device_grant
from genv_jupyter.demand import Demand, demand_of
from genv_jupyter.errors import BadRequest, Conflict, OutOfRange, TooOften
from genv_jupyter.ledger.rows import EnvironmentRow, GrantRow, NoteRow
from genv_jupyter.model import Principal, Request
from genv_jupyter.reasons import reason_against
from genv_jupyter.slots import Slot, resolve
from genv_jupyter.units import format_duration

HOW_LONG = "how long still?"
PAUSE = 600.0
"""Seconds for which the same holder is not asked again by the same user."""

OPEN = 3600.0
"""Seconds after which nobody waits for an answer any more."""

KEPT = {"question": OPEN, "answer": OPEN, "asked": PAUSE}
LONGEST = 200
MOST_MINUTES = 7 * 24 * 60


Notes = dict[str, list[NoteRow]]
"""By the environment that they are for."""


class Asking:
    """The notes of one broker, which the notice ``ask`` of each environment shows.

    Parameters
    ----------
    notes
        Those that the ledger had.
    """

    def __init__(self, core: Core, lock: threading.RLock, notes: Iterable[NoteRow] = ()) -> None:
        self.core = core
        self.lock = lock
        self._notes: Notes = {}
        for note in notes:
            self._notes.setdefault(note.environment, []).append(note)
        for environment in self._notes.keys() & core.books.environments.keys():
            self._show(environment)

    def ask(self, principal: Principal, environment: str, body: Ask) -> Asked:
        """Tell those who hold what an environment needs that it is needed.

        Raises
        ------
        Conflict
            There is room, or nobody who could be asked.
        TooOften
            All of them were asked a moment ago.
        """
        with self.lock:
            core = self.core
            row = core.environment(principal, environment)
            text = _clean(body.message) or HOW_LONG
            grants = self._in_the_way(row, self._request(row, body))
            now = core.steady()
            last = {grant.environment: self._last(grant.environment, row.owner) for grant in grants}
            fresh = {held for held, at in last.items() if at is None or now - at >= PAUSE}
            if not fresh:
                left = PAUSE - (now - min(at for at in last.values() if at is not None))
                raise TooOften(
                    "They were asked a moment ago, and have it before them.",
                    hint=f"Ask again in {format_duration(left + 59)}, or wait in the queue.",
                    details={"retry_after": int(left) + 1},
                )
            after: Notes = {}
            for held in fresh:
                note = NoteRow(
                    environment=held,
                    by=row.id,
                    kind="question",
                    owner=row.owner,
                    text=text,
                    at=now,
                    lease=core.books.environments[held].expires,
                )
                mine = ("question", "asked")
                others = self._notes.get(held, [])
                others = [it for it in others if it.kind not in mine or it.by != row.id]
                after[held] = [*others, note]
            self._put(after)
            core.record("Asked", row, reason=text)
            told = [grant for grant in grants if grant.environment in fresh]
            return Asked(holders=tuple(device_grant(core, grant, principal) for grant in told))

    def answer(self, principal: Principal, notice: str, body: Answer) -> None:
        """Answer those who have asked; the notice goes. Minutes give what is held a lease.

        Raises
        ------
        Conflict
            There is no such notice, or nobody waits for an answer.
        BadRequest, OutOfRange
            The answer is empty, or says what cannot be.
        """
        text = _answer(body)
        with self.lock:
            asked = next(
                (
                    it.environment
                    for it in self.core.board.of(principal)
                    if it.id == notice and it.kind == "ask" and it.environment is not None
                ),
                None,
            )
            row = None if asked is None else self.core.books.environments.get(asked)
            if asked is None or row is None or not self._questions(asked):
                raise Conflict("Nobody waits for an answer to that.", hint="Dismiss it.")
            if body.minutes is not None:
                row = leases.promise(self.core, row, 60.0 * body.minutes)
                with self.core.books.change() as change:
                    change.put_environment(row)
            self._reply(asked, text)

    def round(self) -> None:
        """Answer for those who have given it back, or have said until when; forget what is old."""
        with self.lock:
            core, books = self.core, self.core.books
            now = core.steady()
            old = {
                held: fresh
                for held, notes in self._notes.items()
                if len(fresh := [it for it in notes if now - it.at < KEPT[it.kind]]) != len(notes)
            }
            self._put(old)
            for held in list(self._notes):
                questions = self._questions(held)
                if held not in books.environments:
                    self._reply(held, "it has ended, and holds nothing any more")
                    self._put({held: []})
                elif questions and not books.grants.get(held):
                    self._reply(held, "it has given back what it held")
                elif (lease := books.environments[held].expires) is not None and any(
                    it.lease != lease for it in questions
                ):
                    left = format_duration(max(0.0, lease - now))
                    self._reply(held, f"it is given back in {left}, by its lease")

    # -- inside ---------------------------------------------------------------------------------

    def _request(self, row: EnvironmentRow, body: Ask) -> Request:
        ticket = self.core.books.tickets.get(row.id)
        if body.request is not None:
            return body.request
        return Request(gpus=1) if ticket is None else asked_by(ticket)

    def _in_the_way(self, row: EnvironmentRow, request: Request) -> list[GrantRow]:
        """Return the grants of others on the devices that would do without them."""
        core = self.core
        core.refresh(FRESH)
        demand = demand_of(request)
        slots = servers.slots_for(core, row)
        wanted = resolve(demand.devices, slots) if demand.devices else slots
        own = core.books.own(row.id)
        full = [
            slot
            for slot in wanted
            if reason_against(slot, demand, row.owner, core.policy, own.get(slot.uuid))
        ]
        if len(wanted) - len(full) >= demand.count:
            raise Conflict(
                "There is room for that: nobody has to be asked.",
                hint="Attach it, or get in line where it is kept for those who wait.",
            )
        grants = [it for slot in full for it in self._others(slot, row, demand)]
        if not grants:
            raise Conflict(
                "Nobody who could be asked holds what is needed.", hint="`%gpu devices` says more."
            )
        return grants

    def _others(self, slot: Slot, row: EnvironmentRow, demand: Demand) -> Iterable[GrantRow]:
        too_small = not demand.exclusive and (demand.memory or 0) > slot.capacity
        if slot.health == "lost" or too_small:
            return []  # nobody's leaving would help
        held = self.core.books.on_device.get(slot.uuid, {}).values()
        return [grant for grant in held if grant.environment != row.id]

    def _questions(self, environment: str) -> list[NoteRow]:
        return [note for note in self._notes.get(environment, ()) if note.kind == "question"]

    def _last(self, held: str, owner: str) -> float | None:
        """Return when somebody has last asked a holder."""
        asked = (it for it in self._notes.get(held, ()) if it.kind != "answer")
        return max((it.at for it in asked if it.owner == owner), default=None)

    def _reply(self, held: str, text: str) -> None:
        """Give an answer to all who have asked; nothing is open then."""
        now, books, after = self.core.steady(), self.core.books, Notes()
        row = books.environments.get(held)
        after[held] = [
            msgspec.structs.replace(it, kind="asked") if it.kind == "question" else it
            for it in self._notes[held]
        ]
        for note in self._questions(held):
            if note.by not in books.environments:
                continue
            answer = NoteRow(
                environment=note.by,
                by=held,
                kind="answer",
                owner=note.owner if row is None else row.owner,
                text=text,
                at=now,
            )
            others = after.get(note.by, self._notes.get(note.by, []))
            others = [it for it in others if it.kind != "answer" or it.by != held]
            after[note.by] = [*others, answer]
        self._put(after)

    def _put(self, notes: Mapping[str, list[NoteRow]]) -> None:
        """Write notes down in the place of those that there are, and show them."""
        if not notes:
            return
        with self.core.books.change() as change:
            for environment, rows in notes.items():
                change.transaction.put_notes(environment, rows)
        for environment, rows in notes.items():
            if rows:
                self._notes[environment] = rows
            else:
                self._notes.pop(environment, None)
            if environment in self.core.books.environments:
                self._show(environment)

    def _show(self, environment: str) -> None:
        """Put all notes of an environment into its notice."""
        core = self.core
        row = core.books.environments[environment]
        notes = [it for it in self._notes.get(environment, ()) if it.kind != "asked"]
        if not notes:
            core.board.withdraw(row, "ask")
            return
        said = " ".join(self._sentence(row, note) for note in notes)
        asked = bool(self._questions(environment))
        core.board.tell(
            row,
            "ask",
            said,
            level="info",
            hint="Release it now, or say when you will." if asked else "",
            actions=("release",) if asked else (),
            topic=repr([(note.by, note.at, note.kind) for note in notes]),
        )

    def _sentence(self, row: EnvironmentRow, note: NoteRow) -> str:
        other = self.core.books.environments.get(note.by)
        who = "Somebody"
        if other is not None:
            shown = seen(self.core, other, owner_of(row))
            who = f"{shown.name} of {shown.user}" if shown.name else shown.user
        if note.kind == "answer":
            return f"{who} answers: {note.text}."
        return f"{who} needs what is held here, and asks: {note.text}"


def _answer(body: Answer) -> str:
    parts = []
    if body.minutes is not None:
        if not 0 < body.minutes <= MOST_MINUTES:
            raise OutOfRange("An answer is for a week at most.", hint="Say minutes, 1 to 10080.")
        parts.append(f"in {format_duration(60 * body.minutes)}")
    if text := _clean(body.message):
        parts.append(text.rstrip("."))
    if not parts:
        raise BadRequest("The answer is empty.", hint="Say minutes, or a message.")
    return ": ".join(parts)


def _clean(text: str | None) -> str:
    """Return what somebody wrote as one short line that does nothing to a terminal."""
    line = " ".join((text or "").split())
    if len(line) > LONGEST:
        raise OutOfRange("The message is too long.", hint=f"Use at most {LONGEST} characters.")
    return "".join(char if char.isprintable() else "?" for char in line)
