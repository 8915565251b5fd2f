"""What proves, right before a signal, that a process is the one that is meant.

The driver names processes by pid, in containers perhaps by the host's: a process here that happens
to have that pid would be blamed. So a process that is to be ended must have CUDA itself.
"""

from __future__ import annotations

from pathlib import Path

from genv_jupyter.isolation import processes

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


def runs_cuda(pid: int) -> bool:
    """Say whether the driver's library or a device of it is mapped in a process."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_bytes()
    except OSError:
        return False
    return any(name in maps for name in _CUDA)


def claims(pid: int) -> bool:
    """Say whether a process carries the name of an environment, or may: it cannot be read."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return True
    return any(it.startswith(f"{processes.MARKER}=".encode()) for it in variables)
