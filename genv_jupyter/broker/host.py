"""The host daemon: the same broker for all users of a host, on a socket in ``/run``.

Who calls is known from the kernel; each sees as their own principal. Nobody can keep others from
being served: connections are counted for each uid, and verbs run in turns (``fair``).
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import wait
from pathlib import Path
from typing import TypeVar

from genv_jupyter import __version__
from genv_jupyter.api.doors import Verbs
from genv_jupyter.api.host_door import HostDoor
from genv_jupyter.api.http import Connection, Left
from genv_jupyter.api.rendezvous import HOST_SOCKET
from genv_jupyter.broker import audit, directories, rights, systemd
from genv_jupyter.broker.compute_modes import ComputeModes
from genv_jupyter.broker.config import BrokerConfig
from genv_jupyter.broker.hub_groups import HubGroups, Rules
from genv_jupyter.broker.hub_identity import HubAccess, HubIdentities
from genv_jupyter.broker.hub_listener import HubListener
from genv_jupyter.broker.identity import PATIENCE, Access
from genv_jupyter.broker.known_groups import KnownGroups
from genv_jupyter.broker.log_lines import EachLine
from genv_jupyter.broker.posts import uid_of
from genv_jupyter.broker.process import LEAVE_SECONDS, Process
from genv_jupyter.broker.service import Broker
from genv_jupyter.broker.sockets import sockets
from genv_jupyter.devices.source import open_source
from genv_jupyter.errors import GpuError, TooMany
from genv_jupyter.isolation import processes
from genv_jupyter.isolation.powers import Powers
from genv_jupyter.ledger.live import LiveLedger
from genv_jupyter.ledger.records import RecordsLedger
from genv_jupyter.model import Principal
from genv_jupyter.rootd.powers import HelperPowers

T = TypeVar("T")
log = logging.getLogger("genv_jupyter.broker")
STATE = Path("/var/lib/genv-jupyter")
NO_ACCOUNT = "uids without an account"
"""They are counted together: in containers of their own users have thousands of them."""
OF_ONE = 3
"""Of the threads for verbs that may wait, those that one user may have at once."""
SPARE = 64
"""Descriptors that are kept for files and programs when everybody wants a connection."""


class HostProcess(Process):
    """One running host daemon.

    Parameters
    ----------
    reread
        Reads the configuration again.
    hub
        The listening socket for users of a JupyterHub.
    """

    door = HostDoor
    of_one = OF_ONE

    def __init__(
        self,
        broker: Broker,
        sock: socket.socket,
        reread: Callable[[], BrokerConfig],
        hub: socket.socket | None = None,
    ) -> None:
        super().__init__(broker, sock, float("inf"))
        self.reread = reread
        self.identities = broker.core.identities
        self.identities.waits = 0.0  # with everybody waiting; who calls is looked up before
        self.connections: Counter[int | str] = Counter()
        """Of users of the host by their uid, of those of a Hub by the key of their principal."""
        known = HubIdentities(lambda: broker.core.config.of(HubAccess), self.identities)
        self.hub = None if hub is None else HubListener(self, hub, known)
        top = self.identities.told.path
        self.groups = HubGroups(
            lambda: broker.core.config.of(HubAccess),
            self._learn,
            None if top is None else top.with_name("hub-quotas.json"),
        )
        self.tasks: set[asyncio.Future[None]] = set()
        self._most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - SPARE
        self._notice: str | None = None

    # -- what the door needs --------------------------------------------------------------------

    def too_many(self, who: int | str) -> TooMany | None:
        """Say why somebody may not open another connection."""
        allowed = self.broker.core.config.of(Access).connections
        if self.connections[who] >= allowed:
            return TooMany(
                f"You have {allowed} connections to the GPU broker open already.",
                hint="Close some: each Jupyter server and each kernel has one or two.",
            )
        if who != 0 and self.connections.total() >= self._most:
            return TooMany(
                "The GPU broker has all the connections open that the host allows it.",
                hint="Try again later; an administrator can raise LimitNOFILE of genv-jupyter.",
            )
        return None

    def gone(self, who: int | str) -> None:
        """A connection has been closed."""
        self.connections[who] -= 1
        if not self.connections[who]:
            del self.connections[who]

    async def meet(self, uid: int) -> None:
        """Have it known who a user is, as far as the host answers in time.

        For a newer answer one waits a moment; where it does not come, what is known counts.
        """
        if self.identities.stale(uid):
            looking = self.identities.begin(uid)
            seconds = looking.left(self.identities.patience(uid))
            await asyncio.wait({asyncio.wrap_future(looking)}, timeout=seconds)

    def audit(
        self,
        principal: Principal,
        method: str,
        path: str,
        status: int,
        said: str | None,
        actor: audit.Actor,
    ) -> None:
        """Write down what somebody asked for, and what came of it."""
        core, records = self.broker.core, self.broker.records
        audit.note(core, records, principal, method, path, status, said, actor)

    async def stream(self, handler: Verbs, server: str | None, since: int | None) -> None:
        """Write events to a caller until it leaves, or is no longer who it was."""
        assert isinstance(handler, HostDoor)
        with handler.watched():
            await super().stream(handler, server, since)

    def leave(self, version: str) -> bool:
        """Stay: whoever runs the daemon replaces it."""
        return False

    # -- life -----------------------------------------------------------------------------------

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Let everybody in, up to a number of connections for each."""
        uid = processes.peer(writer.get_extra_info("socket"))[1]
        said = self.too_many(uid)
        if said is not None:
            connection = Connection(reader, writer)
            connection.refuse(said)
            connection.close()
            return
        who: int | str = uid
        self.connections[who] += 1
        try:
            await self.meet(uid)  # who that is comes before what is said
            if not self.identities.has_account(uid):
                self.gone(who)
                said, who = self.too_many(NO_ACCOUNT), NO_ACCOUNT
                self.connections[who] += 1
            if said is not None:
                connection = Connection(reader, writer)
                connection.refuse(said)
                await connection.send()
            else:
                await self.server.serve(reader, writer, whose=uid)
        except Left:
            pass
        finally:
            writer.close()
            self.gone(who)

    def _opened(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        if self.hub is not None:
            self._hold(asyncio.ensure_future(self.hub.open()))
            self._hold(asyncio.ensure_future(self.groups.watch()))
        seconds = systemd.watchdog_seconds()
        if seconds is not None:
            self._tick_watchdog(loop, seconds / 2)

    async def _closing(self) -> None:
        closing = [self.server.close(LEAVE_SECONDS)]
        closing += [] if self.hub is None else [self.hub.close(LEAVE_SECONDS)]
        await asyncio.gather(*closing)
        for task in self.tasks:
            task.cancel()

    def _tick_watchdog(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        systemd.notify("WATCHDOG=1")
        loop.call_later(seconds, self._tick_watchdog, loop, seconds)

    def _reload(self) -> None:
        """Read the configuration again; with a mistake in it, everything stays as it is."""
        systemd.reloading()
        self._hold(asyncio.ensure_future(self._take_in()))

    def _hold(self, task: asyncio.Future[None]) -> None:
        """Keep a task while it runs: the loop alone would not."""
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _take_in(self) -> None:
        try:
            config = await asyncio.get_running_loop().run_in_executor(None, self.reread)
        except GpuError as error:
            log.error("the configuration is not taken over: %s", error)
            said = str(error)
            await self.pool.run(lambda: self._say(said))
        else:
            await self.pool.run(lambda: self._obey(config))
            if self.hub is not None:
                self.hub.identities.forget()
            log.info("the configuration was taken over: %s", ", ".join(map(str, config.files)))
        self.publisher.nudge()
        systemd.notify("READY=1")

    async def _learn(self, rules: Rules) -> None:
        """Take in what the Hub's groups may have."""
        await self.pool.run(lambda: self.broker.learn_quotas(rules))
        self.publisher.nudge()

    def _say(self, said: str | None) -> None:
        """Keep one notice about the configuration, or none."""
        notices = self.broker.core.notices
        if self._notice in notices:
            notices.remove(self._notice)
        self._notice = None
        if said is not None:
            self._notice = f"The configuration was not taken over. {said}"
            notices.append(self._notice)

    def _obey(self, config: BrokerConfig) -> None:
        self.broker.obey(config)
        self.identities.forget()
        self._say(None)


def main(
    *,
    config: Path | None,
    path: str,
    hub_path: str | None,
    state: Path,
    helper: int | None = None,
    hub_descriptor: int | None = None,
    programs: str | None = None,
) -> int:
    """Run a host daemon until it is told to leave; ``helper`` is the line to its root helper.

    ``programs`` is where root has laid ``nvidia-smi``; empty: nowhere.
    """
    to_journal = logging.StreamHandler(sys.stderr)
    to_journal.setFormatter(EachLine("%(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[to_journal])
    os.umask(0o077)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    def reread() -> BrokerConfig:
        return BrokerConfig.host(config, helper=helper is not None)

    try:
        settings = reread()
        powers = rights.acquire(helper)
        sock, hub = sockets(
            settings, Path(path), hub_path, hub_descriptor, separated=helper is not None
        )
        broker, held = _open(state, settings, Path(path).parent, powers)
    except GpuError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"Error: the GPU broker of this host cannot start: {error}.", file=sys.stderr)
        return 1
    broker.core.kind = "host"
    broker.core.programs = rights.programs(
        Path(path).absolute(), state.absolute(), broker.core.notices, programs
    )
    where = broker.books.ledger.path
    log.info("version %s, pid %d, socket %s, ledger %s", __version__, os.getpid(), path, where)

    _recognise(broker)

    async def serve() -> None:
        process = HostProcess(broker, sock, reread, hub)
        loop = asyncio.get_running_loop()
        rights.watch(
            broker.core, broker.lock, lambda: loop.call_soon_threadsafe(process.leaving.set)
        )
        await process.serve(ready=lambda: _ready(path))
        systemd.notify("STOPPING=1")

    asyncio.run(serve())
    os.close(held)
    return 0


def _recognise(broker: Broker) -> None:
    """Look up whose the environments are that an earlier daemon left: decisions count on it."""
    owners = {uid_of(row.owner) for row in broker.books.environments.values()}
    wait([broker.core.identities.begin(uid) for uid in owners if uid is not None], PATIENCE)


def _ready(path: str) -> None:
    # Letters that root does not pass on to systemd would keep all of it back.
    systemd.notify("READY=1", f"STATUS=serving {ascii(path)[1:-1][:180]}")
    log.info("ready")


def _open(
    state: Path, settings: BrokerConfig, room: Path, powers: Powers | None = None
) -> tuple[Broker, int]:
    """Open ledger, records and devices; return also what holds the directory.

    Users get through to ``room``: the MPS daemons that are run as them are in it.
    """
    simulate = os.environ.get("GENV_JUPYTER_SIMULATE", "")
    top = directories.stays(directories.private(state))
    directory = directories.live_within(top, simulate)
    held = directories.lock(directory)
    notices: list[str] = []
    records: RecordsLedger | None = RecordsLedger(
        top / ("simulated.sqlite" if simulate else "records.sqlite")
    )
    try:
        notices.extend(records.open() if records is not None else ())
    except (GpuError, OSError) as error:
        records = None
        notices.append(f"No history is kept: {error}")
    broker = Broker(
        LiveLedger(directory / "ledger.sqlite"),
        open_source(simulate),
        records=records,
        mps=room / "mps",
        config=settings,
        powers=powers,
    )
    broker.core.notices.extend(notices)
    broker.core.identities.told = KnownGroups(top / "hub-groups.json")
    daemons = broker.core.mps.daemons
    if daemons is not None and not broker.core.inventory.simulated:
        kept = top / "compute-modes.json"
        setter = powers.set_mode if isinstance(powers, HelperPowers) else None
        broker.core.mps.modes = ComputeModes(broker.core, broker.lock, daemons, kept, setter)
    return broker, held


__all__ = ["HOST_SOCKET", "STATE", "HostProcess", "main"]
