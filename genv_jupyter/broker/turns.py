"""Turns on shared devices: who may use them now, and who waits in which order.

A turn is of an environment, on all of its shared devices at once, and in the order of arrival: so
nobody holds one device while waiting for another, and nobody is passed over. It lasts as long as
the caller's connection lives, or its process where forked children keep the connection open.

What one broker knows is gone when it is killed, so the truth is the system's: who has a turn also
holds a POSIX lock on a file for each device (``fcntl``). It ends with its process, whatever becomes
of the broker, children do not inherit it, and any broker can ask who has it. So there are never two
holders, and nobody has to tell a new broker that they are one.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from genv_jupyter.turns import Turn, TurnPlace

_FLOCK = "hhqqi4x"  # struct flock of 64-bit Linux: type, whence, start, length, pid
_SLACK = 60.0
"""Seconds by which a clock may have been turned back since somebody says to have begun waiting."""


class Ticket:
    """One caller in line; ``devices`` are those of its turn.

    ``changed`` is called when there is something new to tell.
    """

    def __init__(
        self, environment: str, devices: frozenset[str], since: float, changed: Callable[[], None]
    ) -> None:
        self.environment = environment
        self.devices = devices
        self.since = self.came = since
        self.changed = changed
        self.yours = False
        self.joined = False


class Turns:
    """All turns of a broker; for one thread, the event loop's.

    Parameters
    ----------
    directory
        Where the lock files are; made when first needed.
    environment_of
        Finds the environment of a process.
    label_of
        Returns (user, name) of an environment, as the owner of a second one may see them.
    clock
        Seconds since the epoch.
    """

    def __init__(
        self,
        directory: Path,
        environment_of: Callable[[int], str | None],
        label_of: Callable[[str, str], tuple[str, str | None]],
        clock: Callable[[], float],
    ) -> None:
        self.directory = directory
        self.environment_of = environment_of
        self.label_of = label_of
        self.clock = clock
        self.open = True
        self.held_up = False
        self.holding: list[Ticket] = []
        self.waiting: list[Ticket] = []

    def enter(
        self,
        environment: str,
        devices: Iterable[str],
        since: float | None,
        changed: Callable[[], None],
    ) -> Ticket:
        """Take a place in line.

        Parameters
        ----------
        since
            Since when the caller has been waiting, if it comes back from a broker that is gone.
        """
        now = self.clock()
        before = [ticket.since for ticket in self.waiting]
        # Never ahead of those who wait, if the clock was turned back; and never before now.
        at = max([now, *before]) if since is None else min(since, now + _SLACK)
        ticket = Ticket(environment, frozenset(devices), at, changed)
        own = self._held_by(environment)
        if own:
            # A turn within a turn. It waits for nothing: who waits holding something can be waited
            # for in a circle.
            ticket.devices = own
            self._give(ticket, joined=True)
            return ticket
        self.waiting.append(ticket)
        self.waiting.sort(key=lambda it: it.since)
        self.settle()
        return ticket

    def move(self, ticket: Ticket, devices: Iterable[str]) -> None:
        """Have a caller wait for other devices, in its place, before it is told of its turn.

        Its environment may have got them while it waited: a turn on those that it had before
        would let it run beside whoever has the turn on these.
        """
        wanted = frozenset(devices)
        if ticket.joined or wanted == ticket.devices:
            return
        if ticket.yours:
            self.holding.remove(ticket)
            self.waiting.append(ticket)
            ticket.yours, ticket.since = False, ticket.came
            self.waiting.sort(key=lambda it: it.since)
        ticket.devices = wanted
        self.settle()

    def leave(self, ticket: Ticket) -> None:
        """Give up a turn, or a place in line."""
        for line in (self.holding, self.waiting):
            if ticket in line:
                line.remove(ticket)
        self.settle()
        for other in self.waiting:
            other.changed()  # who was behind it has come forward

    def settle(self) -> None:
        """Give every turn that can be given. ``held_up`` says whether only a lock is in the way."""
        self.held_up = not self.open and bool(self.waiting)
        if not self.open:
            return
        taken = frozenset[str]().union(*(ticket.devices for ticket in self.holding))
        for ticket in list(self.waiting):
            if ticket.devices and ticket.devices <= self._held_by(ticket.environment):
                self._give(ticket, joined=True)  # another of its processes has the turn by now
                continue
            free = not ticket.devices & taken
            taken |= ticket.devices
            if not free:
                continue
            lockers = self._lockers(ticket.devices)
            if lockers - {ticket.environment}:
                self.held_up = True
            else:
                # Its own family has them: a turn within one that an earlier broker gave.
                self._give(ticket, joined=bool(lockers))

    def _give(self, ticket: Ticket, *, joined: bool) -> None:
        if ticket in self.waiting:
            self.waiting.remove(ticket)
        self.holding.append(ticket)
        ticket.yours, ticket.joined, ticket.since = True, joined, self.clock()
        ticket.changed()

    def _held_by(self, environment: str) -> frozenset[str]:
        return frozenset[str]().union(
            *(ticket.devices for ticket in self.holding if ticket.environment == environment)
        )

    def view(self, ticket: Ticket) -> Turn:
        """Return what a caller is told."""
        devices = tuple(sorted(ticket.devices))
        ahead = () if ticket.yours else tuple(self._ahead(ticket))
        locks: tuple[str, ...] = ()
        if ticket.yours and not ticket.joined:
            locks = tuple(str(self._file(device)) for device in devices)
        return Turn(
            state="yours" if ticket.yours else "waiting",
            devices=devices,
            since=_time(ticket.since),
            ahead=ahead,
            locks=locks,
        )

    def _ahead(self, ticket: Ticket) -> Iterable[TurnPlace]:
        seen: set[str | None] = set()
        for holder in self.holding:
            if holder.devices & ticket.devices and holder.environment not in seen:
                seen.add(holder.environment)
                yield self._place(ticket, holder.environment, "holding", holder.since)
        for device in sorted(ticket.devices):
            found = self._locker(device)
            if found is not None and found[0] not in {*seen, ticket.environment}:
                seen.add(found[0])
                yield self._place(ticket, found[0], "holding", found[1])
        for other in self.waiting[: self.waiting.index(ticket)]:
            if other.devices & ticket.devices:
                yield self._place(ticket, other.environment, "waiting", other.since)

    def _place(self, asker: Ticket, environment: str | None, state: str, since: float) -> TurnPlace:
        user, name = "", None
        if environment is not None:
            user, name = self.label_of(environment, asker.environment)
        return TurnPlace(
            environment=environment,
            user=user,
            name=name,
            state="holding" if state == "holding" else "waiting",
            since=_time(since),
        )

    def _lockers(self, devices: frozenset[str]) -> set[str | None]:
        found = (self._locker(device) for device in devices)
        return {locker[0] for locker in found if locker is not None}

    def _locker(self, device: str) -> tuple[str | None, float] | None:
        """Return whose process holds the lock of a device, and since when; ``None``: nobody."""
        try:
            return self._ask(device)
        except FileNotFoundError:
            return None
        except OSError:  # no descriptor is left, say: what cannot be known is no proof of a turn
            return None, self.clock()

    def _ask(self, device: str) -> tuple[str | None, float] | None:
        descriptor = os.open(self._file(device), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, _, _, _, pid = struct.unpack(
                _FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, asked)
            )
            if kind == fcntl.F_UNLCK:
                return None
            return self.environment_of(pid) if pid > 0 else None, os.fstat(descriptor).st_mtime
        finally:
            os.close(descriptor)

    def _file(self, device: str) -> Path:
        self.directory.mkdir(mode=0o700, exist_ok=True)
        return self.directory / f"{quote(device, safe='')[:200]}.turn"


def _time(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)
