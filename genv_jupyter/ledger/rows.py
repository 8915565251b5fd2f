"""What the ledger stores, row by row, and what the broker keeps in memory.

Each struct is one table of ``genv_jupyter.ledger.schema``, its fields in the order of the columns,
so that a row is a statement's parameters as it stands. Times are seconds since the epoch,
memory is bytes, compute is hundredths of a percent. No SQL is imported here.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from genv_jupyter.model import Applied, Cuda, EnvironmentKind, EnvironmentState, GrantState


class Refused(Exception):
    """The database refused a write that would break an invariant.

    It means that the code above the ledger is wrong: it never reaches a user as it is.

    Parameters
    ----------
    message
        What the database said.
    constraint
        Name of the constraint, where the database tells it.
    """

    def __init__(self, message: str, constraint: str | None = None) -> None:
        super().__init__(message)
        self.constraint = constraint


class DeviceRow(Struct, frozen=True, kw_only=True):
    """A device and what may be granted on it; ``compute_capacity`` is for each owner."""

    uuid: str
    memory_capacity: int
    compute_capacity: int


class ServerRow(Struct, frozen=True, kw_only=True):
    """A registered Jupyter server. ``start`` is in clock ticks since boot."""

    id: str
    owner: str
    pid: int
    start: int
    version: str
    pool: str | None
    name: str | None


class EnvironmentRow(Struct, frozen=True, kw_only=True):
    """An environment. ``request`` is JSON text; the process is (``pid``, ``start``).

    ``revision`` counts the changes of what the process is to see; ``confirmed`` is the last of
    them that was seen in it before CUDA was initialised. ``restart`` is until when
    (steady seconds) a restart is wanted that somebody was promised, and ``expires`` when
    (steady seconds) the lease ends: a step of the clock moves neither.

    Of a server's reservation (``kind`` is ``server``), ``entitled`` is what it holds in all, as
    JSON text, of which its grants are the rest; ``reservation`` is the one that a kernel draws on.
    """

    id: str
    owner: str
    user: str
    kind: EnvironmentKind
    launch: int
    name: str | None = None
    path: str | None = None
    server: str | None = None
    previous: str | None = None
    request: str | None = None
    pid: int | None = None
    start: int | None = None
    pool: str | None = None
    unattached: Literal["hide", "all"]
    state: EnvironmentState
    applied: Applied | None = None
    cuda: Cuda
    deadline: float | None = None
    reason: str | None = None
    created: float
    expires: float | None = None
    revision: int = 0
    confirmed: int | None = None
    restart: float | None = None
    reservation: str | None = None
    entitled: str | None = None

    @classmethod
    def nobody(cls, owner: str, user: str = "") -> EnvironmentRow:
        """Return an environment that is nowhere: a dry run asks on its behalf."""
        return cls(
            id="",
            owner=owner,
            user=user,
            kind="command",
            launch=0,
            unattached="all",
            state="released",
            cuda="unknown",
            created=0.0,
        )


class GrantRow(Struct, frozen=True, kw_only=True):
    """A grant: what is wanted, and (``counted_…``) what stands in everybody else's way.

    ``counted_compute`` is 0 where there is no ceiling. ``mps`` says that the device is shared under
    MPS, ``without`` why a shared grant is not. ``memory`` is divided among ``processes``;
    ``started`` is the most that each process which runs now may take, where that is another cap.
    """

    id: int
    environment: str
    device: str
    owner: str
    memory: int
    compute: int | None
    exclusive: bool
    counted_memory: int
    counted_compute: int
    counted_exclusive: bool
    state: GrantState
    applied: Applied | None
    since: float
    mps: bool = False
    processes: int = 1
    without: str | None = None
    started: int | None = None

    @property
    def cap(self) -> int:
        """Bytes that each of the grant's processes may take."""
        return self.memory // self.processes


class TicketRow(Struct, frozen=True, kw_only=True):
    """A place in the queue; those who wait are served by ``number``.

    ``request`` is JSON text. ``since`` is for people, seconds since the epoch; ``came`` and
    ``until`` are steady seconds: until when somebody wants to wait, or, once it is granted, by
    when somebody must have taken it up. Who waits is the process (``pid``, ``start``), where it
    is one that may end before its environment does.
    """

    id: str
    environment: str
    number: int
    request: str
    state: Literal["waiting", "granted"]
    since: float
    came: float
    until: float | None = None
    restart: bool = False
    pid: int | None = None
    start: int | None = None


class NoteRow(Struct, frozen=True, kw_only=True):
    """A note to an environment by another one: of that one's ``owner``, who may have it no more.

    ``asked`` is a question that is answered: it is not shown, and whoever asked was not to ask
    again at once. ``at`` and ``lease``, the end that what is held had when it was asked for, are
    steady seconds.
    """

    environment: str
    by: str
    kind: Literal["question", "answer", "asked"]
    owner: str
    text: str
    at: float
    lease: float | None = None


class LiveState(Struct, frozen=True, kw_only=True):
    """All that a live ledger holds."""

    devices: tuple[DeviceRow, ...]
    servers: tuple[ServerRow, ...]
    environments: tuple[EnvironmentRow, ...]
    grants: tuple[GrantRow, ...]
    tickets: tuple[TicketRow, ...]
    notes: tuple[NoteRow, ...] = ()


class Record(Struct, frozen=True, kw_only=True):
    """Something that happened, in the past tense: ``GrantAdded``, ``AttachRefused``."""

    at: float
    event: str
    owner: str
    environment: str | None = None
    device: str | None = None
    memory: int | None = None
    compute: int | None = None
    reason: str | None = None
