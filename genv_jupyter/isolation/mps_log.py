"""What MPS servers and their daemon write: of fatal errors, and of clients that have to wait.

The lines are those of NVIDIA's own programs of driver 535. Of a fatal error they are the only word
there is where the daemon has no ``get_server_status``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

Open = Callable[[], BinaryIO]

SIGNS = (
    "Server is handling a fatal GPU error.",
    "encountered a fatal GPU error.",
    "Server encountered a fatal exception. Shutting down",
)
"""Of these the first two are the server's, the last is its daemon's."""

PENDING = "push client to pending list"
"""How a daemon ends its line of a new client that does not get a server yet."""

MOST = 64 * 2**10
"""Bytes of news that are read at once; of more, only the end."""

_LINE = re.compile(r"\[[^]]*\] (.*)")


class LogReader:
    """Reads on in a log where it stopped the last time.

    Parameters
    ----------
    log
        The log, which need not be there: where it is, or what opens it.
    old
        Whether what is there already is news.
    """

    def __init__(self, log: Path | Open, *, old: bool = False) -> None:
        self._open = log if callable(log) else lambda: open_log(log)
        self._at = 0
        self._file: tuple[int, int] | None = None
        if not old:
            self.news()

    def news(self) -> list[str]:
        """Return the lines that came since the last call, without their time stamps."""
        try:
            with self._open() as log:
                found = os.fstat(log.fileno())
                if (found.st_dev, found.st_ino) != self._file or found.st_size < self._at:
                    self._file, self._at = (found.st_dev, found.st_ino), 0
                if found.st_size == self._at:
                    return []
                start = max(self._at, found.st_size - MOST)
                log.seek(start)
                text = log.read(MOST)
        except OSError:  # there is none yet, or no more
            return []
        whole = text.rfind(b"\n") + 1  # a line that is being written is read when it is whole
        self._at = start + whole
        lines = text[:whole].decode(errors="replace").splitlines()
        return [match[1] if (match := _LINE.match(line)) else line for line in lines]


def fault_in(lines: list[str]) -> str | None:
    """Return the line that tells of a fatal error, if there is one."""
    return next((line for line in lines if any(sign in line for sign in SIGNS)), None)


def is_pending(log: Path | Open, pid: int) -> bool:
    """Say whether the last that a daemon's log tells of a client is that it has to wait."""
    told = [it for it in LogReader(log, old=True).news() if it.startswith(f"NEW CLIENT {pid} ")]
    return bool(told) and PENDING in told[-1]


def open_log(path: Path) -> BinaryIO:
    """Open a log, which may be another user's: no link, and nothing that waits."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    return os.fdopen(descriptor, "rb")
