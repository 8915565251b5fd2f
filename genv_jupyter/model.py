"""The words of the product as types: what travels over every door is exactly this.

Frozen ``msgspec`` structs. Bytes are integers, compute is an integer in hundredths of a percent
(``5000`` is 50 %), times are RFC 3339 UTC, unknown values are ``None``. The OpenAPI file, and
from it the TypeScript types, are generated from this module and its neighbours (``events``,
``turns``, ``notices``, …).
"""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from genv_jupyter.maintenance import Maintenance
from genv_jupyter.notices import RuleInForce
from genv_jupyter.units import Time as Time

DeviceKind = Literal["gpu", "mig"]
Health = Literal["ok", "lost", "unreliable", "unknown"]
EnvironmentKind = Literal["kernel", "command", "shell", "server"]
"""``server``: what is reserved for the kernels of a Jupyter server, from before it starts."""

LaunchKind = Literal["kernel", "command", "shell"]
EnvironmentState = Literal[
    "reserved", "waiting", "granted", "active", "draining", "released", "held"
]
GrantState = Literal["reserved", "granted", "draining", "contended", "lost"]
HELD: tuple[GrantState, ...] = ("granted", "contended")
"""States of a grant that is the environment's to use."""

Applied = Literal["live", "at_restart", "pending", "unknown"]
Strength = Literal["hard", "driver", "cooperative", "watched", "none"]
KernelState = Literal["starting", "idle", "busy", "restarting", "dead", "unknown"]
Cuda = Literal["initialized", "not_initialized", "unknown"]
Mps = Literal["auto", "on", "off"]


class Principal(Struct, frozen=True, kw_only=True):
    """The authenticated caller.

    ``realm`` is ``local`` (``id`` is the uid) or ``hub`` (``id`` is the Hub's user name); ``name``
    is for display only and decides nothing. ``groups`` are those that the host, or the Hub, puts
    them into.
    """

    realm: Literal["local", "hub"]
    id: str
    name: str
    admin: bool = False
    groups: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """``local:1000``: what ownership and quotas hang on."""
        return f"{self.realm}:{self.id}"


