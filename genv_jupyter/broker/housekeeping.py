"""Freeing what the dead held, and ending what waits for too long: once a second."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from genv_jupyter.broker import servers
from genv_jupyter.broker.confirmations import want_again
from genv_jupyter.broker.core import Core
from genv_jupyter.broker.crowds import Crowds
from genv_jupyter.broker.leases import Announcer
from genv_jupyter.broker.losses import Losses
from genv_jupyter.broker.release import (
    end_environment,
    end_if_gone,
    settle,
    tie_up,
    unconfirmed,
)
from genv_jupyter.isolation import processes
from genv_jupyter.ledger.rows import EnvironmentRow

SLICE = 500
"""Processes looked at in one round: a round stays a few milliseconds, whatever their number."""

AGAIN = 5.0
"""Seconds after which what nobody has confirmed is wanted again."""

KERNEL_GONE = "The kernel's process is gone; its devices are kept for a restart."
SERVER_GONE = "Its Jupyter server is gone; the devices are free when the process ends."


class Housekeeper:
    """Looks after every environment in turn."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._crowds = Crowds(core)
        self._todo: list[str] = []
        self._open: dict[str, int] = {}
        self._losses = Losses(core)
        self._next_wants = float("-inf")
        self._leases = Announcer(core)

    def parts(self) -> tuple[Callable[[], None], ...]:
        """Return the parts of a round, in order; between them others may have the lock."""
        core = self.core
        return (
            self._tie_up,
            self._see_cuda,
            self._drop_dead_servers,
            self._losses.round,
            core.upkeep.round,
            core.deaths.round,
            self._settle,
            self._want_again,
            self._leases.round,
            self._crowds.round,
            self._look_at_some,
        )

    def _tie_up(self) -> None:
        if self.core.loose_ends:
            tie_up(self.core)

    def _settle(self) -> None:
        """Look at all that drain."""
        core = self.core
        draining = {
            grant.environment
            for grants in core.books.on_device.values()
            for grant in grants.values()
            if grant.state == "draining"
        }
        for environment in draining:
            settle(core, core.books.environments[environment])

    def _look_at_some(self) -> None:
        """Look at a slice of the environments."""
        books = self.core.books
        if not self._todo:
            self._todo = list(books.environments)
        turn, self._todo = self._todo[:SLICE], self._todo[SLICE:]
        for environment in turn:
            row = books.environments.get(environment)
            if row is not None:
                self._look(row)

    def _see_cuda(self) -> None:
        """A process on a device has initialised CUDA: no need to ask it."""
        for usage in self.core.usage.values():
            for environment, seen in usage.own.items():
                row = self.core.books.environments.get(environment)
                if row is None or row.cuda == "initialized":
                    continue
                if any(process.pid == row.pid for process in seen):
                    self._put(msgspec.structs.replace(row, cuda="initialized"))

    def _want_again(self) -> None:
        """Whoever was to apply variables may have been broken off."""
        core = self.core
        if core.steady() < self._next_wants:
            return
        self._next_wants = core.steady() + AGAIN
        before, self._open = self._open, {}
        for environment in core.books.grants:
            row = core.books.environments[environment]
            if not unconfirmed(core.books, row):
                continue
            self._open[row.id] = row.revision
            if before.get(row.id) == row.revision:
                want_again(core, row)

    def _drop_dead_servers(self) -> None:
        books = self.core.books
        for server in list(books.servers.values()):
            if not processes.alive(server.pid, server.start):
                with books.change() as change:
                    change.drop_server(server)

    def _look(self, row: EnvironmentRow) -> None:
        core = self.core
        if row.kind == "server":
            servers.look(core, row)
            return
        lives = row.pid is not None and processes.alive(row.pid, row.start)
        server = row.server is not None and row.server in core.books.servers
        late = row.deadline is not None and core.steady() > row.deadline
        if row.state in ("reserved", "held"):
            if lives and late:
                # A restart was announced and never came: the old kernel still runs.
                self._put(msgspec.structs.replace(row, state="granted", deadline=None))
            elif not lives and (late or not server):
                why = "its server is gone" if not server else "its start or restart never came"
                end_environment(core, row, why)
        elif not lives:
            if not end_if_gone(core, row):
                deadline = core.steady() + core.policy.start_deadline
                self._put(
                    msgspec.structs.replace(
                        row, state="held", deadline=deadline, reason=KERNEL_GONE
                    )
                )
        elif row.server is not None and not server and row.reason is None:
            self._put(msgspec.structs.replace(row, reason=SERVER_GONE))

    def _put(self, row: EnvironmentRow) -> None:
        with self.core.books.change() as change:
            change.put_environment(row)
