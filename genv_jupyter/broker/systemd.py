"""What systemd wants to hear, and the sockets it hands over (``man sd_notify``, ``sd_listen_fds``).

Without systemd around the process every call does nothing.
"""

from __future__ import annotations

import os
import socket
import time

FIRST_DESCRIPTOR = 3


def notify(*lines: str) -> bool:
    """Tell systemd something, such as ``READY=1``; say whether somebody was there to hear it."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address or address[0] not in "/@":
        return False
    if address[0] == "@":
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.sendto("\n".join(lines).encode(), address)
    except OSError:  # a service must not fail because nobody listens to how it is
        return False
    return True


def reloading() -> bool:
    """Say that the configuration is being read anew; ``READY=1`` follows."""
    microseconds = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    return notify("RELOADING=1", f"MONOTONIC_USEC={microseconds}")


def watchdog_seconds() -> float | None:
    """Return within how many seconds ``WATCHDOG=1`` is wanted again and again."""
    microseconds = os.environ.get("WATCHDOG_USEC", "")
    wanted = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    return int(microseconds) / 1e6 if wanted and microseconds.isdigit() else None


def handed_over() -> socket.socket | None:
    """Return the listening socket that systemd opened for this process, if it did."""
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return None
    count = os.environ.get("LISTEN_FDS", "")
    for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"):
        os.environ.pop(name, None)  # it is not our children's
    if not count.isdigit() or int(count) < 1:
        return None
    os.set_inheritable(FIRST_DESCRIPTOR, False)
    sock = socket.socket(fileno=FIRST_DESCRIPTOR)
    sock.setblocking(False)
    return sock
