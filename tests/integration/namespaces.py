"""Pid namespaces for tests: callers that were born in one, and that came into one from outside."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from tests.integration.daemons import User, as_user, unprivileged

T = TypeVar("T")
_NEW_PID, _NEW_MOUNTS = 0x20000000, 0x00020000  # linux/sched.h
_PRIVATE = 1 << 14 | 1 << 18  # MS_REC | MS_PRIVATE
_libc = ctypes.CDLL(None, use_errno=True)
HOST = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
"""The host's ``/proc``, for callers that see another one."""


def need_namespaces() -> None:
    """Skip where pid namespaces cannot be made."""
    try:
        tried = subprocess.run(
            ["unshare", "--pid", "--fork", "--mount-proc", "true"],
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        pytest.skip("NOT TESTED: callers in containers; unshare (util-linux) is not there")
    if tried.returncode:
        pytest.skip(f"NOT TESTED: callers in containers; {tried.stderr.strip()}")


def host_pid() -> int:
    """Return the pid that the host knows the calling process by."""
    return int(os.readlink("self", dir_fd=HOST))


def host_numbers(pid: int) -> tuple[int, ...]:
    """Return all pids of a process, by the one that the host knows."""
    with os.fdopen(os.open(f"{pid}/status", os.O_RDONLY, dir_fd=HOST)) as status:
        line = next(it for it in status if it.startswith("NSpid:"))
    return tuple(int(number) for number in line.split()[1:])


def born(
    user: User,
    call: Callable[[], T],
    *,
    pid: int | None = None,
    first: Callable[[], None] = lambda: None,
) -> T:
    """Run something as a user in a namespace of its own, whose pid 1 is root's.

    ``first`` is what pid 1 does before; ``pid`` is the one that the caller gets in there.
    """

    def make() -> T:
        _checked(_libc.unshare(_NEW_PID | _NEW_MOUNTS))
        _checked(_libc.mount(b"none", b"/", None, _PRIVATE, None))
        return as_user(None, begin)

    def begin() -> T:
        assert os.getpid() == 1
        _checked(_libc.mount(b"proc", b"/proc", b"proc", 0, None))
        first()
        if pid is not None:
            Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
        return as_user(user, call)

    return as_user(None, make)


def entered(user: User, inside: int, call: Callable[[], T]) -> T:
    """Run something as a user in the namespaces of a process, coming from outside."""

    def enter() -> T:
        for name in ("pid", "mnt"):
            descriptor = os.open(f"/proc/{inside}/ns/{name}", os.O_RDONLY)
            _checked(_libc.setns(descriptor, 0))
            os.close(descriptor)
        return as_user(user, call)

    return as_user(None, enter)


def sandbox(user: User, *command: str) -> subprocess.Popen[bytes]:
    """Start a command of a user as pid 1 of a namespace; whoever starts it ends ``first_in``."""
    wrapped = ["unshare", "--pid", "--fork", "--mount-proc"]
    process = subprocess.Popen(
        [*wrapped, *unprivileged(user), *command], stdout=subprocess.PIPE, stderr=sys.stderr
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def first_in(process: subprocess.Popen[bytes]) -> int | None:
    """Return our pid of pid 1 of a sandbox; of another process, that of its child if any."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(children[0]) if children else None


def _checked(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
