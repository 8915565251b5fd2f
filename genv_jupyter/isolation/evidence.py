"""What proves, right before a signal, that a process is the one that is meant.

The driver names processes by pid, in containers perhaps by the host's: a process here that happens
to have that pid would be blamed. So a process that is to be ended must have CUDA itself.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from genv_jupyter.isolation import patient, processes

_MOST_MAPS = 16 * 2**20
"""Bytes: 65530 mappings, the most that Linux allows by default, and long paths."""

DRIVER = ("nvidia-", "nv-", "dcgm")
"""How the names of the driver's own programs begin: MPS, persistence, DCGM, nvidia-smi."""

_DELETED = " (deleted)"
_CUDA = (b"libcuda.so", b"/dev/nvidia", b"/dev/dxg")


def uids(pid: int) -> tuple[int, ...] | None:
    """Return the real, effective, saved and file-system uid of a process."""
    try:
        lines = Path(f"/proc/{pid}/status").read_bytes().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(b"Uid:"):
            return tuple(int(part) for part in line.split()[1:])
    return None


def runs_cuda(pid: int, read: processes.Read = patient.read) -> bool:
    """Say whether the driver's library or a device of it is mapped in a process."""
    maps = read(f"/proc/{pid}/maps", _MOST_MAPS) or b""
    return any(name in maps for name in _CUDA)


def claims(pid: int) -> bool:
    """Say whether a process carries the name of an environment, or may: it cannot be read."""
    found = processes.variables(pid, (processes.MARKER,), patient.read)
    return found is None or found[processes.MARKER] is not None


def of_driver(pid: int) -> bool:
    """Say whether a process runs one of the driver's own programs: root's file of such a name."""
    return (roots_program(pid) or "").startswith(DRIVER)


def roots_program(pid: int) -> str | None:
    """Return the name of the program that a process runs, where root alone can have put it there.

    ``None`` for any other, and where it cannot be read. A process calls itself what it likes, and
    in a mount namespace of its own any file has any name: here, too, the path must lead to that
    file. One that was replaced while it ran, which no mount can bring about, is taken at its word.
    """
    link = Path(f"/proc/{pid}/exe")
    try:
        path = link.readlink()
        if path.name.endswith(_DELETED):
            found = link.stat()
            gone = found.st_nlink == 0 and _roots_alone(found)
            return path.name.removesuffix(_DELETED) if gone else None
        for each in (*reversed(path.parents), path):  # so that nobody's file system is waited for
            found = each.lstat()
            if not _roots_alone(found):
                return None
        return path.name if os.path.samestat(found, link.stat()) else None
    except OSError:
        return None


def _roots_alone(found: os.stat_result) -> bool:
    sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
    writable = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not sticky
    return found.st_uid == 0 and not writable and not stat.S_ISLNK(found.st_mode)


def has_open(pid: int, beginnings: tuple[str, ...]) -> bool:
    """Say whether a process has a file open whose path begins so, or may: it cannot be read."""
    try:
        with os.scandir(f"/proc/{pid}/fd") as descriptors:
            for descriptor in descriptors:
                with suppress(FileNotFoundError):  # closed in this very moment
                    path = os.readlink(descriptor.path)  # noqa: PTH115 (of many)
                    if path.startswith(beginnings):
                        return True
    except OSError:
        return True
    return False
