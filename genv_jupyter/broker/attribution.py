"""To which environment a process belongs: by its cgroup, its family, or a variable it carries.

The variable is a claim that anybody can make: it counts where the process runs as the environment's
owner; a user of a Hub is known by the company that their processes keep (``company``). A cgroup
tells where the environment has it to itself: neither the server nor the broker is in it, nor
anything that is older than the environment's process, such as the shell of a login.

What was proved of a process (pid and start ticks) holds for its life, so it is looked into once: a
child stays its kernel's when that has ended and another has become its parent.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from msgspec import Struct

from genv_jupyter.broker import company
from genv_jupyter.broker.books import Books
from genv_jupyter.broker.posts import uid_of
from genv_jupyter.isolation import processes
from genv_jupyter.isolation.powers import Powers

SETTLED = 5.0
"""Seconds from its start on for which a process is looked at again and again: in the moment in
which it begins a program it shows no variables."""

Identity = tuple[int, int]
"""pid, and start in clock ticks since boot."""


class _Group(NamedTuple):
    """The cgroup of an environment's process at some revision, and whether it may be its own."""

    who: tuple[int, int, int]
    path: str | None
    own: bool


class Origin(Struct, frozen=True):
    """The environment that a process came from.

    ``present`` says that there still is one of that id, ``left`` that the process has outlived the
    kernel (or command) that started it.
    """

    environment: str
    present: bool
    left: bool


