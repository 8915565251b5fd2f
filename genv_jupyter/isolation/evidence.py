"""What proves, right before a signal, that a process is the one that is meant.

The driver names processes by pid, in containers perhaps by the host's: a process here that happens
to have that pid would be blamed. So a process that is to be ended must have CUDA itself.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from genv_jupyter.isolation import patient, processes

_MOST_MAPS = 16 * 2**20
"""Bytes: 65530 mappings, the most that Linux allows by default, and long paths."""

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