class Request(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What somebody asks for, as they asked it (the body of ``PUT environments/{id}``).

    At least one of ``gpus``, ``fraction``, ``memory``, ``devices`` is there;
    ``genv_jupyter.demand.demand_of`` checks it and gives the numbers.
    """

    gpus: int | float | None = None
    fraction: float | None = None
    memory: int | str | None = None
    devices: tuple[str, ...] | None = None
    name: str | None = None
    processes: int | None = None
    duration: int | str | None = None
    wait: int | str | None = None
    mps: Mps = "auto"


class Limit(Struct, frozen=True, kw_only=True):
    """How strongly one limit of a grant holds, whether that was verified, and why."""

    strength: Strength
    verified: bool | None = None
    reason: str = ""


class Limits(Struct, frozen=True, kw_only=True):
    """The three limits of a grant: memory, compute, and which devices are seen."""

    memory: Limit
    compute: Limit
    devices: Limit


class Grant(Struct, frozen=True, kw_only=True):
    """What the broker gave on one device.

    ``memory`` in bytes. ``compute`` is a ceiling in hundredths of a percent, ``None`` for none.
    An exclusive grant is alone on its device.
    """

    device: str
    memory: int
    compute: int | None
    exclusive: bool
    state: GrantState
    applied: Applied | None
    limits: Limits
    since: Time


class Process(Struct, frozen=True, kw_only=True):
    """A process of an environment on a device. ``start`` is in clock ticks since boot."""

    pid: int
    start: int
    device: str
    memory: int | None
    name: str | None = None


class Environment(Struct, frozen=True, kw_only=True):
    """The GPU environment of one kernel, command or shell.

    ``pid``, ``environ`` (variables to set; ``None`` unsets one) and ``processes`` are there only
    for the owner and admins. ``released`` is also the state of one that never had a grant.
    ``pending`` is a request that waits. ``reason`` says in a sentence why the state is what it
    is, where the state alone does not. ``ended`` (owner and admins) says why the process before
    the present one died, where that was the GPU's, the host's or a rule's doing.
    ``kernel_state_since`` is when the kernel came to be in its state, where that was seen.
    """

    id: str
    previous: str | None
    user: str
    kind: EnvironmentKind
    name: str | None
    path: str | None
    server: str | None
    kernel_state: KernelState | None
    idle_since: Time | None
    request: Request | None
    pending: Request | None
    grants: tuple[Grant, ...]
    state: EnvironmentState
    applied: Applied | None
    created: Time
    expires: Time | None
    cuda: Cuda
    reason: str | None
    pid: int | None = None
    environ: dict[str, str | None] | None = None
    processes: tuple[Process, ...] | None = None
    ended: str | None = None
    kernel_state_since: Time | None = None


class DeviceGrant(Struct, frozen=True, kw_only=True):
    """A grant as its device shows it: who holds how much since when."""

    environment: str
    user: str
    name: str | None
    memory: int
    compute: int | None
    exclusive: bool
    state: GrantState
    since: Time


class GrantUsage(Struct, frozen=True, kw_only=True):
    """What an environment really uses of one grant; memory in bytes, utilisation in percent.

    ``memory`` is the cap. ``memory_used`` is what the environment's processes hold on the device,
    and ``memory_peak`` the most that was seen of it, in one reading a second, since
    ``peak_since``: the grant's beginning, or the broker's if that came later. ``seconds_used`` are
    the seconds in which a process of the environment was there. Utilisation is the *device's*, by
    whomever: now, and its mean and maximum over the last ``utilization_seconds`` (300 at most).
    """

    device: str
    memory: int
    memory_used: int | None
    memory_peak: int | None
    peak_since: Time | None
    seconds_used: int | None
    since: Time
    utilization: int | None
    utilization_mean: int | None
    utilization_max: int | None
    utilization_seconds: int | None


class EnvironmentUsage(Struct, frozen=True, kw_only=True):
    """Answer of ``GET usage?environment=ID``; ``at`` is when the reading behind it was begun.

    ``advice`` is one sentence on what is held, or why there is none.
    """

    environment: str
    at: Time | None
    simulated: bool
    grants: tuple[GrantUsage, ...]
    advice: str = ""


class Device(Struct, frozen=True, kw_only=True):
    """A physical GPU or a MIG instance. ``index`` is for display only.

    Memory in bytes, utilisation in percent, temperature in degrees Celsius, power in milliwatts,
    clocks in MHz. ``memory_usable`` is what can be granted: the total less the driver's reserve and
    the configured head-room. ``environments_memory`` is what processes of environments use of it.
    ``ecc_errors`` are memory errors that could not be corrected, ``xid`` the last critical error.
    ``trouble`` is a sentence when something is wrong with the device. One under ``maintenance`` is
    given to nobody anew.
    """

    uuid: str
    index: int | None
    name: str | None
    kind: DeviceKind
    parent: str | None
    memory_total: int | None
    memory_usable: int | None
    memory_used: int | None
    utilization: int | None
    health: Health
    simulated: bool
    grants: tuple[DeviceGrant, ...]
    external_memory: int | None
    unattributed_memory: int | None
    environments_memory: int | None = None
    memory_utilization: int | None = None
    temperature: int | None = None
    power: int | None = None
    power_limit: int | None = None
    sm_clock: int | None = None
    memory_clock: int | None = None
    ecc_errors: int | None = None
    xid: int | None = None
    trouble: str | None = None
    maintenance: Maintenance | None = None


class QueueTicket(Struct, frozen=True, kw_only=True):
    """A place in the queue.

    ``waiting`` at a ``position`` (1 is the first) until ``until``; or ``granted``, and given back
    then unless somebody takes it up. ``held`` are the devices that are kept for it. ``expected`` is
    when there should be room, by the leases of those who hold something, or, with ``guess``, by how
    long devices were kept so far; ``None``: nothing is known. ``request`` is there for those who
    may see it, and ``message`` says it all in a sentence.
    """

    id: str
    environment: str
    user: str
    name: str | None
    request: Request | None
    state: Literal["waiting", "granted"]
    position: int
    since: Time
    until: Time | None
    held: tuple[str, ...]
    expected: Time | None
    guess: bool | None
    message: str


class ServerReport(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of ``PUT servers/{id}``: a Jupyter server tells about itself.

    ``pool`` is the ``CUDA_VISIBLE_DEVICES`` the server was started with (``None``: not set).
    ``watched`` says whether anybody looks through it: else it listens for its kernels alone.
    ``reservation`` is what was reserved for it before it started (``GENV_JUPYTER_RESERVATION``).
    """

    pid: int
    version: str
    pool: str | None = None
    name: str | None = None
    watched: bool = True
    reservation: str | None = None


class KernelReport(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of ``PUT servers/{id}/kernels/{kernel}``: a kernel's birth, life and restarts.

    ``phase`` is ``starting`` before the process exists, ``running`` once ``pid`` is known, and
    ``restarting`` from the moment the process is to be replaced. ``launch`` counts the starts of
    this kernel id. ``previous`` is the kernel whose environment this one takes over. ``pool`` is
    a ``CUDA_VISIBLE_DEVICES`` of the kernelspec, narrowing the server's. ``failure`` says why a
    restart brought no process. ``died`` comes with ``restarting``, if nobody had asked the process
    to end: its status, negative for a signal. Fields left out (``None``) leave what is known as it
    is.

    ``applied`` is how applying the variables of ``revision`` (their ``GENV_JUPYTER_REVISION``)
    went, and ``visible`` the ``CUDA_VISIBLE_DEVICES`` read back in the process afterwards
    (``None``: it is not set there); with ``running`` they are what the process was started with.
    Without them, or when they are not what is wanted now, a report confirms nothing.
    """

    phase: Literal["starting", "running", "restarting"] | None = None
    launch: int | None = None
    pid: int | None = None
    path: str | None = None
    name: str | None = None
    kernel_state: KernelState | None = None
    idle_since: Time | None = None
    kernel_state_since: Time | None = None
    previous: str | None = None
    pool: str | None = None
    unattached: Literal["hide", "all"] | None = None
    applied: Applied | None = None
    cuda: Cuda | None = None
    failure: str | None = None
    died: int | None = None
    revision: int | None = None
    visible: str | UnsetType | None = UNSET


class NewEnvironment(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of ``POST environments``: a process that no Jupyter server of ours started.

    ``pool`` is the ``CUDA_VISIBLE_DEVICES`` it inherited (``None``: not set).
    """

    kind: LaunchKind
    pid: int
    name: str | None = None
    pool: str | None = None


class EnvironmentPatch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of ``PATCH environments/{id}``.

    ``applied``, ``cuda``, ``revision`` and ``visible`` are what whoever applied the variables saw
    in the process, as in ``KernelReport``.
    """

    name: str | None = None
    duration: int | str | None = None
    keep: bool | None = None
    applied: Applied | None = None
    cuda: Cuda | None = None
    revision: int | None = None
    visible: str | UnsetType | None = UNSET


class BrokerHealth(Struct, frozen=True, kw_only=True):
    """Answer of ``GET health``. ``driver`` is a sentence when the driver has trouble.

    ``notices`` are about the broker itself, ``rules`` those that it keeps to. ``user`` is the
    caller as others see them. ``quotas`` grows whenever a rule of quotas is set, changed or
    forgotten; 0: nothing is bounded for anybody.
    """

    version: str
    kind: Literal["user", "host"]
    pid: int
    ledger: str
    simulated: bool
    driver: str | None
    driver_version: str | None
    devices: int
    environments: int
    revision: int
    notices: tuple[str, ...] = ()
    rules: tuple[RuleInForce, ...] = ()
    user: str | None = None
    quotas: int = 0


class AuditEntry(Struct, frozen=True, kw_only=True):
    """Who asked the broker of a host for what, and what came of it.

    ``actor`` is the key of who did it (``local:1000``) and ``name`` their login name then; ``said``
    is why it was refused. Somebody in another's Jupyter server acts on the account of its
    ``owner`` (a key); one who could not be proved is only ``claimed``, by that server.
    """

    at: Time
    actor: str
    name: str
    action: str
    target: str
    status: int
    said: str | None
    owner: str | None = None
    claimed: str | None = None


class DryRun(Struct, frozen=True, kw_only=True):
    """Answer of ``POST placements``: the grants that the request would get now."""

    grants: tuple[Grant, ...]
