"""Groups that a Hub has told of its users, kept beside the ledger.

What somebody holds outlives the daemon, and what they may hold hangs on their groups: these have to
be known before the user calls for the first time again.
"""

from __future__ import annotations

import threading
from pathlib import Path

from genv_jupyter.broker.kept import Kept

Groups = tuple[str, ...]
MOST = 20_000
"""Users of whom something is kept; of the others nothing is known until they call."""


class KnownGroups:
    """The groups of each principal that a Hub has told, by its key (``hub:ann``).

    Parameters
    ----------
    path
        Where they are kept; ``None``: only in memory.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._kept = Kept(path, dict[str, Groups], "the groups of the Hub's users")
        self._groups = self._kept.read() or {}

    def get(self, key: str) -> Groups | None:
        """Return what was told last; ``None`` of somebody of whom nothing was."""
        return self._groups.get(key)

    def put(self, key: str, groups: Groups) -> None:
        """Take in what was told."""
        with self._lock:
            if self._groups.get(key) == groups:
                return
            kept = {it: found for it, found in self._groups.items() if it != key} | {key: groups}
            self._groups = dict(list(kept.items())[-MOST:])
            self._kept.write(self._groups)
