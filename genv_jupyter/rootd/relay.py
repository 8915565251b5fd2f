"""What the broker tells systemd, passed on by root: systemd believes the unit's main process alone.

Other processes of the unit are users': the front ends of their MPS daemons, for a moment.
"""

from __future__ import annotations

import fcntl
import os
import re
import socket

VARIABLE = "GENV_JUPYTER_NOTIFY"
"""Holds the broker's descriptor, in the place of ``NOTIFY_SOCKET``."""
_LONGEST = 512
_AT_ONCE = 16
_SECONDS = 5.0
_LINE = re.compile(
    rb"READY=1|RELOADING=1|STOPPING=1|WATCHDOG=1|MONOTONIC_USEC=[0-9]{1,20}|STATUS=[ -~]{0,200}"
)


class Relay:
    """A line from the broker to systemd, for what a service says of itself and nothing else."""

    def __init__(self) -> None:
        self.address = os.environ.get("NOTIFY_SOCKET", "")
        self.ours, self.brokers = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        # SIGIO, which whoever waits for signals waits for too, says that something has come.
        fcntl.fcntl(self.ours, fcntl.F_SETOWN, os.getpid())
        flags = fcntl.fcntl(self.ours, fcntl.F_GETFL)
        fcntl.fcntl(self.ours, fcntl.F_SETFL, flags | os.O_ASYNC | os.O_NONBLOCK)

    def hand_over(self) -> None:
        """Give the broker, whose process this is about to be, its end."""
        for name in ("NOTIFY_SOCKET", VARIABLE):
            os.environ.pop(name, None)
        if self.address:
            os.set_inheritable(self.brokers.fileno(), True)
            os.environ[VARIABLE] = str(self.brokers.fileno())

    def pass_on(self) -> bool:
        """Pass on what has come; say whether there may be more."""
        for _ in range(_AT_ONCE):
            try:
                data = self.ours.recv(_LONGEST)
            except OSError:  # nothing, or nobody is there any more
                return False
            if all(map(_LINE.fullmatch, data.split(b"\n"))):
                tell(data, self.address, _SECONDS)
        return True


def tell(message: bytes, address: str, seconds: float | None = None) -> bool:
    """Send systemd a message, within so many seconds; say whether somebody was there to hear it."""
    if not address or address[0] not in "/@":
        return False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.settimeout(seconds)
            sock.sendto(message, f"\0{address[1:]}" if address[0] == "@" else address)
    except OSError:  # a service must not fail because nobody listens to how it is
        return False
    return True
