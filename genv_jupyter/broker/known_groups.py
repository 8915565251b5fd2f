"""Groups that a Hub has told of its users, kept beside the ledger.

What somebody holds outlives the daemon, and what they may hold hangs on their groups: these have to
be known before the user calls for the first time again.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import msgspec

Groups = tuple[str, ...]
log = logging.getLogger("genv_jupyter.broker")
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
        self._groups: dict[str, Groups] = {}
        if path is not None:
            try:
                self._groups = msgspec.json.decode(path.read_bytes(), type=dict[str, Groups])
            except FileNotFoundError:
                pass
            except (OSError, msgspec.MsgspecError) as error:
                log.warning("the groups of the Hub's users are not known yet: %s", error)

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
            self._write()

    def _write(self) -> None:
        if self.path is None:
            return
        new = self.path.with_suffix(".new")
        try:
            new.write_bytes(msgspec.json.encode(self._groups))
            new.replace(self.path)
        except OSError as error:  # known until the daemon ends, at least
            log.warning("the groups of the Hub's users cannot be kept: %s", error)
