"""A fatal error under MPS: who has lost what they had on a device, and when it is good again.

One process that crashes on the GPU takes all clients of its server with it, says NVIDIA: each has
lost its contexts, and the server takes new ones only when the last of them is gone. That is told,
and when they are gone the server is made anew, without hands.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from genv_jupyter.broker.witness import Client, Key, Witness
from genv_jupyter.isolation import processes
from genv_jupyter.isolation.mps import Daemons, Post
from genv_jupyter.isolation.mps_control import MpsBusy, MpsError
from genv_jupyter.isolation.mps_log import LogReader, fault_in

if TYPE_CHECKING:
    from genv_jupyter.broker.core import Core

log = logging.getLogger(__name__)

STATUS_SECONDS = 10.0
"""Between two questions for a server's status: its log is read each time, and tells at once."""

FAULT = "FAULT"
"""How a server's status is called after a fatal error (NVIDIA's MPS guide)."""

HINT = "Restart the kernel: its grant is kept. Save what is in its memory first."


class Sign(NamedTuple):
    """What told of a fatal error, and whether the server lives on and takes no new clients."""

    said: str
    closed: bool


class Loss(Struct):
    """What a fatal error of one server has ended: the processes, and their environments."""

    sign: Sign
    who: dict[Key, str | None]

    def of(self, environment: str) -> bool:
        """Say whether an environment has lost something that it has not given up yet."""
        return environment in self.who.values()


class Faults:
    """Looks for fatal errors, tells of them, and has servers made anew.

    Attributes
    ----------
    losses
        By post, while processes are left that a fatal error concerns.
    """

    def __init__(self, daemons: Daemons, witness: Witness) -> None:
        self.daemons = daemons
        self.witness = witness
        self.losses: dict[Post, Loss] = {}
        self._logs: dict[Post, list[LogReader]] = {}
        self._asked: dict[Post, float] = {}

    def look(self, core: Core, lock: threading.RLock) -> None:
        """Look once; called without the lock, since it may run programs."""
        running = self.daemons.running()
        for gone in self._logs.keys() - set(running):
            del self._logs[gone]
        for post in running:
            clients = self.witness.clients_of(post)
            if post in self.losses:
                self._recover(core, lock, post)
            elif (sign := self._sign(post, clients)) is not None:
                self._found(core, lock, post, sign, clients)
        for post in self.losses.keys() - set(running):
            self._over(core, lock, post)

    def trouble(self, post: Post) -> str | None:
        """Say why a device takes no new client of MPS now."""
        loss = self.losses.get(post)
        if loss is None or not loss.sign.closed:
            return None
        return (
            "A fatal error has ended what ran on this device under MPS; it takes new processes "
            f"when those are gone: {', '.join(str(pid) for pid, _ in loss.who) or 'in a moment'}."
        )

    def lost(self, post: Post, environment: str) -> bool:
        """Say whether an environment has lost what it had on a device."""
        loss = self.losses.get(post)
        return loss is not None and loss.of(environment)

    # -- parts ----------------------------------------------------------------------------------

    def _sign(self, post: Post, clients: dict[Key, Client]) -> Sign | None:
        """Return what tells of a fatal error: a log, a server that is gone, or its status."""
        said = fault_in([line for it in self._readers(post) for line in it.news()])
        for client in clients.values():
            if client.start is not None and not processes.alive(client.server, client.start):
                return Sign(said or f"The MPS server {client.server} has ended.", False)
        if said is not None:
            return Sign(said, True)
        now = self.daemons.steady()
        if not clients or now - self._asked.get(post, float("-inf")) < STATUS_SECONDS:
            return None
        self._asked[post] = now
        try:
            control = self.daemons.control(post)
            for server in control.servers():
                if FAULT in (control.status(server) or ""):
                    return Sign(f"The MPS server {server} is in state {FAULT}.", True)
        except MpsError as error:  # whoever looks after daemons deals with one that is silent
            log.warning("MPS on %s: %s", post.device, error)
        return None

    def _readers(self, post: Post) -> list[LogReader]:
        found = self._logs.get(post)
        if found is None:
            log_of = self.daemons.control(post).log
            # What an earlier broker has left may have recovered long ago: its status is asked.
            found = [LogReader(partial(log_of, name)) for name in ("server.log", "control.log")]
            self._logs[post] = found
        return found

    def _found(
        self,
        core: Core,
        lock: threading.RLock,
        post: Post,
        sign: Sign,
        clients: dict[Key, Client],
    ) -> None:
        log.warning("MPS on %s: %s", post.device, sign.said)
        who = set(clients)
        silent = False
        try:
            for pid in self.daemons.control(post).clients():
                if (start := processes.start_of(pid)) is not None:
                    who.add((pid, start))
        except MpsError as error:  # it may block while it deals with the error
            silent = True
            log.warning("MPS on %s does not tell its clients: %s", post.device, error)
        with lock:
            if silent:
                who |= self.witness.presumed(core, post)
            found = {key: core.attribution.environment_of(key[0]) for key in who}
            self.losses[post] = Loss(sign, found)
            label = core.books.slots[post.device].label
            for environment in set(found.values()):
                row = core.books.environments.get(environment or "")
                if row is None:
                    continue
                core.books.touch(row.id)
                core.record("ContextsLost", row, device=post.device, reason=sign.said)
                core.board.tell(
                    row,
                    "mps",
                    sentence(label),
                    level="error",
                    hint=HINT,
                    actions=("restart",) if row.server else (),
                )

    def _recover(self, core: Core, lock: threading.RLock, post: Post) -> None:
        """Take note of who is gone; with the last of them the server is made anew."""
        loss = self.losses[post]
        gone = {key: name for key, name in loss.who.items() if not processes.alive(*key)}
        with lock:
            for key in gone:
                del loss.who[key]
            self._withdraw(core, post, {*gone.values()} - {*loss.who.values()})
        if loss.who:
            return
        try:
            if loss.sign.closed:
                self.daemons.renew(post)
        except MpsBusy:  # it takes new processes already, as NVIDIA says it does
            log.info("MPS on %s works again", post.device)
        except MpsError as error:  # kept as the daemon's trouble, and tried again
            log.warning("MPS on %s: %s", post.device, error)
        self._over(core, lock, post)

    def _over(self, core: Core, lock: threading.RLock, post: Post) -> None:
        with lock:
            loss = self.losses.pop(post)
            self._withdraw(core, post, loss.who.values())
        self._logs.pop(post, None)

    def _withdraw(self, core: Core, post: Post, environments: Iterable[str | None]) -> None:
        for environment in environments:
            row = None if environment is None else core.books.environments.get(environment)
            if row is None:
                continue
            core.books.touch(row.id)
            core.board.withdraw(row, "mps")


def sentence(label: str) -> str:
    """Say what has happened to an environment that was on a device."""
    return (
        f"A fatal error has ended the work on {label} of all who share it under MPS: what this "
        "environment had in its memory is lost, and CUDA works no more in its processes."
    )
