"""The host daemon's socket: everybody on the host may knock, and the kernel says who it is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote

import msgspec

from genv_jupyter.api.connection import ACTOR
from genv_jupyter.api.doors import Host, R, Verbs
from genv_jupyter.broker.audit import LONGEST, NOBODY_ELSE, Actor
from genv_jupyter.errors import Unavailable, UnknownProcess
from genv_jupyter.isolation import pid_namespaces, processes
from genv_jupyter.model import Principal

if TYPE_CHECKING:
    from genv_jupyter.broker.identity import Identities

_LEAST = 1.0
"""Seconds between two looks at who listens."""


class HostOfAll(Host, Protocol):
    """What this door needs of the daemon it is in."""

    identities: Identities

    async def meet(self, uid: int) -> None:
        """Have it known who a user is, as far as the host answers in time."""

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
        pid, start, uid = self._peer()
        self._pid = pid if start is not None and processes.alive(pid, start) else 0
        return self.host.identities.sure(uid)

    def _peer(self) -> tuple[int, int | None, int]:
        connection = self.connection
        if connection.caller is None:
            pid, uid, _ = processes.peer(connection.socket)
            connection.caller = pid, processes.peer_start(connection.socket), uid
        found: tuple[int, int | None, int] = connection.caller
        return found

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

    async def introduce(self) -> None:
        """Have it known who calls, before anything is decided for them."""
        uid, identities = self._peer()[2], self.host.identities
        if not identities.stale(uid):
            return
        if identities.expired(uid):
            await self.host.meet(uid)
        else:
            identities.begin(uid)  # beside this call: a change is seen by the next one

    def pause(self) -> float:
        """Return the seconds after which it is looked whether the caller is still who they were."""
        return max(_LEAST, float(self.host.identities.access().identity_seconds))

    async def still(self) -> bool:
        """Say whether an answer that does not end may go on: the caller is who they were."""
        uid = self._peer()[2]
        await self.host.meet(uid)
        try:
            return self.host.identities.sure(uid) == self.caller
        except Unavailable:
            return False

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look after the caller of an answer that does not end, while it goes on."""
        watching = asyncio.ensure_future(self.watch())
        try:
            yield
        finally:
            watching.cancel()

    async def watch(self) -> None:
        """End the connection when the caller is no longer who they were."""
        while await self.still():
            await asyncio.sleep(self.pause())
        self.connection.drop()  # it is told why, or sees something else, when it comes again

    async def serve(self, arguments: Sequence[str]) -> None:
        actor = NOBODY_ELSE if self.request.method == "GET" else await self.actor()
        await self.introduce()
        try:
            await super().serve(arguments)
        finally:
            caller: Principal | None = getattr(self, "caller", None)
            if caller is not None and self.request.method != "GET":
                said = None if self.refused is None else f"{self.refused.code}: {self.refused}"
                method, path = self.request.method, self.request.path
                self.host.audit(caller, method, path, self.status, said, actor)
