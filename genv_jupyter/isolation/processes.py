"""Processes as the product knows them: by pid *and* start ticks, never by pid alone.

A pid is re-used; the start time in clock ticks since boot (field 22 of ``/proc/PID/stat``) is not.
psutil's ``create_time`` moves with steps of the clock, so the ticks are read here.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from genv_jupyter.isolation import patient

MARKER = "GENV_JUPYTER_ENVIRONMENT"
Read = Callable[[str, int], bytes | None]
_GENERATIONS = 64
_MOST_VARIABLES = 4 * 2**20
_CGROUPS = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
_STAT = 4096
"""Bytes that ``/proc/PID/stat`` does not reach: a name of 64 at most, and 52 numbers."""
_TICKS = os.sysconf("SC_CLK_TCK")
_INITIAL_PID_NAMESPACE = 0xEFFFFFFC
_SO_PEERPIDFD = 77  # asm-generic/socket.h


class Stat(NamedTuple):
    """The part of ``/proc/PID/stat`` that tells one process from another."""

    parent: int
    start: int
    zombie: bool


def _beginning(path: str, most: int) -> bytes:
    """Read the beginning of a file of the kernel's, at once.

    ``open`` takes twice as long, and gives the interpreter away seven times instead of three.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, most)
    finally:
        os.close(descriptor)


def stat(pid: int) -> Stat | None:
    """Return parent, start ticks and whether it is a zombie; ``None`` when there is none.

    Raises
    ------
    OSError
        It cannot be known now (no descriptor is left, say): that is no proof of a death.
    """
    try:
        text = _beginning(f"/proc/{pid}/stat", _STAT)
    except (FileNotFoundError, ProcessLookupError, PermissionError):  # the last: hidepid
        return None
    # The command stands in parentheses and may hold any byte: count from the last one.
    fields = text[text.rindex(b")") + 2 :].split()
    # A first thread that has ended looks like a zombie while the others go on.
    ended = fields[0] == b"X" or (fields[0] == b"Z" and int(fields[17]) <= 1)
    return Stat(int(fields[1]), int(fields[19]), ended)


def start_of(pid: int) -> int | None:
    """Return the start ticks of a living process."""
    found = stat(pid)
    return None if found is None or found.zombie else found.start


def alive(pid: int, start: int | None) -> bool:
    """Say whether that very process still runs; a zombie does not."""
    now = start_of(pid)
    return now is not None and (start is None or now == start)


def send(pid: int, start: int | None, number: int) -> bool:
    """Signal that very process and no other; say whether it was there.

    The descriptor holds the process while its start is compared, so that no other can come to
    have its pid in between.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if start is None or start_of(pid) != start:
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def has_children(pid: int) -> bool:
    """Say whether a process has children now; where the kernel does not tell, that it may."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 (called at every release)
        for task in tasks:
            if _beginning(f"/proc/{pid}/task/{task}/children", 1):
                return True
    except OSError:
        return alive(pid, None)
    return False


def ancestors(pid: int) -> Iterator[tuple[int, int]]:
    """Yield (pid, start ticks) of the process itself, its parent, and so on."""
    for _ in range(_GENERATIONS):
        found = stat(pid)
        if found is None:
            return
        yield pid, found.start
        if found.parent <= 1:
            return
        pid = found.parent


def peer(sock: socket.socket) -> tuple[int, int, int]:
    """Return (pid, uid, gid) of the process at the other end of a Unix socket."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, gid = struct.unpack("3i", credentials)
    return pid, uid, gid


def peer_start(sock: socket.socket) -> int | None:
    """Return the start ticks of the process that has connected; ``None`` once it has ended.

    A connection outlives it in whoever has inherited it, and another process comes to have its pid.
    The kernel's descriptor of it tells them apart (Linux 6.5); before, whoever has the pid now is
    taken for it, so this is asked as early as can be.
    """
    start = start_of(peer(sock)[0])
    try:
        held = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError as error:
        return start if error.errno == errno.ENOPROTOOPT else None  # else: it has ended
    try:
        poll = select.poll()
        poll.register(held, select.POLLIN)
        return None if poll.poll(0) else start  # readable: ended
    finally:
        os.close(held)


def _environ(pid: int) -> str:
    return f"/proc/{pid}/environ"


def read(path: str, most: int) -> bytes | None:
    """Return the beginning of a file of ``/proc``, however long that takes."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 (Path.open costs twice)
            return file.read(most)
    except OSError:
        return None


def variable(pid: int, name: str) -> str | None:
    """Return a variable that a process was started with; ``None`` where that cannot be read."""
    found = variables(pid, (name,))
    return None if found is None else found[name]


def variables(pid: int, names: Iterable[str], read: Read = read) -> dict[str, str | None] | None:
    """Return some variables that a process was started with; ``None`` where it cannot be read.

    A process can have any amount of its memory shown as its variables: what is too long is not
    read. Whoever must not be held up by a process that hangs has it ``read`` by ``patient``.
    """
    block = read(_environ(pid), _MOST_VARIABLES)
    if block is None or len(block) == _MOST_VARIABLES:
        return None
    found: dict[str, str | None] = dict.fromkeys(names)
    for each in block.split(b"\0"):
        name, equals, value = each.partition(b"=")
        text = name.decode(errors="replace")
        if equals and found.get(text, "") is None:
            found[text] = value.decode(errors="replace")
    return found


def marker(pid: int) -> str | None:
    """Return the environment that a process carries in its variables: a claim, and no proof.

    ``None`` also where it hangs, so that they cannot be read now: ``hangs`` says so.
    """
    found = variables(pid, (MARKER,), patient.read)
    return None if found is None else found[MARKER]


def hangs(pid: int) -> bool:
    """Say whether the variables of a process were wanted and have not come yet."""
    return patient.waits_for(_environ(pid))


def command(pid: int) -> str | None:
    """Return the short name of a process."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return None


def uid_of(pid: int) -> int | None:
    """Return whose process it is; ``None`` where there is none, or it is hidden from us."""
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return None


def started_at(start: int) -> float:
    """Turn start ticks into seconds since the epoch, as the clock is set now."""
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return round(booted + start / _TICKS, 1)  # so that it is the same at every look


def age(start: int) -> float:
    """Return for how many seconds a process has run, from its start ticks."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - start / _TICKS


def cgroup(pid: int) -> str | None:
    """Return the cgroup (version 2) of a process: ``/user.slice/…``; ``None`` for the root."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text(errors="replace").splitlines()
    except OSError:
        return None
    path = next((line[3:] for line in lines if line.startswith("0::")), "/")
    return None if path == "/" else path


def members(group: str) -> list[int] | None:
    """Return the processes in a cgroup (version 2); ``None`` where that cannot be known."""
    for top in _CGROUPS:
        try:
            listed = Path(f"{top}{group}/cgroup.procs").read_text().split()
        except OSError:
            continue
        return [int(pid) for pid in listed]
    return None


def in_initial_namespace() -> bool:
    """Say whether every process of the host can be seen here, by the pid that the driver says."""
    return pid_namespace() == f"pid{_INITIAL_PID_NAMESPACE}"


def pid_namespace() -> str:
    """Name the pid namespace: pids mean something only within one."""
    return str(Path("/proc/self/ns/pid").readlink()).translate(str.maketrans("", "", ":[]"))


def boot_id() -> str:
    """Name this boot of the host: no live grant outlives it."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
