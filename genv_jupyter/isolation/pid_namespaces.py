"""Which process of ours a caller in another pid namespace means by a pid.

``/proc/PID/status`` says under which pid every namespace from ours downwards knows a process
(``NSpid``). Which namespace that is says the link ``/proc/PID/ns/pid``, but of another user's
process only to one that may trace it. Without that right its first process (pid 1) tells it: the
ancestors of whatever was born in a namespace lead to it. A process that was put into a namespace
from outside (``nsenter``, ``docker exec``) cannot be placed like this, and is not guessed.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from genv_jupyter.isolation import processes

_NS_GET_PARENT = 0xB702  # linux/nsfs.h
_FIELD = b"\nNSpid:"


def numbers(pid: int) -> tuple[int, ...]:
    """Return the pids of a process, in our namespace first and in its own last; ``()``: unknown."""
    if pid <= 0:  # of a namespace that we do not see
        return ()
    try:
        status = Path(f"/proc/{pid}/status").read_bytes()
    except OSError:  # it has ended, or is hidden from us
        return ()
    _, field, rest = status.partition(_FIELD)
    if not field:
        return (pid,)  # a Linux without pid namespaces
    return tuple(int(number) for number in rest.partition(b"\n")[0].split())


def contained(pid: int) -> bool:
    """Say whether a process is in a pid namespace below ours."""
    return len(numbers(pid)) > 1


def together(pid: int, other: int) -> bool:
    """Say whether a process is provably in the namespace below ours that another one is in."""
    level = len(numbers(other))
    return level > 1 and len(numbers(pid)) >= level and _shared(pid, other, level)


def ours(caller: int, uid: int | None, pid: int) -> int | None:
    """Return our pid of the process that a caller knows as ``pid``.

    Parameters
    ----------
    caller
        Our pid of the caller, as the kernel says it.
    uid
        Whose process it must be; ``None``: of whichever user of that namespace.
    pid
        A process in the caller's pid namespace, or in one below it.

    Returns
    -------
    int or None
        ``None`` where none of that uid is proved to be meant.
    """
    level = len(numbers(caller))
    if level < 2:
        return pid if level else None
    for candidate in _candidates(caller, uid):
        known = numbers(candidate)
        if len(known) >= level and known[level - 1] == pid and _shared(caller, candidate, level):
            return candidate
    return None


def _candidates(caller: int, uid: int | None) -> Iterator[int]:
    """Yield the processes of a uid; the caller, who is meant most often, is the first."""

    def fits(pid: int) -> bool:
        return uid is None or processes.uid_of(pid) == uid

    if fits(caller):
        yield caller
    for name in os.listdir("/proc"):  # noqa: PTH208 (thousands, at a report)
        if name.isdecimal() and int(name) != caller and fits(int(name)):
            yield int(name)


def _shared(one: int, other: int, level: int) -> bool:
    """Say whether two processes provably share the namespace so many levels down."""
    if one == other:
        return True
    for name in (_linked, _first_of):
        names = name(one, level), name(other, level)
        if None not in names:
            return names[0] == names[1]
    return False


def _linked(pid: int, level: int) -> int | None:
    """Return the inode of a process's namespace at a level; ``None`` where we may not look."""
    up = len(numbers(pid)) - level
    try:
        here = os.open(f"/proc/{pid}/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        for _ in range(up):
            parent = fcntl.ioctl(here, _NS_GET_PARENT)
            os.close(here)
            here = parent
        return os.fstat(here).st_ino
    except OSError:
        return None
    finally:
        os.close(here)


def _first_of(pid: int, level: int) -> tuple[int, int] | None:
    """Return the first process of a process's namespace at a level, if it was born in there."""
    for ancestor, start in processes.ancestors(pid):
        known = numbers(ancestor)
        if len(known) < level:
            return None
        if known[level - 1] == 1:
            return ancestor, start
    return None
