"""What a host knows of its users (NSS: files, LDAP, SSSD). Any of it may wait for a network.

So it is asked in threads; and it must not keep the others from running, as ``os.getgrouplist`` does
for as long as a directory service takes: CPython holds its lock over that call.
"""

from __future__ import annotations

import ctypes
import grp
import os
import pwd

from msgspec import Struct

_ROOM = 64
_LIBC = ctypes.CDLL(None)
_LIBC.getgrouplist.argtypes = (
    ctypes.c_char_p,
    ctypes.c_uint32,
    ctypes.POINTER(ctypes.c_uint32),
    ctypes.POINTER(ctypes.c_int),
)


class Account(Struct, frozen=True):
    """The name of a user and the names of their groups, in order."""

    name: str
    groups: tuple[str, ...]


def of_uid(uid: int) -> Account:
    """Return the account of a uid; one without an account is called by its number, in no group."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return Account(str(uid), ())
    found = {_group_name(gid) for gid in group_ids(entry.pw_name, entry.pw_gid)}
    return Account(entry.pw_name, tuple(sorted(found)))


def named(name: str) -> pwd.struct_passwd | None:
    """Return the account that is found by a name; a directory service may have it otherwise."""
    try:
        return pwd.getpwnam(name)
    except (KeyError, ValueError):
        return None


def group_ids(name: str, gid: int) -> list[int]:
    """Return the groups of a user by their numbers, ``gid`` among them."""
    room = _ROOM
    while True:
        found, count = (ctypes.c_uint32 * room)(), ctypes.c_int(room)
        if _LIBC.getgrouplist(os.fsencode(name), gid, found, ctypes.byref(count)) >= 0:
            return list(found[: count.value])
        room = max(2 * room, count.value)


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:  # a group without a name
        return str(gid)
