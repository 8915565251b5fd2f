"""The Hub's socket: callers in containers, or of one uid, whom JupyterHub knows by their tokens.

Who is at the other end proves nothing here, root least of all: the socket may be mounted into
containers. What the kernel says of the peer is used for one thing: which process of ours it is.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from genv_jupyter.api.connection import ACTOR_TOKEN
from genv_jupyter.api.doors import R
from genv_jupyter.api.host_door import HostDoor, HostOfAll
from genv_jupyter.broker.audit import NOBODY_ELSE, Actor
from genv_jupyter.errors import Forbidden, GpuError, NotYours, Unauthenticated, UnknownProcess
from genv_jupyter.isolation import pid_namespaces, processes
from genv_jupyter.model import Principal

if TYPE_CHECKING:
    from genv_jupyter.broker.hub_identity import Caller

CHALLENGE = b'token realm="JupyterHub"'
_AUTHORIZATION = re.compile(r"(?:token|bearer) +([!-~]+)", re.IGNORECASE)
_LEAST, _MOST_PIDS = 0.2, 256


class Guest:
    """The other end of one connection.

    Attributes
    ----------
    pid, start, uid
        Of the process that has connected, as the kernel has them; ``start`` is ``None`` of one that
        has ended by then.
    origin
        What connections of callers who have proved nothing are counted by.
    key
        The principal that the connection is counted for; ``None`` before anybody is proved.
    """

    def __init__(self, pid: int, start: int | None, uid: int) -> None:
        self.pid, self.start, self.uid = pid, start, uid
        # Outside of containers anybody makes cgroups of their own: as many as they start services.
        inside = processes.cgroup(pid) if pid_namespaces.contained(pid) else None
        self.origin = inside or f"uid {uid}"
        self.key: str | None = None
        self._found: dict[int, tuple[int, int | None]] = {}

    @property
    def here(self) -> bool:
        """Whether it still is the process that has connected.

        A child may keep the connection, and a process of the host come to have its pid: what that
        one sees is none of the caller's.
        """
        return self.start is not None and processes.alive(self.pid, self.start)

    def ours(self, pid: int) -> int | None:
        """Return our pid of the process that the caller knows as ``pid``."""
        if not self.here:
            return None
        known = self._found.get(pid)
        if known is not None and processes.alive(*known):
            return known[0]
        found = pid_namespaces.ours(self.pid, None, pid)
        if found is not None and self.here:  # all along: it was looked for in its own namespace
            if len(self._found) >= _MOST_PIDS:
                self._found.clear()
            self._found[pid] = found, processes.start_of(found)
            return found
        return None


class Gate(Protocol):
    """Knows whose a token is."""

    async def admit(self, guest: Guest, token: str | None) -> Caller:
        """Return who has that token, and count the connection as theirs."""

    async def identify(self, token: str) -> Caller:
        """Return who has that token."""

    def fresh_for(self, token: str) -> float:
        """Return for how many seconds a token need not be looked at again."""


class HostOfHub(HostOfAll, Protocol):
    """What this door needs of the daemon it is in."""

    hub: Gate


class Proof(NamedTuple):
    """What came of asking the Hub."""

    token: str = ""
    caller: Caller | None = None
    refusal: GpuError | None = None


class HubDoor(HostDoor):
    """A principal is whomever the Hub says the token of the request is of."""

    host: HostOfHub
    _watching: asyncio.Task[None] | None = None

    async def serve(self, arguments: Sequence[str]) -> None:
        guest: Guest = self.connection.caller
        self._pid = guest.pid if guest.here else 0
        token = token_of(self.request.headers)
        try:
            self._proof = Proof(
                token or "", await self.host.hub.admit(self.connection.caller, token)
            )
        except GpuError as error:
            self._proof = Proof(refusal=error)
            if isinstance(error, Unauthenticated):
                self.connection.last = True
                self.connection.challenge = CHALLENGE
            await super().serve(arguments)
            return
        loop = asyncio.get_running_loop()
        later = loop.call_later(self.pause(), self._begin_to_watch)
        try:
            await super().serve(arguments)
        finally:
            later.cancel()
            if self._watching is not None:
                self._watching.cancel()

    async def introduce(self) -> None:
        """Know nobody by a uid: the Hub has said who it is."""

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Do nothing more: the token is looked after whatever takes long."""
        yield

    def _begin_to_watch(self) -> None:
        """Look after the token of an answer that does not end."""
        self._watching = asyncio.ensure_future(self.watch())

    def pause(self) -> float:
        return max(_LEAST, self.host.hub.fresh_for(self._proof.token))

    async def still(self) -> bool:
        """Say whether the token of an answer that does not end is still worth the same."""
        try:
            caller = await self.host.hub.admit(self.connection.caller, self._proof.token)
        except GpuError:
            return False
        return caller == self._proof.caller

    async def actor(self) -> Actor:
        claim, token = await super().actor(), self.request.headers.get(ACTOR_TOKEN)
        if token is None or self._proof.caller is None:
            return claim
        try:
            found = (await self.host.hub.identify(token)).principal
        except GpuError:
            return claim  # it proves nothing, and stands in nobody's way
        return NOBODY_ELSE if found == self._proof.caller.principal else Actor(proved=found)

    def principal(self) -> Principal:
        proof = self._proof
        if proof.caller is None:
            assert proof.refusal is not None
            raise proof.refusal
        if not (proof.caller.changes or self._looks()):
            self.caller = proof.caller.principal  # whose refusal it is: for the audit log
            raise Forbidden(
                "Your token is good for looking only.",
                hint="Use that of your server (JUPYTERHUB_API_TOKEN), or one whose scopes include "
                "access:servers!user or custom:genv-jupyter:use!user.",
            )
        return proof.caller.principal

    def here(self, report: R) -> R:
        if report.pid is None:
            return report
        guest: Guest = self.connection.caller
        found = guest.ours(report.pid)
        uid = None if found is None else processes.uid_of(found)
        if found is None or uid is None:
            raise UnknownProcess(
                f"No process {report.pid} is known where you call from.",
                hint="Say its pid as your own container has it; the broker of this host must be "
                "able to see its processes.",
            )
        # In a container of its own all processes are its user's, whatever their uid.
        contained = pid_namespaces.contained(guest.pid) and guest.here
        if not contained and uid != guest.uid:
            raise NotYours(
                f"Process {report.pid} belongs to another user.", hint="Name one of your own."
            )
        return msgspec.structs.replace(report, pid=found)

    # -- ours -----------------------------------------------------------------------------------

    def _looks(self) -> bool:
        return self.request.method == "GET" or self.request.path == "/v1/placements"


def token_of(headers: Mapping[str, str]) -> str | None:
    """Return the token in the headers of a request."""
    found = _AUTHORIZATION.fullmatch(headers.get("authorization", "").strip())
    return None if found is None else found[1]
