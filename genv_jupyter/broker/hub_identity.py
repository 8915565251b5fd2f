"""Who a caller on the Hub socket is: JupyterHub is asked, with the caller's own token.

That needs no power of ours at the Hub, and only the Hub decides what a token is worth. What it
answers is used for a while; tokens are remembered by their hashes. While the Hub does not answer,
tokens that were good are believed for some time longer, and nobody new is let in.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import msgspec
from msgspec import Struct
from traitlets import Bool, List, TraitError, Unicode, validate
from traitlets.config import Configurable

from genv_jupyter.broker.identity import Identities
from genv_jupyter.broker.rules.protection import FIRST_USER
from genv_jupyter.broker.traits import Seconds
from genv_jupyter.errors import Forbidden, GpuError, Unauthenticated, Unavailable
from genv_jupyter.model import Principal
from genv_jupyter.rootd.helper import RESERVED

log = logging.getLogger("genv_jupyter.broker")

CHALLENGE = {"challenge": "token"}
"""Tells the client to come again with a token (``api.tokens``)."""
SCOPE = "custom:genv-jupyter:"
ASK_SECONDS = 5.0
AT_ONCE = 8
"""Questions to the Hub at a time."""
PAUSE = 5.0
"""Seconds for which a Hub that did not answer, and a token that it refused, are not asked for."""
MOST = 8192
"""Tokens that are remembered."""
MANUAL = "docs/host-daemon.md says how callers of the Hub socket are known."
_LONGEST = 1024


class HubAccess(Configurable):
    """Users of a JupyterHub who do not run as Unix users of their own, known by their tokens."""

    api_url = Unicode(
        "",
        help="Where the API of the JupyterHub is, such as http://127.0.0.1:8081/hub/api. With it "
        "the daemon listens on the Hub socket too. Empty: it does not. To set it where it was "
        "empty takes a restart of the daemon.",
    ).tag(config=True)
    ca_file = Unicode(
        "",
        help="File with the certificates that an `https` api_url is checked against. Empty: those "
        "of the system.",
    ).tag(config=True)
    token_file = Unicode(
        "",
        help="File with the token of a service of the Hub that has the scopes list:groups and "
        "read:groups: then what a group's property `genv_jupyter` says ({'devices': 2}) is a quota "
        "of that group. Empty: properties of groups are left alone.",
    ).tag(config=True)
    cache_seconds = Seconds(
        60.0,
        help="For how long the Hub's answer about a token is used: seconds. A revoked token, and a "
        "change of groups, is noticed after that, on open event streams too.",
    )
    outage_seconds = Seconds(
        1800.0,
        help="For how long tokens that were good are believed while the Hub does not answer: "
        "seconds, or 30m, since it answered last. New ones are refused meanwhile.",
    )
    admin_users = List(
        Unicode(),
        [],
        help="Names of the Hub's users who may change, extend and end what others hold, and set "
        "quotas. Administrators of the Hub are none by themselves.",
    ).tag(config=True)
    admin_groups = List(
        Unicode(),
        [],
        help="Names of the Hub's groups whose members may do the same.",
    ).tag(config=True)
    local_users = Bool(
        False,
        help="Whether the Hub's user of a name is the Unix account of that name on this host, as "
        "with LocalProcessSpawner and SystemdSpawner: what they hold and what they may have is "
        "then counted together.",
    ).tag(config=True)

    @validate("api_url")
    def _check_url(self, proposal: Any) -> str:
        value = str(proposal["value"]).rstrip("/")
        if value and not value.startswith(("http://", "https://")):
            raise TraitError(f"api_url: {value!r} is no address: write http://HOST:PORT/hub/api.")
        return value


class Told(Struct, frozen=True):
    """What the Hub says of a token; anything else that it says is left alone."""

    name: str
    kind: Literal["user", "service"] = "user"
    groups: tuple[str, ...] | None = None
    scopes: frozenset[str] = frozenset()


class Caller(Struct, frozen=True):
    """Who calls, and whether with this token they may change anything."""

    principal: Principal
    changes: bool


class Known(Struct, frozen=True):
    """What is known of a token since a time (monotonic seconds)."""

    told: Told
    caller: Caller
    at: float


Ask = Callable[[str], Awaitable[Told | None]]


class HubIdentities:
    """Remembers what tokens are worth. Used on the event loop.

    Parameters
    ----------
    access
        Returns the present settings.
    identities
        The users of the host.
    ask
        Asks the Hub about a token; ``None`` is a refusal, ``OSError`` no answer.
    clock
        Monotonic seconds.
    """

    def __init__(
        self,
        access: Callable[[], HubAccess],
        identities: Identities,
        ask: Ask | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.access = access
        self.identities = identities
        self.clock = clock
        self._ask = ask or self._over_http
        self._known: dict[bytes, Known] = {}
        self._refused: dict[bytes, float] = {}
        self._asking: dict[bytes, asyncio.Task[Known]] = {}
        self._gate = asyncio.Semaphore(AT_ONCE)
        self._down: tuple[float, str] | None = None

    # -- what the door needs --------------------------------------------------------------------

    async def identify(self, token: str | None) -> Caller:
        """Return whose token that is.

        Raises
        ------
        Unauthenticated
            There is none, or the Hub does not know it (any more).
        Forbidden
            Whoever has it is none of those who may use GPUs here.
        Unavailable
            It is a new one, and the Hub does not answer.
        """
        if token is None or not 0 < len(token) <= _LONGEST:
            raise Unauthenticated(
                "This is the GPU broker's socket for JupyterHub, and you have sent no token.",
                hint="Send `Authorization: token ...`; in a server that the Hub has started it is "
                "in JUPYTERHUB_API_TOKEN.",
                details=CHALLENGE,
            )
        key = _hash(token)
        known = self._known.get(key)
        if known is None or not self._fresh(known):
            if (at := self._refused.get(key)) is not None and self.clock() - at < PAUSE:
                raise _unknown()
            known = await self._coalesced(key, token)
        return known.caller

    def fresh_for(self, token: str) -> float:
        """Return for how many seconds more a token need not be asked for."""
        known = self._known.get(_hash(token))
        age = float("inf") if known is None else self.clock() - known.at
        return max(0.0, float(self.access().cache_seconds) - age)

    def forget(self) -> None:
        """Ask anew about every token: the settings have changed."""
        self._refused.clear()
        self._known = {
            key: msgspec.structs.replace(it, at=float("-inf")) for key, it in self._known.items()
        }

    # -- asking ---------------------------------------------------------------------------------

    def _fresh(self, known: Known) -> bool:
        return self.clock() - known.at < float(self.access().cache_seconds)

    async def _coalesced(self, key: bytes, token: str) -> Known:
        """Ask once, however many wait for the answer."""
        task = self._asking.get(key)
        if task is None:
            task = self._asking[key] = asyncio.ensure_future(self._learn(key, token))
            task.add_done_callback(lambda done: self._answered(key, done))
        return await asyncio.shield(task)  # one who leaves takes nobody's answer along

    def _answered(self, key: bytes, done: asyncio.Task[Known]) -> None:
        del self._asking[key]
        if not done.cancelled():
            done.exception()  # whoever waited has it

    async def _learn(self, key: bytes, token: str) -> Known:
        asked = self.clock()
        try:
            told = await self._question(token)
        except OSError as error:
            self._note_down(str(error) or type(error).__name__)
            return self._believed(key)
        if self._down is not None:
            self._down = None
            log.info("JupyterHub answers again")
        if told is None:
            self._known.pop(key, None)
            self._refused = dict(list(self._refused.items())[-MOST:]) | {key: self.clock()}
            raise _unknown()
        caller = await asyncio.get_running_loop().run_in_executor(None, self._judge, told)
        while len(self._known) >= MOST:
            del self._known[next(iter(self._known))]
        known = Known(told, caller, asked)
        self._known.pop(key, None)  # so that the one of whom nothing was heard longest goes first
        self._known[key] = known
        return known

    async def _question(self, token: str) -> Told | None:
        if self._down is not None and self.clock() - self._down[0] < PAUSE:
            raise OSError(self._down[1])
        async with self._gate:
            return await self._ask(token)

    def _note_down(self, why: str) -> None:
        if self._down is None or self._down[1] != why:
            log.warning("JupyterHub does not answer: %s", why)
        if self._down is None or self.clock() - self._down[0] >= PAUSE:
            self._down = self.clock(), why

    def _believed(self, key: bytes) -> Known:
        """Return what was known of a token before the Hub fell silent."""
        known = self._known.get(key)
        access = self.access()
        if known is None or self.clock() - known.at >= access.outage_seconds:
            raise Unavailable(
                "JupyterHub does not answer the GPU broker, so it cannot tell who you are.",
                hint="Kernels go on with what they have. Try again when the Hub is there; an "
                "administrator sees more in the broker's log.",
            )
        return known

    async def _over_http(self, token: str) -> Told | None:
        from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest

        access = self.access()
        request = HTTPRequest(
            f"{access.api_url}/user",
            headers={"Authorization": f"token {token}", "Accept": "application/json"},
            connect_timeout=ASK_SECONDS,
            request_timeout=ASK_SECONDS,
            follow_redirects=False,  # the token is for the Hub alone
            ca_certs=access.ca_file or None,
        )
        try:
            answer = await AsyncHTTPClient().fetch(request)
            return msgspec.json.decode(answer.body, type=Told)
        except HTTPClientError as error:
            if error.code in (401, 403):
                return None
            raise OSError(f"{access.api_url} says {error.code}") from None
        except msgspec.MsgspecError:
            raise OSError(f"{access.api_url} does not answer as a JupyterHub does") from None
        except OSError:  # a certificate that does not fit is a ValueError too
            raise
        except ValueError:  # no header can have that token
            return None

    # -- judging --------------------------------------------------------------------------------

    def _judge(self, told: Told) -> Caller:
        """Return who that is here. May wait for a directory service."""
        scopes = told.scopes
        if told.kind == "service":
            return _service(told)
        access = self.access()
        groups = tuple(sorted(told.groups or ()))
        whole = _may_change(told.name, scopes)
        chosen = told.name in access.admin_users or not {*access.admin_groups}.isdisjoint(groups)
        admin = f"{SCOPE}admin" in scopes or (whole and chosen)
        found = Principal(realm="hub", id=told.name, name=told.name, admin=admin, groups=groups)
        if access.local_users:
            found = self._account(found, whole=whole)
        else:
            self.identities.learn(found)
        return Caller(found, changes=whole or admin)

    def _account(self, hub: Principal, *, whole: bool) -> Principal:
        """Return the Unix account that a user of the Hub is."""
        uid = account_of(self.identities, hub.name)
        self.identities.learn_groups(uid, hub.groups)
        local = self.identities.look_up(uid)
        return msgspec.structs.replace(local, admin=(whole and local.admin) or hub.admin)


def account_of(identities: Identities, name: str) -> int:
    """Return the uid of the account that a user of the Hub is. May wait for a directory service.

    Raises
    ------
    Forbidden
        There is none of that very name, or it is the host's own.
    Unavailable
        The host does not answer.
    """
    entry = identities.account(name)
    # A directory service may find ann for Ann and ann@example.org: at the Hub they are others.
    uid = entry.pw_uid if entry is not None and entry.pw_name == name else -1
    # The host's own accounts, root's among them, are nobody's who has named themselves so.
    if uid < FIRST_USER or uid in RESERVED:
        raise Forbidden(
            f"{name[:64]!r} of the Hub is no user with an account on this host.",
            hint="An administrator can make one, or unset HubAccess.local_users.",
        )
    return uid


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()


def _unknown() -> GpuError:
    return Unauthenticated(
        "JupyterHub does not know your token (any more).",
        hint="Log in to the Hub again. If that does not help, restart your server from its control "
        "panel, or make a new token there.",
    )


def _may_change(name: str, scopes: frozenset[str]) -> bool:
    """Say whether a user's token is good for more than looking.

    Whoever may enter the user's own servers can run there what they like, so they may with this
    token too. One that was made for less, for another service, say, may only look.
    """
    if f"{SCOPE}use" in scopes or f"{SCOPE}use!user={name}" in scopes:
        return True
    own = {"access:servers", f"access:servers!user={name}"}
    servers = f"access:servers!server={name}/"
    return not own.isdisjoint(scopes) or any(scope.startswith(servers) for scope in scopes)


def _service(told: Told) -> Caller:
    """Return what a service of the Hub is: what its scopes say, and nothing by its name."""
    admin = f"{SCOPE}admin" in told.scopes
    if not admin and f"{SCOPE}read" not in told.scopes:
        raise Forbidden(
            f"The service {told.name[:64]!r} of the Hub may not use the GPU broker.",
            hint=f"Give it the scope {SCOPE}read or {SCOPE}admin in JupyterHub.load_roles.",
        )
    # No user's name has a slash.
    principal = Principal(realm="hub", id=f"service/{told.name}", name=told.name, admin=admin)
    return Caller(principal, changes=admin)
