"""Devices in compute mode exclusive process while one user shares them under MPS.

Nobody gets in beside the MPS server then. Only a daemon of root does that, where it is configured.
What the mode was is on disk before it is changed, so that whoever comes after a crash puts it back.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec import Struct

from genv_jupyter.broker.mps_settings import MpsDaemons
from genv_jupyter.broker.posts import post_of
from genv_jupyter.devices.source import ModeSet
from genv_jupyter.isolation.mps import Daemons, Post
from genv_jupyter.isolation.processes import boot_id
from genv_jupyter.ledger.rows import GrantRow
from genv_jupyter.slots import outsiders

if TYPE_CHECKING:
    from genv_jupyter.broker.core import Core

log = logging.getLogger(__name__)

EXCLUSIVE = "exclusive_process"
ORDINARY = "default"

APART = 30.0
"""Seconds after a failure until the next try."""


class SetMode(Protocol):
    """Sets a compute mode, unless it is another than is expected."""

    def __call__(self, uuid: str, mode: str, *, expected: str) -> ModeSet: ...


class _Kept(Struct, forbid_unknown_fields=True):
    """What is on disk: modes as they were, by device. A reboot sets them all back."""

    boot: str
    modes: dict[str, str]


class ComputeModes:
    """Changes compute modes, and puts them back.

    Nothing that may take long is called with the broker's lock held.

    Parameters
    ----------
    lock
        The broker's.
    path
        A file in a directory of the broker's own, in which what is changed outlives it.
    set_mode
        What sets a mode, where it is not the devices' source: ``DeviceSource.set_compute_mode``.
    """

    def __init__(
        self,
        core: Core,
        lock: threading.RLock,
        daemons: Daemons,
        path: Path,
        set_mode: SetMode | None = None,
    ) -> None:
        self.core = core
        self.daemons = daemons
        self.path = path
        self._set_mode = set_mode or core.source.set_compute_mode
        self._broker = lock
        self._lock = threading.Lock()
        self._was = self._load()
        self._sure: set[str] = set()
        """Devices whose mode this broker has set, or has found set."""
        self._left: set[str] = set()
        """Devices whose mode somebody else has changed, until MPS has gone from there."""
        self._again: dict[str, float] = {}
        self._said: dict[str, str] = {}
        self._closed = False

    # -- asked under the broker's lock ------------------------------------------------------------

    @property
    def wanted(self) -> bool:
        """Whether it is configured."""
        return self.core.config.of(MpsDaemons).exclusive_mode and self.daemons.ours

    def holds(self, devices: Iterable[str]) -> bool:
        """Say whether the mode of one of these devices is changed."""
        return any(device in self._was for device in devices)

    def mode(self, device: str, read: str | None) -> str | None:
        """Return the mode that a device has without us."""
        return self._was.get(device, read)

    def mark(self) -> None:
        """Note on every slot whose processes alone get in there."""
        wanted = self.wanted
        for uuid, slot in self.core.books.slots.items():
            grants = self.core.books.on_device[uuid] if wanted else {}
            owners = {grant.owner if self._post(grant) else None for grant in grants.values()}
            slot.only = owners.pop() if len(owners) == 1 else None

    def _post(self, grant: GrantRow) -> Post | None:
        """Return which daemon serves a grant, or will in a moment."""
        need = self.core.mps.preparing.get(grant.environment)
        return (
            need.post if need is not None and need.post.device == grant.device else post_of(grant)
        )

    def _wants(self, device: str) -> bool:
        """Say whether nobody but one user's processes under MPS works on a device."""
        posts = set(self.daemons.running(device))
        slot = self.core.books.slots.get(device)
        if not self.wanted or slot is None or len(posts) != 1:
            return False
        grants = self.core.books.on_device[device].values()
        if not all(self._post(grant) in posts for grant in grants):
            return False
        return device in self._was or not (outsiders(slot, self.core.policy) or slot.users)

    # -- changes, without the broker's lock -------------------------------------------------------

    def round(self) -> None:
        """See that every mode is as it should be: once a second."""
        with self._broker:
            devices = {post.device for post in self.daemons.running()}
        self.settle(devices | set(self._was) | self._left | set(self._said))

    def settle(self, devices: Iterable[str]) -> None:
        """See that the modes of these devices are as they should be now."""
        for device in devices:
            with self._lock:
                if not self._closed:
                    self._settle(device)

    def close(self) -> None:
        """Put back everything; the next broker sets it again where that is needed."""
        with self._lock:
            self._closed = True
            for device in list(self._was):
                self._give_back(device)

    def _settle(self, device: str) -> None:
        with self._broker:
            wants = self._wants(device)
            usage = self.core.usage.get(device)
            read = None if usage is None else usage.reading.compute_mode
            now = self.core.steady()
        if not wants:
            self._left.discard(device)
        due = now >= self._again.get(device, 0.0)
        if wants and device in self._sure:
            if read not in (None, EXCLUSIVE) and due:
                self._look(device)
        elif wants and due and device not in self._left:
            self._take(device, self.mode(device, read))
        elif not wants and due and device in self._was:
            self._give_back(device)
        elif not wants and device not in self._was and read == ORDINARY:
            self._say(device, None)

    def _take(self, device: str, was: str | None) -> None:
        if was != ORDINARY:
            return  # unknown; or another one, in which MPS is not offered
        if device not in self._was and not self._keep({**self._was, device: was}):
            self._later(device, f"what it was cannot be written to {self.path}")
            return
        done = self._set(device, EXCLUSIVE, was)
        if done.trouble is not None:
            self._later(device, done.trouble)
        elif done.found in (was, EXCLUSIVE):
            log.info("%s: compute mode set to %s; it was %s", device, EXCLUSIVE, was)
            self._sure.add(device)
            self._again.pop(device, None)
            self._say(device, None)
        else:
            self._leave(device, done.found)

    def _look(self, device: str) -> None:
        """Ask the driver where a reading, which may be an old one, shows another mode."""
        done = self._set(device, EXCLUSIVE, EXCLUSIVE)
        if done.trouble is None and done.found != EXCLUSIVE:
            self._leave(device, done.found)

    def _give_back(self, device: str) -> None:
        was = self._was[device]
        done = self._set(device, was, EXCLUSIVE)
        if done.trouble is not None:
            self._sure.discard(device)
            self._later(device, done.trouble)
            return
        if done.found not in (EXCLUSIVE, was):
            self._leave(device, done.found)
        else:
            log.info("%s: compute mode is %s again", device, was)
            self._forget(device)
            self._say(device, None)

    def _set(self, device: str, mode: str, expected: str) -> ModeSet:
        done = self._set_mode(device, mode, expected=expected)
        with self._broker:
            self.core.outdate()  # whoever asks for devices next reads them anew
        return done

    def _leave(self, device: str, found: str | None) -> None:
        """Leave alone what somebody else has changed meanwhile."""
        self._forget(device)
        self._left.add(device)
        mode = str(found).replace("_", " ")
        self._say(
            device, f"somebody else has set its compute mode to {mode} meanwhile: that is left so."
        )

    def _forget(self, device: str) -> None:
        self._sure.discard(device)
        self._again.pop(device, None)
        rest = {name: was for name, was in self._was.items() if name != device}
        if not self._keep(rest):  # on disk it stays: at worst a mode is looked at once more
            log.warning("%s cannot be written", self.path)
        self._was = rest

    def _later(self, device: str, why: str) -> None:
        with self._broker:
            self._again[device] = self.core.steady() + APART
        self._say(device, f"its compute mode cannot be changed ({why.rstrip('.')}).")

    def _say(self, device: str, words: str | None) -> None:
        """Keep one notice about a device, or none."""
        with self._broker:
            old = self._said.pop(device, None)
            notices = self.core.notices
            slot = self.core.books.slots.get(device)
            label = device if slot is None else slot.label
            new = None if words is None else f"{label}: {words}"
            if new is not None:
                self._said[device] = new
            if old == new:
                return
            if old in notices:
                notices.remove(old)
            if new is not None:
                log.warning("%s", new)
                notices.append(new)

    # -- on disk ----------------------------------------------------------------------------------

    def _load(self) -> dict[str, str]:
        try:
            kept = msgspec.json.decode(self.path.read_bytes(), type=_Kept)
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as error:
            self.core.notices.append(
                f"What compute modes were cannot be read ({error}): they stay as they are now."
            )
            return {}
        return kept.modes if kept.boot == boot_id() else {}

    def _keep(self, modes: dict[str, str]) -> bool:
        """Write what is changed, and see that it is on the disk."""
        fresh = self.path.with_suffix(".new")
        try:
            with fresh.open("wb") as file:
                file.write(msgspec.json.encode(_Kept(boot_id(), modes)))
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self.path)
            directory = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        except OSError as error:
            log.warning("%s cannot be written: %s", self.path, error)
            return False
        self._was = modes
        return True
