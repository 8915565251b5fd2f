"""The real devices. NVML is called in a child process, so that no hang or crash of it reaches us.

The child names the GPU it is about to touch. When it hangs or crashes there, it is replaced by one
that leaves this GPU out, so the others go on; a sick or lost GPU is tried again from time to time
by a second child, which takes over once it has everything open.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NoReturn

from genv_jupyter.devices import frames, trouble
from genv_jupyter.devices.child import Child, ChildEnded
from genv_jupyter.devices.known import Known, Round
from genv_jupyter.devices.source import DeviceSource, Inventory, ModeSet

COMMAND = (sys.executable, "-P", "-m", "genv_jupyter.devices.nvml_child")
LONGEST_BACK_OFF = 60.0
RETRY_SICK = (5.0, 600.0)
MOST_STUCK = 3
_SCRUBBED = ("CUDA_", "NVML_", "GENV_")


class _Given(Exception):
    """This reading ends here; the argument is the sentence that says why."""


def child_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the child's variables: none that makes the driver hide or rename devices."""
    return {name: value for name, value in environ.items() if not name.startswith(_SCRUBBED)}


class NvmlSource(DeviceSource):
    """Devices as NVML tells them. The child is started by the first reading.

    Parameters
    ----------
    deadline
        Seconds that ``read`` may take. A third of it without an answer is a hang, which
        leaves time to read the other GPUs.
    opening_deadline
        Seconds that the child may take to load the driver, and again to attach each GPU, which is
        slow where persistence mode is off; readings meanwhile say so.
    command
        What to run as the child.
    clock
        Seconds that only grow, for back-off and retries.
    """

    def __init__(
        self,
        *,
        deadline: float = 2.0,
        opening_deadline: float = 15.0,
        command: Sequence[str] = COMMAND,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._deadline = deadline
        self._patience = deadline / 3
        self._opening_deadline = opening_deadline
        self._command = command
        self._clock = clock
        self._lock = threading.Lock()
        self._known = Known()
        self._current: Child | None = None
        self._opening: Child | None = None
        self._round: Round | None = None
        self._opening_progress = self._progress = 0.0
        self._ending: list[Child] = []
        self._sick: dict[int, str] = {}
        self._last: tuple[int, ...] = ()
        self._failures = 0
        self._not_before = 0.0
        self._why: str | None = None
        self._retry_at: float | None = None
        self._retry_after = RETRY_SICK[0]
        self._closed = False
        self._details = False

    def read(self, *, details: bool = False) -> Inventory:
        """Read all devices; see ``DeviceSource.read``."""
        until = time.monotonic() + self._deadline
        if not self._lock.acquire(timeout=self._deadline):
            return self._known.stale(trouble.BUSY)
        self._details = details
        try:
            return self._read(until)
        except _Given as given:
            return self._known.stale(str(given))
        finally:
            self._lock.release()

    def set_compute_mode(self, uuid: str, mode: str, *, expected: str) -> ModeSet:
        """Set a compute mode; see ``DeviceSource.set_compute_mode``."""
        until = time.monotonic() + self._deadline
        if not self._lock.acquire(timeout=self._deadline):
            return ModeSet(None, trouble.BUSY)
        try:
            if self._closed:
                return ModeSet(None, trouble.CLOSED)
            child = self._ready(until)
            if self._round is not None:  # what it is about to tell comes first
                self._ask(child, until)
            if self._current is not child:
                return ModeSet(None, self._why or trouble.OPENING)
            child.send(frames.SetMode(uuid, expected, mode))
            return self._mode_told(child)
        except _Given as given:
            return ModeSet(None, str(given))
        finally:
            self._lock.release()

    def _mode_told(self, child: Child) -> ModeSet:
        """Wait for the answer; a child that gives none is given up, as in a reading."""
        until = time.monotonic() + self._patience
        try:
            while (message := child.receive(until)) is not None:
                if isinstance(message, frames.ModeTold):
                    return ModeSet(message.found, message.why)
            why = trouble.hanging(child.touching, self._patience)
        except ChildEnded as ended:
            why = trouble.crashed(child.touching, ended.returncode, ended.words)
        self._current = self._round = None
        self._end(child)
        if child.touching is not None:
            self._set_aside(child.touching, why)
        return ModeSet(None, why)

    def close(self) -> None:
        """End the child; later readings are the last one, of unknown health."""
        with self._lock:
            self._closed = True
            for child in (self._current, self._opening, *self._ending):
                if child is not None:
                    child.end(wait=1.0)
            self._current = self._opening = None
            self._ending.clear()

    def _read(self, until: float) -> Inventory:
        if self._closed:
            raise _Given(trouble.CLOSED)
        self._ending = [child for child in self._ending if not child.gone()]
        if self._current is not None:
            with suppress(_Given):  # a second child that fails must not end this reading
                if self._retry_due():
                    self._start()
                self._open(until=0.0)
        inventory = self._ask(self._ready(until), until)
        while self._current is None and time.monotonic() < until:
            try:  # a replacement reads what this one left, in this same reading
                inventory = self._ask(self._ready(until), until)
            except _Given:
                break
        return inventory

    def _ready(self, until: float) -> Child:
        """Return a child that has the driver open."""
        if self._current is None:
            self._start()
            self._open(until)
        if self._current is None:
            raise _Given(self._why or trouble.OPENING)
        return self._current

    # ---- a child is opened ----

    def _start(self) -> None:
        if self._opening is not None:
            return
        if self._current is None and self._clock() < self._not_before:
            raise _Given(self._why or trouble.OPENING)
        if len(self._ending) >= MOST_STUCK:
            raise _Given(trouble.stuck([child.pid for child in self._ending]))
        try:
            child = Child(self._command, child_environ(os.environ))
        except OSError as error:
            self._back_off(trouble.not_started(error))
        self._opening, self._opening_progress = child, time.monotonic()
        # A second child tries the sick ones again; a replacement leaves them out.
        child.send(frames.Open(() if self._current is not None else tuple(self._sick)))

    def _open(self, until: float) -> None:
        """Let the opening child take over if it is ready before ``until``."""
        child = self._opening
        if child is None:
            return
        try:
            while not isinstance(message := child.receive(until), frames.Opened):
                if isinstance(message, frames.Failed):
                    self._end_opening()
                    self._back_off(message.trouble)
                if message is None:
                    self._check_progress(child)
                    return
                self._opening_progress = time.monotonic()
        except ChildEnded as ended:
            self._opening_failed(trouble.crashed(child.touching, ended.returncode, ended.words))
        self._take_over(child, message)

    def _check_progress(self, child: Child) -> None:
        if time.monotonic() - self._opening_progress >= self._opening_deadline:
            self._opening_failed(trouble.hanging(child.touching, self._opening_deadline))

    def _opening_failed(self, why: str) -> NoReturn:
        touching = self._end_opening()
        if touching is None:
            self._back_off(why)
        self._set_aside(touching, why)
        raise _Given(why)

    def _end_opening(self) -> int | None:
        """End the opening child, and return which GPU it was about."""
        child, self._opening = self._opening, None
        if child is None:
            return None
        self._end(child)
        return child.touching

    def _take_over(self, child: Child, opened: frames.Opened) -> None:
        if self._current is not None:
            self._end(self._current)
        self._current, self._opening, self._round = child, None, None
        if not self._known.opened(opened.count):
            self._sick.clear()
            if child.skipped:  # places mean other GPUs now: perhaps it left out a healthy one
                self._end(child)
                self._current = None
                raise _Given(trouble.OPENING)
        self._last = tuple(index for index in self._sick if index not in child.skipped)
        for index in self._last:
            del self._sick[index]

    # ---- a child is asked ----

    def _ask(self, child: Child, until: float) -> Inventory:
        """Read all devices, or go on with a round that an earlier reading had no time for."""
        try:
            while True:
                new = self._round or self._begin(child)
                message = child.receive(min(until, self._progress + self._patience))
                if message is None:
                    if time.monotonic() < self._progress + self._patience:
                        raise _Given(trouble.SLOW)
                    return self._lose(child, new, trouble.hanging(child.touching, self._patience))
                self._progress = time.monotonic()
                if isinstance(message, frames.Told):
                    new.told[message.index] = message
                elif isinstance(message, frames.Done):
                    self._round = None
                    if new.began > self._progress - 2 * self._deadline:
                        break
        except ChildEnded as ended:
            why = trouble.crashed(child.touching, ended.returncode, ended.words)
            return self._lose(child, self._round or new, why)
        new.complete = not self._sick
        self._failures = 0
        self._last = ()
        self._why = None
        return self._finish(new, next(iter(self._sick.values()), None))

    def _begin(self, child: Child) -> Round:
        opened = child.opened
        assert opened is not None, "a child becomes current by opening the driver"
        child.send(frames.Ask(self._last, self._details))
        began = self._progress = time.monotonic()
        self._round = Round(opened.count, opened.driver_version, began, opened.cuda_version)
        return self._round

    def _lose(self, child: Child, new: Round, why: str) -> Inventory:
        """Give up the current child: the next may start at once, unless this comes repeatedly."""
        self._current = self._round = None
        self._end(child)
        if child.touching is not None:
            self._set_aside(child.touching, why)
        elif self._failures:
            self._wait(why)
        else:
            self._failures = 1
        return self._finish(new, why)

    def _finish(self, new: Round, why: str | None) -> Inventory:
        inventory = self._known.combine(new, why)
        faulty = any(told.fault is not None for told in new.told.values())
        if not self._sick and not self._known.any_lost and not faulty:
            self._retry_at = None
            self._retry_after = RETRY_SICK[0]
        elif self._retry_at is None:
            self._retry_at = self._clock() + self._retry_after
        return inventory

    # ---- what is sick, and when it is tried again ----

    def _retry_due(self) -> bool:
        if self._retry_at is None or self._clock() < self._retry_at:
            return False
        self._retry_after = min(2 * self._retry_after, RETRY_SICK[1])
        self._retry_at = self._clock() + self._retry_after
        return self._opening is None

    def _set_aside(self, index: int, why: str) -> None:
        self._sick[index] = why
        self._why = why
        if self._retry_at is None:
            self._retry_at = self._clock() + self._retry_after

    def _back_off(self, why: str) -> NoReturn:
        self._wait(why)
        raise _Given(why)

    def _wait(self, why: str) -> None:
        if self._current is not None:
            return  # only the second child failed: the first goes on
        self._why = why
        self._not_before = self._clock() + min(2.0**self._failures, LONGEST_BACK_OFF)
        self._failures += 1

    def _end(self, child: Child) -> None:
        child.end()
        self._ending.append(child)
