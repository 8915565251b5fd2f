"""Who a local user is: name and groups as the host knows them, and whether they administer GPUs.

The uid comes from the kernel (``SO_PEERCRED``); everything else is looked up on the host (NSS:
files, LDAP, SSSD), never taken from the client. A look-up may wait for a network, so it happens in
a thread, and what was found is used for a while.
"""

from __future__ import annotations

import grp
import os
import pwd
import threading
import time
from collections.abc import Callable

from msgspec import Struct
from traitlets import Int, List, Unicode
from traitlets.config import Configurable

from genv_jupyter.broker.known_groups import KnownGroups
from genv_jupyter.broker.traits import Seconds
from genv_jupyter.errors import UnknownUser
from genv_jupyter.model import Principal


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
    connections = Int(
        512,
        min=8,
        help="How many connections each user may have open to the broker; further ones are "
        "refused with `too_many`.",
    ).tag(config=True)


class Found(Struct, frozen=True):
    """What was looked up, and when (monotonic seconds)."""

    principal: Principal
    at: float


class Identities:
    """Remembers who the users are.

    Parameters
    ----------
    access
        Returns the present settings.
    clock
        Monotonic seconds.

    Attributes
    ----------
    told
        The groups that a Hub has told.
    """

    def __init__(
        self, access: Callable[[], Access], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.access = access
        self.clock = clock
        self._found: dict[int, Found] = {}
        self.told = KnownGroups()
        self._lock = threading.Lock()

    def known(self, uid: int) -> Principal | None:
        """Return who was found last, however long ago; ``None`` for a uid never looked up."""
        found = self._found.get(uid)
        return None if found is None else found.principal

    def stale(self, uid: int) -> bool:
        """Say whether it is time to look again."""
        found = self._found.get(uid)
        return found is None or self.clock() - found.at >= self.access().identity_seconds

    def has_account(self, uid: int) -> bool:
        """Say whether the host knows a name for a uid that was looked up; root always has one."""
        found = self.known(uid)
        return uid == 0 or (found is not None and found.name != str(uid))

    def look_up(self, uid: int) -> Principal:
        """Ask the host who a uid is. May wait for a directory service."""
        access = self.access()
        try:
            entry = pwd.getpwuid(uid)
            name, groups = entry.pw_name, _groups(entry.pw_name, entry.pw_gid)
        except KeyError:  # a uid without an account: it is nobody's member
            name, groups = str(uid), ()
        admin = name in access.admin_users or not {*access.admin_groups}.isdisjoint(groups)
        more = self.told.get(f"local:{uid}")
        if more is not None:
            groups = tuple(sorted({*groups, *more}))
        made = Principal(realm="local", id=str(uid), name=name, admin=admin, groups=groups)
        with self._lock:
            self._found[uid] = Found(made, self.clock())
        return made

    def named(self, name: str) -> Principal:
        """Return the user of that name: one of the host, or else of a Hub (``hub:NAME``).

        Raises
        ------
        UnknownUser
            Nobody of that name is known.
        """
        try:
            uid = pwd.getpwnam(name).pw_uid
        except (KeyError, ValueError):
            key = f"hub:{name.removeprefix('hub:')}"
            if self.told.get(key) is not None:
                return self.of(key)
            raise UnknownUser(
                f"This host knows no user {name[:64]!r}.", hint="Say the name of an account."
            ) from None
        return self.look_up(uid)

    def of(self, owner: str) -> Principal:
        """Return who owns something, by the key that is written on it: ``local:UID``, ``hub:NAME``.

        Groups of a Hub's user are known once they have called.
        """
        realm, _, number = owner.partition(":")
        if realm != "local" or not number.isdigit():
            groups = self.told.get(f"hub:{number}") or ()
            return Principal(realm="hub", id=number, name=number, groups=groups)
        uid = int(number)
        found = None if self.stale(uid) else self.known(uid)
        return found or self.look_up(uid)

    def learn(self, found: Principal) -> None:
        """Remember a user of a Hub, as the Hub says."""
        self.told.put(found.key, found.groups)

    def learn_groups(self, uid: int, groups: tuple[str, ...]) -> None:
        """Add the groups that a Hub has a local user in; those of the host stay the same."""
        self.told.put(f"local:{uid}", groups)

    def forget(self) -> None:
        """Look everybody up anew: the settings have changed."""
        with self._lock:
            self._found = {
                uid: Found(found.principal, float("-inf")) for uid, found in self._found.items()
            }


def _groups(name: str, gid: int) -> tuple[str, ...]:
    found = []
    for number in os.getgrouplist(name, gid):
        try:
            found.append(grp.getgrgid(number).gr_name)
        except KeyError:  # a group without a name
            found.append(str(number))
    return tuple(sorted(set(found)))
