"""What a host knows of its users (NSS: files, LDAP, SSSD). Any of it may wait for a network.

So it is asked in threads; and it must not keep the others from running, as ``os.getgrouplist`` does
for as long as a directory service takes: CPython holds its lock over that call. And a service that
fails must not look like one that knows nobody, as in ``pwd`` and ``grp``: a KeyError is either.
"""

from __future__ import annotations

import ctypes
import errno
import os
import pwd
from collections.abc import Callable

from msgspec import Struct

Entry = tuple[str, int]

_ROOM = 64
_ABSENT = (0, errno.ENOENT, errno.ESRCH, errno.EBADF, errno.EPERM)
"""What is returned where there is no such entry (getpwnam(3), ERRORS)."""


class _Passwd(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("password", ctypes.c_char_p),
        ("uid", ctypes.c_uint32),
        ("gid", ctypes.c_uint32),
        ("gecos", ctypes.c_char_p),
        ("home", ctypes.c_char_p),
        ("shell", ctypes.c_char_p),
    )


class _Group(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("password", ctypes.c_char_p),
        ("gid", ctypes.c_uint32),
        ("members", ctypes.c_void_p),
    )


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
    """Return the account of a uid; one without an account is called by its number, in no group.

    Raises
    ------
    OSError
        The host cannot say it at present.
    """
    entry = _entry(_LIBC.getpwuid_r, _Passwd, uid)
    if entry is None:
        return Account(str(uid), ())
    found = {_group_name(gid) for gid in group_ids(*entry)}
    return Account(entry[0], tuple(sorted(found)))


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
    entry = _entry(_LIBC.getgrgid_r, _Group, gid)
    return str(gid) if entry is None else entry[0]


def _entry(call: Callable[..., int], kind: type[_Passwd | _Group], number: int) -> Entry | None:
    """Return the name of an entry, and the group that is in it; ``None``: there is no such one."""
    room = 1024
    while True:
        entry, found = kind(), ctypes.c_void_p()
        texts = ctypes.create_string_buffer(room)  # where the names are
        pointers = ctypes.byref(entry), texts, ctypes.c_size_t(room), ctypes.byref(found)
        error = call(ctypes.c_uint32(number), *pointers)
        if error != errno.ERANGE:
            break
        room *= 2
    if found:
        return os.fsdecode(entry.name), entry.gid
    if error in _ABSENT:
        return None
    raise OSError(error, os.strerror(error))
