"""What the broker knows of MPS: who needs a daemon, what is being prepared, what was seen."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from genv_jupyter import slots
from genv_jupyter.broker import faults
from genv_jupyter.broker.faults import Faults
from genv_jupyter.broker.mps_clients import Unlisted
from genv_jupyter.broker.posts import post_of, uid_of
from genv_jupyter.broker.witness import Verdict, Witness
from genv_jupyter.demand import Demand
from genv_jupyter.errors import Unavailable
from genv_jupyter.isolation.environ import MpsClient
from genv_jupyter.isolation.mps import Daemons, Post
from genv_jupyter.isolation.mps_control import MpsError
from genv_jupyter.ledger.rows import EnvironmentRow, GrantRow
from genv_jupyter.placement import Placed
from genv_jupyter.sharing import Facts, Sharing, check_clients, sharing_of

if TYPE_CHECKING:
    from genv_jupyter.broker.compute_modes import ComputeModes
    from genv_jupyter.broker.core import Core

log = logging.getLogger(__name__)

NOT_RUN = "MPS is not run by this broker."
NOT_INSTALLED = (
    "MPS is not installed on this host: nvidia-cuda-mps-control was not found in the broker's PATH."
)


class Need(NamedTuple):
    """What an attach on its way needs of a daemon: the cap of each process, and how many."""

    post: Post
    cap: int
    processes: int


class Mps:
    """The MPS daemons of a broker, and what is known only while it runs.

    Attributes
    ----------
    preparing
        By environment: what the daemons are being prepared for, so that they are not ended, and
        nobody is promised the same place.
    """

    def __init__(self, daemons: Daemons | None = None) -> None:
        self.daemons = daemons
        self.witness = None if daemons is None else Witness(daemons)
        self.faults = None if self.witness is None else Faults(self.witness.daemons, self.witness)
        self.unlisted = None if daemons is None else Unlisted(daemons)
        self.preparing: dict[str, Need] = {}
        self.modes: ComputeModes | None = None  # of a daemon that serves the whole host

    @property
    def operators(self) -> bool:
        """Whether the daemon is one that the operator of the host runs."""
        return self.daemons is not None and not self.daemons.ours

    def owns(self, pid: int) -> bool:
        """Say whether a process is an MPS daemon or server of ours."""
        return self.daemons is not None and self.daemons.owns(pid)

    def trouble(self, post: Post) -> str | None:
        """Say why no daemon can be had."""
        if self.daemons is None:
            return NOT_RUN
        if self.daemons.missing():
            return NOT_INSTALLED
        if self.daemons.given_up(post):
            return self.daemons.trouble(post)
        return None if self.faults is None else self.faults.trouble(post)

    def adopt(self) -> None:
        """Take over the daemons that an earlier broker has left; called without the lock."""
        if self.daemons is not None:
            self.daemons.adopt()

    def round(self, core: Core, lock: threading.RLock) -> None:
        """Look after daemons and clients, once a second; it may take seconds, without the lock."""
        if self.daemons is not None:
            self.daemons.round()
        if self.modes is not None:
            self.modes.round()
        if self.witness is not None:
            self.witness.look(core, lock)
        if self.faults is not None:
            self.faults.look(core, lock)
        if self.unlisted is not None:
            self.unlisted.look(core, lock)

    def clients(self) -> dict[str, dict[int, int]]:
        """Return clients (pid and start, by device) that the driver may not list."""
        return {} if self.unlisted is None else self.unlisted.found

    def verdict(self, grant: GrantRow) -> Verdict | None:
        """Return what was seen of the processes of a grant; ``None`` where none was."""
        return None if self.witness is None else self.witness.verdicts.get(grant.id)

    def lost(self, core: Core, grant: GrantRow) -> str | None:
        """Say that an environment has lost what it had on a device, where that is so."""
        post = post_of(grant)
        if self.faults is None or post is None or not self.faults.lost(post, grant.environment):
            return None
        return f"{faults.sentence(core.books.slots[grant.device].label)} {faults.HINT}"

    def close(self) -> None:
        """End the daemons that nobody needs; whoever starts next takes over the others."""
        if self.daemons is None:
            return
        for post in self.daemons.running():
            try:
                self.daemons.stop(post)
            except MpsError as error:
                log.warning("MPS on %s: %s", post.device, error)
        if self.modes is not None:
            self.modes.close()


def needs(core: Core) -> dict[Post, int]:
    """Return the posts whose daemons are needed, with the largest cap of a process there."""
    found: dict[Post, int] = {}
    for grants in core.books.on_device.values():
        for grant in grants.values():
            if (post := post_of(grant)) is not None:
                cap = max(grant.cap, grant.started or 0)
                found[post] = max(found.get(post, 0), cap)
    for need in core.mps.preparing.values():
        found[need.post] = max(found.get(need.post, 0), need.cap)
    return found


def plan(
    core: Core, row: EnvironmentRow, demand: Demand, placed: Sequence[Placed], *, running: bool
) -> Sharing:
    """Decide whether what was placed runs under MPS, and that there is room for it there.

    ``running`` says that CUDA lives in the process: what it was set up with stays, unless
    something else is demanded.

    Raises
    ------
    BadRequest, OutOfRange, NoCapacity
        As ``sharing_of`` and ``check_clients``.
    """
    mine = core.books.grants.get(row.id, {})
    kept = mine.get(placed[0].device) if running and len(placed) == 1 else None
    if kept is not None and demand.mps == "auto" and not (kept.exclusive or demand.exclusive):
        sharing = Sharing(kept.mps, kept.without)
    else:
        sharing = sharing_of(demand, core.policy, [_facts(core, row, part) for part in placed])
    if sharing.mps:
        (part,) = placed
        check_clients(
            demand,
            core.policy,
            memory=part.memory,
            others=_clients(core, row, part.device),
            cuda_version=core.inventory.cuda_version,
        )
    return sharing


def same(demand: Demand, grants: Sequence[GrantRow]) -> bool:
    """Say whether shared grants run under MPS, or not, as is asked for now."""
    return all(
        grant.exclusive
        or (
            grant.processes == demand.processes
            and (demand.mps == "auto" or grant.mps == (demand.mps == "on"))
        )
        for grant in grants
    )


def prepare(core: Core, need: Need, *, demanded: bool, running: bool) -> Sharing:
    """Have a daemon run for a grant; called without the broker's lock.

    Raises
    ------
    Unavailable
        It is ``demanded``, and cannot be had.
    """
    daemons = core.mps.daemons
    assert daemons is not None, "planned only where there are daemons"
    try:
        daemons.ensure(need.post)
    except MpsError as error:
        if running:  # it has joined, or failed to: that is seen by looking at its clients
            log.warning("MPS on %s: %s", need.post.device, error)
        elif demanded:
            raise Unavailable(
                str(error), hint="Ask without MPS (`--no-mps`), or look into its log."
            ) from error
        else:
            return Sharing(False, str(error))
    return Sharing(True)


def make_way(core: Core, devices: Sequence[str]) -> None:
    """End idle daemons where somebody gets the whole device; called without the lock."""
    daemons = core.mps.daemons
    posts = () if daemons is None else [it for name in devices for it in daemons.running(name)]
    for post in posts:
        try:
            assert daemons is not None
            daemons.stop(post)
        except MpsError as error:  # it holds some memory there, and that is all
            log.warning("MPS on %s: %s", post.device, error)


def client_of(core: Core, grants: Sequence[GrantRow]) -> MpsClient | None:
    """Return how the process of these grants joins MPS; ``None`` where it does not."""
    daemons = core.mps.daemons
    if daemons is None or len(grants) != 1 or (post := post_of(grants[0])) is None:
        return None
    (grant,) = grants
    ceiling = grant.compute is not None and not others_on(core, grant)
    compute = (grant.compute or 0) // grant.processes if ceiling else None
    device = "0" if daemons.ours else grant.device  # one of several there, in an unknown order
    return MpsClient(str(daemons.path(post)), grant.cap, compute, device)


def others_on(core: Core, grant: GrantRow) -> bool:
    """Say whether another user works on a grant's device: their daemons take turns there.

    Then half of the multiprocessors for half of the time would be a quarter: nobody has a ceiling.
    """
    return slots.others_on(core.books.slots[grant.device], grant.owner)


def _clients(core: Core, row: EnvironmentRow, device: str) -> int:
    grants = core.books.on_device.get(device, {}).values()
    others = [g.processes for g in grants if g.mps and g.environment != row.id]
    coming = core.mps.preparing.items()
    return sum(others) + sum(
        need.processes for name, need in coming if need.post.device == device and name != row.id
    )


def _facts(core: Core, row: EnvironmentRow, part: Placed) -> Facts:
    if core.inventory.simulated:
        return Facts(simulated=True)
    usage, uid, daemons = core.usage.get(part.device), uid_of(row.owner), core.mps.daemons
    mode = None if usage is None else usage.reading.compute_mode
    return Facts(
        foreign=uid is None or (daemons is not None and not daemons.runs_as(uid)),
        wsl="microsoft" in _release().lower(),
        kind=core.books.slots[part.device].kind,
        capability=None if usage is None else usage.reading.capability,
        compute_mode=mode if core.mps.modes is None else core.mps.modes.mode(part.device, mode),
        trouble=None if uid is None else core.mps.trouble(Post(part.device, uid)),
    )


@functools.cache
def _release() -> str:
    return Path("/proc/sys/kernel/osrelease").read_text()
