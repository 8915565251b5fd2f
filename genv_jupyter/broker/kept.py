"""Small files beside the ledger: what a Hub has told, from one life of the daemon to the next."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")
log = logging.getLogger("genv_jupyter.broker")


class Kept(Generic[T]):
    """A value in a JSON file, written whole or not at all; what fails is told in the log.

    Parameters
    ----------
    path
        Where; ``None``: nowhere.
    kind
        The type of the value.
    what
        What it is, in the plural, for the log.
    """

    def __init__(self, path: Path | None, kind: type[T], what: str) -> None:
        self.path, self.kind, self.what = path, kind, what

    def read(self) -> T | None:
        """Return what was written last, if anything was and can be read."""
        if self.path is None:
            return None
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=self.kind)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("%s are not known yet: %s", self.what, error)
            return None

    def write(self, value: T) -> None:
        """Write a value in place of the last one; it is known until the daemon ends, at least."""
        if self.path is None:
            return
        new = self.path.with_suffix(".new")
        try:
            new.write_bytes(msgspec.json.encode(value))
            new.replace(self.path)
        except OSError as error:
            log.warning("%s cannot be kept: %s", self.what, error)
