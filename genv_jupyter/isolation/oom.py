"""Whether the host has ended a process because its memory (not the GPU's) ran out.

Linux counts that for each control group, and for the whole host in ``/proc/vmstat``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")
_COUNT = "oom_kill"


def files(pid: int, *, proc: Path = PROC, cgroups: Path = CGROUPS) -> tuple[Path, ...]:
    """Return where the counters of a process's group stand: they outlive it."""
    try:
        text = (proc / str(pid) / "cgroup").read_text(errors="replace")
    except OSError:
        return ()
    return _counters(text, cgroups)


def killed_on_host(*, proc: Path = PROC) -> int | None:
    """Return how many processes Linux has killed for want of memory since it was booted."""
    return _read(proc / "vmstat")


def killed_in_group(paths: tuple[Path, ...]) -> int | None:
    """Return how many it has killed in the group of a process, which may be gone."""
    found = (_read(path) for path in paths)
    return next((count for count in found if count is not None), None)


@lru_cache(maxsize=1024)
def _counters(text: str, cgroups: Path) -> tuple[Path, ...]:
    """Return the files of the groups that ``/proc/PID/cgroup`` names: many processes share them."""
    return tuple(_files(text.splitlines(), cgroups))


def _files(lines: Iterable[str], cgroups: Path) -> Iterator[Path]:
    for line in lines:
        number, controllers, path = line.split(":", 2)
        inside = path.lstrip("/")
        if number == "0" and not controllers:  # version 2
            yield cgroups / inside / "memory.events"
            yield cgroups / "unified" / inside / "memory.events"
        elif "memory" in controllers.split(","):
            yield cgroups / "memory" / inside / "memory.oom_control"


def _read(path: Path) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition(" ")
        if name == _COUNT and value.strip().isdigit():
            return int(value)
    return None