class Attribution:
    """Finds the environment of a process.

    Attributes
    ----------
    strange
        Ids that markers name and that are not known to have been environments here. They prove
        nothing: they may be those of another broker. Whoever finds out tells the books, and has
        this ``look_again``.
    """

    def __init__(self, books: Books, powers: Powers | None = None) -> None:
        self.books = books
        self.powers = powers or Powers()
        self.strange: set[str] = set()
        self._proved: dict[Identity, str] = {}
        self._refuted: set[Identity] = set()
        self._starts: dict[int, int | None] = {}
        self._names: dict[Identity, tuple[str | None, int | None]] = {}
        self._family: dict[int, str] = {}
        self._cgroups: dict[str, _Group] = {}

    # -- one reading ----------------------------------------------------------------------------

    def begin(self, pids: Iterable[int]) -> None:
        """Begin a reading with these processes: their starts are read once, the gone forgotten."""
        self._starts = {pid: processes.start_of(pid) for pid in set(pids)}
        here = {(pid, start) for pid, start in self._starts.items() if start is not None}
        self._proved = {who: it for who, it in self._proved.items() if who in here}
        self._names = {who: it for who, it in self._names.items() if who in here}
        if self._family != self.books.by_pid:  # who belonged to nobody may belong to a new one
            self._family = dict(self.books.by_pid)
            self._refuted.clear()
        self._refuted &= here
        self._look_at_cgroups()

    def start_of(self, pid: int) -> int | None:
        """Return the start ticks of a process of this reading."""
        return self._starts.get(pid)

    def origin_of(self, pid: int, start: int | None) -> Origin | None:
        """Return where a process of this reading provably comes from."""
        if start is None or (pid, start) in self._refuted:
            return None
        found = self._proved.get((pid, start))
        if found not in self.books.environments:
            # Proved before, and gone since: it may have been merged into another one.
            found = self.environment_of(pid) or found or self._formerly(pid)
        if found is None:
            if processes.age(start) >= SETTLED and not self.powers.unsure(pid, start):
                self._refuted.add((pid, start))
            return None
        self._proved[pid, start] = found
        present = found in self.books.environments
        return Origin(found, present, not present or self._outlived(found, start))

    def command_of(self, pid: int, start: int | None) -> str | None:
        """Return the short name of a process of this reading."""
        return self._particulars(pid, start)[0]

    def uid_of(self, pid: int, start: int | None) -> int | None:
        """Return whose process of this reading it is."""
        return self._particulars(pid, start)[1]

    # -- at any time ----------------------------------------------------------------------------

    def environment_of(self, pid: int) -> str | None:
        """Return the present environment that a process provably belongs to."""
        books = self.books
        owner = self._by_cgroup(pid)
        if owner is not None:
            return owner
        for ancestor, start in processes.ancestors(pid):
            found = books.by_pid.get(ancestor)
            # Turns ask without the lock: it may be ending at this moment.
            row = None if found is None else books.environments.get(found)
            if row is not None and row.start == start:
                return found
        claimed = self.powers.variable(pid, processes.MARKER)
        if claimed in books.environments and self._may_claim(pid, claimed):
            return claimed
        return None

    def pretends(self, pid: int) -> bool:
        """Say whether a process carries the name of an environment that is somebody else's."""
        claimed = self.powers.variable(pid, processes.MARKER)
        row = None if claimed is None else self.books.environments.get(claimed)
        if row is not None and uid_of(row.owner) is None:
            return company.refutes(row, pid)
        known = row is not None or claimed in self.books.former
        return claimed is not None and known and not self._may_claim(pid, claimed)

    # -- ours -----------------------------------------------------------------------------------

    def _particulars(self, pid: int, start: int | None) -> tuple[str | None, int | None]:
        if start is None:
            return None, None  # that pid means somebody else here
        found = self._names.get((pid, start))
        if found is None:
            found = self._names[pid, start] = processes.command(pid), processes.uid_of(pid)
        return found

    def _formerly(self, pid: int) -> str | None:
        """Return the environment, now gone, that a process carries in its variables."""
        claimed = self.powers.variable(pid, processes.MARKER)
        if claimed is None:
            return None
        if claimed in self.books.former:
            return claimed if self._may_claim(pid, claimed) else None
        self.strange.add(claimed)
        return None

    def _may_claim(self, pid: int, environment: str) -> bool:
        """Say whether a process runs as the owner of an environment that it says it belongs to."""
        row, former = self.books.environments.get(environment), self.books.former.get(environment)
        known = row or former
        owner = None if known is None else uid_of(known.owner)
        if owner is None:
            return row is not None and company.proves(self.books, row, pid)
        return processes.uid_of(pid) == owner

    def look_again(self) -> None:
        """Doubt what was refuted: more is known of former environments now."""
        self._refuted.clear()

    def _outlived(self, environment: str, start: int) -> bool:
        """Say whether a process is from before its kernel's restart, or after a command's end."""
        row = self.books.environments[environment]
        if row.pid is None or row.start is None or row.state in ("reserved", "held"):
            return False  # another kernel is about to come: nobody knows yet what will be left
        if start < row.start:
            return True
        return row.server is None and not processes.alive(row.pid, row.start)

    def _look_at_cgroups(self) -> None:
        """Note the cgroup of each environment, anew when something was done about it."""
        before, now = self._cgroups, dict[str, _Group]()
        for row in self.books.environments.values():
            if row.pid is None or row.start is None:
                continue
            who = row.pid, row.start, row.revision
            kept = before.get(row.id)
            if kept is None or kept.who != who:
                path = processes.cgroup(row.pid)
                kept = _Group(who, path, path is not None and _is_oldest(path, row.start))
            now[row.id] = kept
        self._cgroups = now  # in one step: turns ask without the lock

    def _by_cgroup(self, pid: int) -> str | None:
        """Return the environment whose own cgroup a process is in."""
        groups = self._cgroups
        owned = [(it, group.path) for it, group in groups.items() if group.path is not None]
        if not any(group.own for group in groups.values()):
            return None
        path = processes.cgroup(pid)
        if path is None:
            return None
        within = [(it, own) for it, own in owned if path == own or path.startswith(f"{own}/")]
        if len(within) != 1:
            return None  # several share it: it tells nothing
        environment, own = within[0]
        if not groups[environment].own:
            return None
        others = {os.getpid(), *(server.pid for server in self.books.servers.values())}
        if any(_in(processes.cgroup(other), own) for other in others):
            return None  # it is that of the server, or of the whole login
        return environment


def _is_oldest(path: str, start: int) -> bool:
    """Say whether nothing in a cgroup is older than a process: it may have been made for it."""
    there = processes.members(path)
    if there is None:
        return False
    began = (processes.start_of(pid) for pid in there)
    return not any(it is not None and it < start for it in began)


def _in(path: str | None, own: str) -> bool:
    return path is not None and (path == own or path.startswith(f"{own}/"))
