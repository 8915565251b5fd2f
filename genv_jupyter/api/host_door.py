"""The host daemon's socket: everybody on the host may knock, and the kernel says who it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote

import msgspec

from genv_jupyter.api.connection import ACTOR
from genv_jupyter.api.doors import Host, R, Verbs
from genv_jupyter.broker.audit import LONGEST, NOBODY_ELSE, Actor
from genv_jupyter.errors import UnknownProcess
from genv_jupyter.isolation import pid_namespaces, processes
from genv_jupyter.model import Principal

if TYPE_CHECKING:
    from genv_jupyter.broker.identity import Identities


class HostOfAll(Host, Protocol):
    """What this door needs of the daemon it is in."""

    identities: Identities

    def look_again(self, uid: int) -> None:
        """Have a user looked up anew, beside what is going on."""

    def audit(
        self,
        principal: Principal,
        method: str,
        path: str,
        status: int,
        said: str | None,
        actor: Actor,
    ) -> None:
        """Write down what somebody asked for, and what came of it."""


class HostDoor(Verbs):
    """A principal is whoever the kernel says is at the other end (``SO_PEERCRED``)."""

    host: HostOfAll

    def principal(self) -> Principal:
        connection = self.connection
        if connection.caller is None:
            pid, uid, _ = processes.peer(connection.socket)
            connection.caller = pid, processes.peer_start(connection.socket), uid
        found: tuple[int, int | None, int] = connection.caller
        pid, start, uid = found
        self._pid = pid if start is not None and processes.alive(pid, start) else 0
        identities = self.host.identities
        if identities.stale(uid):
            self.host.look_again(uid)
        # Looked up before the connection was let in; a change is seen by the next call.
        return identities.known(uid) or identities.look_up(uid)

    def peer_pid(self) -> int | None:
        return self._pid  # 0: in a pid namespace that we do not see, or ended: a child goes on

    def here(self, report: R) -> R:
        if report.pid is None:
            return report
        caller, start, uid = self.connection.caller
        found = pid_namespaces.ours(caller, uid, report.pid) if self._pid else None
        if found is None or not processes.alive(caller, start):
            raise UnknownProcess(
                f"No process {report.pid} of yours is known where you call from.",
                hint="Say its pid as your own pid namespace has it; the broker of this host must "
                "be able to see your processes.",
            )
        return msgspec.structs.replace(report, pid=found)

    async def actor(self) -> Actor:
        """Return who clicks in the caller's Jupyter server, if that is somebody else.

        That a server says so proves nothing: it is written down as what it says.
        """
        said = unquote(self.request.headers.get(ACTOR, ""))[:LONGEST]
        return Actor(claimed=said) if said.isprintable() and said else NOBODY_ELSE

    async def serve(self, arguments: Sequence[str]) -> None:
        actor = NOBODY_ELSE if self.request.method == "GET" else await self.actor()
        try:
            await super().serve(arguments)
        finally:
            caller: Principal | None = getattr(self, "caller", None)
            if caller is not None and self.request.method != "GET":
                said = None if self.refused is None else f"{self.refused.code}: {self.refused}"
                method, path = self.request.method, self.request.path
                self.host.audit(caller, method, path, self.status, said, actor)
