"""What is left of the reservations of Jupyter servers, whatever their kernels take and give back.

The grants of a reservation are its *rest*: what the server is entitled to on a device, less what
its kernels hold there. It follows in the transaction that changes a kernel's grant: it shrinks
before that counts, and grows when that counts no more. So nothing is counted twice, and nobody
else can come between.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from genv_jupyter.ledger.rows import EnvironmentRow, GrantRow
from genv_jupyter.placement import Placed
from genv_jupyter.slots import Own

if TYPE_CHECKING:
    from genv_jupyter.broker.books import Books, Change

_PARTS = msgspec.json.Decoder(tuple[Placed, ...])


def entitled(reservation: EnvironmentRow | None) -> dict[str, Placed]:
    """Return what a reservation holds in all, by device."""
    if reservation is None or reservation.entitled is None:
        return {}
    return {part.device: part for part in _PARTS.decode(reservation.entitled)}


def written(parts: Sequence[Placed]) -> str:
    """Return what a reservation holds in all as it is kept."""
    return msgspec.json.encode(parts).decode()


def rest_of(part: Placed, taken: Sequence[Own], capacity: int) -> Own | None:
    """Return what is left of a reservation on one device; ``None``: nothing.

    Parameters
    ----------
    part
        What it holds there in all.
    taken
        What its kernels hold there.
    capacity
        Bytes that may be granted there. Of a whole device everything stays kept from others, what
        the desktop leaves meanwhile included.
    """
    if any(own.exclusive for own in taken):
        return None
    whole = part.exclusive and bool(taken)
    most = capacity if whole else min(part.memory, capacity) if part.exclusive else part.memory
    memory = most - sum(own.memory for own in taken)
    if memory <= 0:
        return None
    compute = None
    if part.compute is not None:
        compute = max(0, part.compute - sum(own.compute or 0 for own in taken)) or None
    return Own(memory, compute, part.exclusive and not taken)


def granted(number: int, row: EnvironmentRow, device: str, rest: Own) -> GrantRow:
    """Return the grant of a reservation on one device."""
    return GrantRow(
        id=number,
        environment=row.id,
        device=device,
        owner=row.owner,
        memory=rest.memory,
        compute=rest.compute,
        exclusive=rest.exclusive,
        counted_memory=rest.memory,
        counted_compute=rest.compute or 0,
        counted_exclusive=rest.exclusive,
        state="granted",
        applied=None,
        since=row.created,
    )


class _Rest(NamedTuple):
    """A rest on one device: what it is, and what it has to become."""

    reservation: EnvironmentRow
    device: str
    now: GrantRow | None
    then: Own | None


class Rests:
    """Keeps the rests right within one transaction."""

    def __init__(self, change: Change, books: Books) -> None:
        self.change = change
        self.books = books
        self._rows: dict[str, EnvironmentRow | None] = {}
        self._grants: dict[int, GrantRow | None] = {}

    def put(self, environment: str, row: EnvironmentRow | None) -> None:
        """Note what this transaction makes of an environment."""
        self._rows[environment] = row

    def store(self, old: GrantRow | None, new: GrantRow | None) -> None:
        """Change a grant, and the rests that it is taken from or goes back to."""
        found = list(self._affected(old, new))
        for rest in found:
            self._become(rest, _least(rest.now, rest.then))
        self._note(old, new)
        self.change.store(old, new)
        for rest in found:
            now = self._of(rest.reservation, rest.device)
            self._become(rest._replace(now=now), rest.then)

    # -- inside ---------------------------------------------------------------------------------

    def _affected(self, old: GrantRow | None, new: GrantRow | None) -> Iterable[_Rest]:
        done: set[str] = set()
        for grant in (old, new):
            found = None if grant is None else self._drawn_on(grant.environment)
            if grant is None or found is None or found.id in done:
                continue
            done.add(found.id)
            part = entitled(found).get(grant.device)
            if part is not None:
                taken = [*self._taken(found.id, grant.device, old, new)]
                slot = self.books.slots[grant.device]
                # No less than the ledger allows, where the device has become smaller.
                then = rest_of(part, taken, max(slot.capacity, slot.granted))
                yield _Rest(found, grant.device, self._of(found, grant.device), then)

    def _taken(
        self, reservation: str, device: str, old: GrantRow | None, new: GrantRow | None
    ) -> Iterable[Own]:
        """Return what kernels will hold of a reservation on a device after a change."""
        rows = {**self.books.on_device.get(device, {}), **self._grants}
        if old is not None:
            rows[old.id] = None
        if new is not None:
            rows[new.id] = new
        for row in rows.values():
            if row is None or row.device != device:
                continue
            by = self._row(row.environment)
            if by is not None and by.reservation == reservation:
                yield Own(row.counted_memory, row.counted_compute or None, row.counted_exclusive)

    def _become(self, rest: _Rest, then: Own | None) -> None:
        """Make a rest what it is to be, if it is not."""
        now = rest.now
        if then is None:
            if now is not None:
                self._note(now, None)
                self.change.store(now, None)
            return
        number = self.books.next_grant() if now is None else now.id
        new = granted(number, rest.reservation, rest.device, then)
        if new != now:
            self._note(now, new)
            self.change.store(now, new)

    def _note(self, old: GrantRow | None, new: GrantRow | None) -> None:
        if new is not None:
            self._grants[new.id] = new
        elif old is not None:
            self._grants[old.id] = None

    def _of(self, reservation: EnvironmentRow, device: str) -> GrantRow | None:
        held = self.books.grants.get(reservation.id, {}).get(device)
        made = [it for it in self._grants.values() if it is not None]
        here = [it for it in made if (it.environment, it.device) == (reservation.id, device)]
        if here:
            return here[0]
        return None if held is None or self._grants.get(held.id, held) is None else held

    def _row(self, environment: str) -> EnvironmentRow | None:
        if environment in self._rows:
            return self._rows[environment]
        return self.books.environments.get(environment)

    def _drawn_on(self, environment: str) -> EnvironmentRow | None:
        row = self._row(environment)
        return None if row is None or row.reservation is None else self._row(row.reservation)


def _least(now: GrantRow | None, then: Own | None) -> Own | None:
    """Return what a rest may still hold before a change that leads to ``then`` is made."""
    if now is None or then is None:
        return None
    ceilings = (now.compute, then.compute)
    compute = None if None in ceilings else min(it for it in ceilings if it is not None)
    return Own(min(now.memory, then.memory), compute, now.exclusive and then.exclusive)
