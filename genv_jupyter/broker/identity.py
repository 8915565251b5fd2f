"""Who a local user is: name and groups as the host knows them, and whether they administer GPUs.

The uid comes from the kernel (``SO_PEERCRED``); everything else is looked up on the host (NSS:
files, LDAP, SSSD), never taken from the client. A look-up may wait for a network, so it happens
beside what is going on: what was found is used for a while, and looked up again meanwhile. What is
too old is not believed, and nothing is decided on it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pwd import struct_passwd

from msgspec import Struct
from traitlets import Int, List, Unicode
from traitlets.config import Configurable

from genv_jupyter.broker.known_groups import KnownGroups
from genv_jupyter.broker.lookups import Answer, Lookups
from genv_jupyter.broker.posts import uid_of
from genv_jupyter.broker.traits import Seconds
from genv_jupyter.errors import Unavailable, UnknownUser
from genv_jupyter.isolation import accounts
from genv_jupyter.isolation.accounts import Account
from genv_jupyter.model import Principal

log = logging.getLogger("genv_jupyter.broker")
AT_ONCE, AT_ONCE_KNOWN = 8, 256
"""Look-ups at a time: of whom nothing is known, and of those who have an account, beside them. Any
of them may hang, and anybody may send uids of which the host knows nothing."""
SOON, PATIENCE = 0.5, 5.0
"""Seconds for which one who calls waits for a newer answer, and for the first."""
LEAST = 10.0
"""Seconds for which an answer is believed at least: a decision takes a moment too."""


class Access(Configurable):
    """Who administers the GPUs of a host, and how much anybody may keep open."""

    admin_users = List(
        Unicode(),
        ["root"],
        help="Names of the users who may change, extend and end what others hold, and set quotas.",
    ).tag(config=True)
    admin_groups = List(
        Unicode(),
        [],
        help="Names of the Unix groups whose members may do the same.",
    ).tag(config=True)
    identity_seconds = Seconds(
        30.0,
        help="For how long the name and the groups of a user are used before the host is asked "
        "again: seconds. A change of groups takes effect after that.",
    )
    outage_seconds = Seconds(
        300.0,
        help="For how long the name and the groups of a user are believed while the host does not "
        "answer who they are: seconds, or 5m, since it was asked what it answered last. Then they "
        "are refused until it answers.",
    )
    connections = Int(
        512,
        min=8,
        help="How many connections each user may have open to the broker; further ones are "
        "refused with `too_many`.",
    ).tag(config=True)


class Found(Struct, frozen=True):
    """What was looked up, when that was asked (monotonic seconds), and whether it is due again."""

    principal: Principal
    account: Account
    at: float
    due: bool = False


class Identities:
    """Remembers who the users are. Used from any thread.

    Parameters
    ----------
    access
        Returns the present settings.
    clock
        Monotonic seconds.
    ask
        Asks the host about a uid; may wait.

    Attributes
    ----------
    told
        The groups that a Hub has told.
    waits
        Seconds for which a decision waits for what is not known. Where it would keep others
        waiting, none: those who call have been looked up by then.
    """

    def __init__(
        self,
        access: Callable[[], Access],
        clock: Callable[[], float] = time.monotonic,
        ask: Callable[[int], Account] = accounts.of_uid,
    ) -> None:
        self.access = access
        self.clock = clock
        self.ask = ask
        self.waits = PATIENCE
        self.told = KnownGroups()
        self._found: dict[int, Found] = {}
        self._lock = threading.Lock()
        self._new, self._known = Lookups(AT_ONCE), Lookups(AT_ONCE_KNOWN)

    # -- what is known --------------------------------------------------------------------------

    def known(self, uid: int) -> Principal | None:
        """Return who was found last, however long ago; ``None`` for a uid never looked up."""
        found = self._found.get(uid)
        return None if found is None else found.principal

    def stale(self, uid: int) -> bool:
        """Say whether it is time to look again."""
        found = self._found.get(uid)
        return found is None or found.due or self._older(found, self.access().identity_seconds)

    def expired(self, uid: int) -> bool:
        """Say whether what is known is too old to be believed, if anything is."""
        found, access = self._found.get(uid), self.access()
        longest = max(LEAST, access.identity_seconds, access.outage_seconds)
        return found is None or self._older(found, longest)

    def has_account(self, uid: int) -> bool:
        """Say whether the host knows a name for a uid that was looked up; root always has one."""
        found = self.known(uid)
        return uid == 0 or (found is not None and found.name != str(uid))

    def sure(self, uid: int) -> Principal:
        """Return who a uid is, if that is known and not too long ago.

        Raises
        ------
        Unavailable
            The host has not said it (for long).
        """
        found = self.known(uid)
        if found is None or self.expired(uid):
            raise Unavailable(
                "This host does not answer who you are and which groups you are in, so the GPU "
                "broker cannot tell what you may do.",
                hint="What runs goes on with what it has. Try again in a moment; an administrator "
                "sees with `getent passwd` and `id` whether the host's directory service answers.",
            )
        return found

    def of(self, owner: str) -> Principal:
        """Return who owns something, by the key that is written on it: ``local:UID``, ``hub:NAME``.

        Groups of a Hub's user are known once they have called. What has to be looked up again is,
        beside what is going on.

        Raises
        ------
        Unavailable
            As ``sure``.
        """
        uid = uid_of(owner)
        if uid is None:
            return self._of_hub(owner)
        self._look(uid)
        return self.sure(uid)

    def last(self, owner: str) -> Principal:
        """Return the same as it was found last, however old: to count and to name, not to allow."""
        uid = uid_of(owner)
        if uid is None:
            return self._of_hub(owner)
        self._look(uid)
        return self.known(uid) or self._made(uid, Account(str(uid), ()))

    # -- looking up -----------------------------------------------------------------------------

    def begin(self, uid: int) -> Answer:
        """Look a user up, beside what is going on; return what is done when that is over."""
        lookups = self._known if self.has_account(uid) else self._new
        return lookups.begin(f"uid:{uid}", lambda: self._take(uid))

    def look_up(self, uid: int) -> Principal:
        """Ask the host who a uid is, and wait for that, but not for ever.

        Raises
        ------
        Unavailable
            As ``sure``.
        """
        self._wait(self.begin(uid), self.patience(uid))
        return self.sure(uid)

    def patience(self, uid: int) -> float:
        """Return for how many seconds since it began a look-up is worth waiting for."""
        return PATIENCE if self.expired(uid) else SOON

    def account(self, name: str) -> struct_passwd | None:
        """Return the account that the host finds by a name.

        Raises
        ------
        Unavailable
            It does not answer.
        """
        answer = self._known.begin(f"name:{name}", lambda: accounts.named(name))
        try:
            found: struct_passwd | None = answer.result(answer.left(PATIENCE))
            return found
        except TimeoutError:
            raise Unavailable(
                f"This host does not answer whether it knows a user {name[:64]!r}.",
                hint="Try again in a moment; `getent passwd` shows whether it answers.",
            ) from None

    def named(self, name: str) -> Principal:
        """Return the user of that name: one of the host, or else of a Hub (``hub:NAME``). May wait.

        Raises
        ------
        UnknownUser
            Nobody of that name is known.
        Unavailable
            The host does not answer.
        """
        entry = self.account(name)
        if entry is not None:
            return self.look_up(entry.pw_uid)
        key = f"hub:{name.removeprefix('hub:')}"
        if self.told.get(key) is not None:
            return self.of(key)
        raise UnknownUser(
            f"This host knows no user {name[:64]!r}.", hint="Say the name of an account."
        )

    # -- what else changes it -------------------------------------------------------------------

    def learn(self, found: Principal) -> None:
        """Remember a user of a Hub, as the Hub says."""
        self.told.put(found.key, found.groups)

    def learn_groups(self, uid: int, groups: tuple[str, ...]) -> None:
        """Add the groups that a Hub has a local user in; those of the host stay the same."""
        self.told.put(f"local:{uid}", groups)
        with self._lock:
            found = self._found.get(uid)
            if found is not None:
                self._put(uid, found.account, found.at, due=found.due)

    def forget(self) -> None:
        """Look everybody up anew: the settings have changed."""
        with self._lock:
            for uid, found in list(self._found.items()):
                self._put(uid, found.account, found.at, due=True)

    # -- inside ---------------------------------------------------------------------------------

    def _older(self, found: Found, seconds: float) -> bool:
        return self.clock() - found.at >= seconds

    def _look(self, uid: int) -> None:
        if self.stale(uid):
            looking = self.begin(uid)
            if self.waits and self.expired(uid):
                self._wait(looking, self.waits)

    def _wait(self, looking: Answer, seconds: float) -> None:
        with suppress(TimeoutError):  # then what is known counts, if it is not too old
            looking.result(looking.left(seconds))

    def _take(self, uid: int) -> None:
        asked = self.clock()
        try:
            found = self.ask(uid)
        except Exception as error:  # what is known of them counts until it is too old
            log.warning("uid %d could not be looked up: %s", uid, error)
            return
        with self._lock:
            self._put(uid, found, asked, due=False)

    def _put(self, uid: int, found: Account, at: float, *, due: bool) -> None:
        self._found[uid] = Found(self._made(uid, found), found, at, due)

    def _made(self, uid: int, found: Account) -> Principal:
        access, groups = self.access(), found.groups
        admin = found.name in access.admin_users or not {*access.admin_groups}.isdisjoint(groups)
        more = self.told.get(f"local:{uid}")
        if more is not None:
            groups = tuple(sorted({*groups, *more}))
        return Principal(realm="local", id=str(uid), name=found.name, admin=admin, groups=groups)

    def _of_hub(self, owner: str) -> Principal:
        name = owner.partition(":")[2]
        groups = self.told.get(f"hub:{name}") or ()
        return Principal(realm="hub", id=name, name=name, groups=groups)
