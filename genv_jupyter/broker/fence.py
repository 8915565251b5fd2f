"""An attach from its first transaction to its second, with what it needs prepared in between.

The fence may take seconds (an MPS daemon is started): the broker's lock is not held for it. Others
are served meanwhile, and verbs on the same environment wait for their turn.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from genv_jupyter.broker import attach, failpoints, mps
from genv_jupyter.broker.attach import Attempt, Overtaken
from genv_jupyter.broker.core import Core
from genv_jupyter.broker.mps import Need
from genv_jupyter.broker.posts import uid_of
from genv_jupyter.errors import Conflict
from genv_jupyter.isolation.mps import Post
from genv_jupyter.ledger.rows import EnvironmentRow

TRIES = 3
"""Attempts of one attach whose environment is changed under it, by restarts of its kernel say."""

Begin = Callable[[], Attempt | None]


class Lanes:
    """One lane for each environment: who wants to change it waits there, and nobody else does.

    A lane is entered before the broker's lock is taken, never while it is held.
    """

    def __init__(self) -> None:
        self._lanes: dict[str, tuple[threading.Lock, list[None]]] = {}
        self._guard = threading.Lock()

    @contextmanager
    def of(self, environment: str) -> Iterator[None]:
        """Wait for one's turn, and have it."""
        with self._guard:
            lane, inside = self._lanes.setdefault(environment, (threading.Lock(), []))
            inside.append(None)
        try:
            with lane:
                yield
        finally:
            with self._guard:
                inside.pop()
                if not inside:
                    del self._lanes[environment]


def give(core: Core, lock: threading.RLock, environment: str, begin: Begin) -> EnvironmentRow:
    """Carry an attach through; called inside the environment's lane, without the lock.

    Parameters
    ----------
    begin
        Makes transaction 1, under the lock; again where the attempt was overtaken.

    Raises
    ------
    GpuError
        The request was refused; what was there before is there.
    """
    for _ in range(TRIES):
        with lock:
            attempt = begin()
            if attempt is None:
                return core.books.environments[environment]
            if not _needs_fence(core, attempt):
                return attach.finish(core, attempt)
            need = _need(attempt)
            if need is not None:
                core.mps.preparing[environment] = need
        try:
            return _fenced(core, lock, attempt, need)
        except Overtaken:
            continue
        finally:
            with lock:
                core.mps.preparing.pop(environment, None)
    raise Conflict(
        "This environment is being changed by somebody else all the time.",
        hint="Try again in a moment.",
    )


def _fenced(
    core: Core, lock: threading.RLock, attempt: Attempt, need: Need | None
) -> EnvironmentRow:
    try:
        failpoints.reach("before_fence")
        devices = [part.device for part in attempt.placed]
        modes = core.mps.modes
        if need is None or (modes is not None and modes.holds(devices)):
            mps.make_way(core, devices)
        if need is not None:
            demanded = attempt.demand.mps == "on" or core.policy.mps == "always"
            attempt.sharing = mps.prepare(core, need, demanded=demanded, running=attempt.running)
        failpoints.reach("after_fence")
    except BaseException:
        with lock:
            attach.give_up(core, attempt)
        raise
    with lock:
        row = attach.finish(core, attempt)
    if modes is not None:
        modes.settle(devices)
    return row


def _needs_fence(core: Core, attempt: Attempt) -> bool:
    if attempt.sharing.mps:
        return True
    daemons, modes = core.mps.daemons, core.mps.modes
    if modes is not None and modes.holds(part.device for part in attempt.placed):
        return True
    if daemons is None or not attempt.demand.exclusive:
        return False
    return any(daemons.running(part.device) for part in attempt.placed)


def _need(attempt: Attempt) -> Need | None:
    if not attempt.sharing.mps:
        return None
    (part,) = attempt.placed
    processes, uid = attempt.demand.processes, uid_of(attempt.row.owner)
    assert uid is not None, "planned only for users whose daemons can be run"
    return Need(Post(part.device, uid), part.memory // processes, processes)
