"""What systemd wants to hear, and the sockets it hands over (``man sd_notify``, ``sd_listen_fds``).

Without systemd around the process every call does nothing.
"""

from __future__ import annotations

import os
import socket
import time

from genv_jupyter.rootd.relay import VARIABLE, tell

FIRST_DESCRIPTOR = 3


def notify(*lines: str) -> bool:
    """Tell systemd something, such as ``READY=1``; say whether somebody was there to hear it."""
    message, relay = "\n".join(lines).encode(), os.environ.get(VARIABLE)
    if relay is not None:  # our parent's, which systemd believes
        try:
            with socket.socket(fileno=os.dup(int(relay))) as sock:
                sock.send(message)
        except OSError:
            return False
        return True
    return tell(message, os.environ.get("NOTIFY_SOCKET", ""))


def reloading() -> bool:
    """Say that the configuration is being read anew; ``READY=1`` follows."""
    microseconds = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    return notify("RELOADING=1", f"MONOTONIC_USEC={microseconds}")


def watchdog_seconds() -> float | None:
    """Return within how many seconds ``WATCHDOG=1`` is wanted again and again."""
    microseconds = os.environ.get("WATCHDOG_USEC", "")
    wanted = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    return int(microseconds) / 1e6 if wanted and microseconds.isdigit() else None


def handed_over() -> dict[str, socket.socket]:
    """Return the listening sockets that systemd opened for this process, by their names.

    A name is the ``FileDescriptorName=`` of a socket unit, or that of the unit itself.
    """
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return {}
    count, names = os.environ.get("LISTEN_FDS", ""), os.environ.get("LISTEN_FDNAMES", "").split(":")
    for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"):
        os.environ.pop(name, None)  # it is not our children's
    found = {}
    for index in range(int(count) if count.isdigit() else 0):
        descriptor = FIRST_DESCRIPTOR + index
        os.set_inheritable(descriptor, False)
        sock = socket.socket(fileno=descriptor)
        sock.setblocking(False)
        found[names[index] if index < len(names) else ""] = sock
    return found
